"""What must not run on this device is refused by name, before any launch; bad input likewise."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
import torch

import fp4aot
from fp4aot import _doctor, _registration, _selftest
from fp4aot._selftest.inputs import cases

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bad_inputs import ACCEPTED, EVERY_DEVICE

RUN_ON_HOPPER = ("nvfp4_kv_dequantize", "nvfp4_kv_dequantize_paged")
BLACKWELL_ONLY = sorted(set(_registration.DEVICE_OPERATORS) - set(RUN_ON_HOPPER))


def good_arguments(operator: str) -> tuple:
    case = next(case for case in cases() if case.operator == operator)
    return tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in case.arguments)


@pytest.mark.parametrize("operator", BLACKWELL_ONLY)
def test_a_device_without_an_image_is_refused_by_name(operator, capability):
    targets = fp4aot._MANIFEST.targets_of(operator)
    if any(target.runs_on(capability) for target in targets):
        pytest.fail(f"this wheel covers {capability}: run the suite for covered devices instead")
    arguments = good_arguments(operator)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError) as caught:
        getattr(torch.ops.fp4aot, operator)(*arguments)
    text = str(caught.value)
    print(text)
    assert f"compute capability {capability[0]}.{capability[1]}" in text
    assert torch.cuda.get_device_name(0) in text
    for target in targets:
        assert str(target) in text
    assert targets or "does not carry this function at all" in text
    assert "doctor" in text
    assert torch.cuda.memory_allocated() == allocated


def test_the_refusal_also_stops_a_capture_and_leaves_the_device_usable():
    x, scale = good_arguments("fp4_quantize")[:2]
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="has no compiled kernel"), torch.cuda.graph(graph):
        fp4aot.fp4_quantize(x, scale)
    assert (torch.ones(4, device="cuda") + 1).sum().item() == 8


@pytest.mark.parametrize("case", EVERY_DEVICE, ids=[f"{c.operator}-{c.case}" for c in EVERY_DEVICE])
def test_bad_input_is_refused_in_the_words_of_the_cpu(case):
    name, _, overload = case.operator.partition(".")
    arguments, keywords = case.build("cuda:0")
    operator = getattr(getattr(torch.ops.fp4aot, name), overload or "default")
    with pytest.raises(RuntimeError) as caught:
        operator(*arguments, **keywords)
    for fragment in (f"fp4aot::{name}", *case.fragments):
        assert re.search(fragment, str(caught.value)), f"{fragment!r} not in: {caught.value}"
    torch.cuda.synchronize()


@pytest.mark.parametrize(("operator", "build"), ACCEPTED, ids=[name for name, _ in ACCEPTED])
def test_valid_input_passes_every_check(operator, build):
    """It runs, or what is refused is the device and no argument."""
    name, _, overload = operator.partition(".")
    if name == "mxfp4_dequantize_host":
        pytest.skip("an operator of the CPU")
    arguments, keywords = build("cuda:0")
    function = getattr(getattr(torch.ops.fp4aot, name), overload or "default")
    try:
        function(*arguments, **keywords)
    except RuntimeError as error:
        if "has no compiled kernel in this wheel" not in str(error):
            raise
    torch.cuda.synchronize()


def test_doctor_says_what_does_not_fit(capability):
    report = _doctor.examine()
    assert not report.ok
    assert report.driver_cuda is not None
    assert set(BLACKWELL_ONLY) == {*report.devices[0].missing, *report.absent}
    assert report.devices[0].runs == RUN_ON_HOPPER
    print(_doctor.render(report))


def test_selftest_passes_what_runs_and_names_what_is_refused():
    report = _selftest.run()
    print(_selftest.render(report))
    assert report.count("FAILED") == 0
    assert report.count("refused") > 0
    assert not report.ok
    ran = {o.operator for o in report.outcomes if o.device == "cuda:0" and o.result == "passed"}
    assert ran == {
        "e2m1_and_ufp8sf_scale_to_float",
        "mxfp4_dequantize",
        "nvfp4_kv_dequantize",
        "nvfp4_kv_dequantize_paged",
    }


def test_threads_get_their_own_stream():
    """The stream is thread-local state of the private TVM-FFI runtime."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (512, 512), dtype=torch.uint8, generator=generator).cuda()
    scales = torch.randint(1, 120, (512, 64), dtype=torch.uint8, generator=generator).cuda()
    scale = torch.ones(1).cuda()
    expected = fp4aot.nvfp4_kv_dequantize(packed, scales, scale)
    torch.cuda.synchronize()
    wrong = []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(200):
                if not torch.equal(fp4aot.nvfp4_kv_dequantize(packed, scales, scale), expected):
                    wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tensors_on_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("DID NOT RUN: needs two GPUs")
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (64, 128), dtype=torch.uint8, generator=generator)
    scales = torch.randint(1, 120, (64, 16), dtype=torch.uint8, generator=generator)
    scale = torch.ones(1)
    expected = fp4aot.nvfp4_kv_dequantize(packed, scales, scale)
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in ("cuda:1", "cuda:0", "cuda:1"):
                arguments = [tensor.to(device) for tensor in (packed, scales, scale)]
                result = fp4aot.nvfp4_kv_dequantize(*arguments)
                assert str(result.device) == device
                assert torch.equal(result.cpu(), expected)
                assert torch.cuda.current_device() == current
    with pytest.raises(RuntimeError, match="argument 'global_scale': got device cuda:1"):
        fp4aot.nvfp4_kv_dequantize(packed.to("cuda:0"), scales.to("cuda:0"), scale.to("cuda:1"))
