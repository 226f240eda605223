"""Around each launch: device and stream are set and restored, and memory is freed."""

from __future__ import annotations

import pytest
from bad_inputs import ACCEPTED

from host.compare import WITHOUT_CPP, cpp_outcome
from host.host_library import DEVICES

CAPABILITY = (12, 0)
DEVICE = DEVICES[CAPABILITY]
OTHER_DEVICE = DEVICES[(10, 0)]
STREAM = 0x1000 + DEVICE  # as the stand-in for torch numbers them
ILLEGAL_ADDRESS = 700  # of cudaError_t


def launches(library) -> dict[str, tuple]:
    """Return one accepted call of each operator that runs on the device and launches something."""
    found = {}
    for operator, build in ACCEPTED:
        name = operator.removesuffix(".out")
        if name in WITHOUT_CPP or name == "mxfp4_dequantize_host":
            continue
        library.reset(CAPABILITY)
        if cpp_outcome(operator, *build("cpu")).refusal is None and library.calls:
            found.setdefault(operator, build)
    return found


@pytest.fixture(scope="module")
def calls(library):
    found = launches(library)
    names = {operator.removesuffix(".out") for operator, _ in ACCEPTED}
    names -= {*WITHOUT_CPP, "mxfp4_dequantize_host"}
    assert {operator.removesuffix(".out") for operator in found} == names
    return found


def test_a_launch_is_on_the_device_and_the_stream_of_its_tensors(library, calls):
    for operator, build in calls.items():
        library.reset(CAPABILITY, current_device=OTHER_DEVICE)
        cpp_outcome(operator, *build("cpu"))
        places = {(call["device"], call["stream"]) for call in library.calls if call["arguments"]}
        assert places == {(DEVICE, STREAM)}, operator
        assert library.current_device == OTHER_DEVICE, operator
        assert library.stream(DEVICE) == 0, operator


def test_device_and_stream_are_restored_when_flashinfer_raises(library, calls):
    for operator, build in calls.items():
        library.reset(CAPABILITY, current_device=OTHER_DEVICE)
        library.fail()
        outcome = cpp_outcome(operator, *build("cpu"))
        assert outcome.refusal is not None
        assert "FlashInfer raised ValueError: the test wants this call to fail" in outcome.refusal
        assert library.current_device == OTHER_DEVICE, operator
        assert library.stream(DEVICE) == 0, operator
        assert library.allocated == 0, operator


def test_an_error_of_the_launch_is_reported_by_name(library, calls):
    for operator, build in calls.items():
        library.reset(CAPABILITY)
        library.set_cuda_error(ILLEGAL_ADDRESS)
        outcome = cpp_outcome(operator, *build("cpu"))
        assert outcome.refusal is not None
        assert "CUDA reports 'cudaErrorIllegalAddress'" in outcome.refusal
        assert library.allocated == 0, operator
        # Reported once: the next call is not to blame.
        assert cpp_outcome(operator, *build("cpu")).refusal is None, operator


def test_a_workspace_is_allocated_for_the_call_and_freed(library, calls):
    for operator, build in calls.items():
        library.reset(CAPABILITY)
        library.need_workspace(4096)
        outcome = cpp_outcome(operator, *build("cpu"))
        assert outcome.results is not None, outcome
        # What the functional form returns is the caller's from then on.
        assert library.allocated == len(outcome.results), operator
