"""What the wheel holds no image for is refused by name, before any launch."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.wheel import IN_PLACE, ON_EVERY_DEVICE, OPERATORS, covers, not_applicable

import fp4aot
from fp4aot import _doctor, _selftest

pytestmark = pytest.mark.subject("refusals")
COMPILED = (*OPERATORS, *IN_PLACE)


def uncovered() -> list[str]:
    return [operator for operator in COMPILED if not covers(operator)]


@pytest.mark.parametrize("operator", COMPILED)
def test_a_device_without_an_image_is_refused_by_name(operator, capability):
    if covers(operator):
        not_applicable(f"this wheel holds an image of {operator} for this device")
    targets = fp4aot._MANIFEST.targets_of(operator)
    arguments = draw.arguments(operator)
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
    if not uncovered():
        not_applicable("this wheel covers this device: nothing is refused")
    arguments = draw.arguments(uncovered()[0])
    operator = getattr(torch.ops.fp4aot, uncovered()[0])
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="has no compiled kernel"), torch.cuda.graph(graph):
        operator(*arguments)
    assert (torch.ones(4, device="cuda") + 1).sum().item() == 8


@pytest.mark.subject("doctor and self-test")
def test_doctor_says_what_fits_and_what_does_not():
    report = _doctor.examine()
    text = _doctor.render(report)
    print(text)
    assert report.driver_cuda is not None
    assert set(uncovered()) == {*report.devices[0].missing, *report.absent}
    assert set(report.devices[0].runs) == set(COMPILED) - set(uncovered())
    if uncovered():
        assert not report.ok
    assert report.manifest.is_lowered == fp4aot._MANIFEST.is_lowered
    if report.manifest.is_lowered:
        assert "lowered" in text.lower()


@pytest.mark.subject("doctor and self-test")
def test_selftest_passes_what_runs_and_names_what_is_refused(details):
    report = _selftest.run()
    print(_selftest.render(report))
    failed = [outcome for outcome in report.outcomes if outcome.result == "FAILED"]
    details.compared("self-test's outcomes", len(report.outcomes), len(failed))
    assert not failed, failed[:3]
    assert report.ok == (not uncovered())
    here = [outcome for outcome in report.outcomes if outcome.device == "cuda:0"]
    ran = {outcome.operator for outcome in here if outcome.result == "passed"}
    assert ran == {*COMPILED, *ON_EVERY_DEVICE} - set(uncovered())
    assert {o.operator for o in here if o.result == "refused"} == set(uncovered())
