"""Each SGLang, stock and with both ways to turn fp4aot on: see `test_original_failure`."""

from __future__ import annotations

import pytest

from integrations import run, wheels

CASES = [*run.cases(), *run.own_flashinfer_cases()]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(filter(None, vars(case).values()))
)
def test_sglang(machine, case):
    (wheel,) = (wheel for wheel in wheels.SGLANG if wheel.version == case.version)
    wheels.provide(wheel, machine.sources)
    if case.flashinfer:
        wheels.provide(wheels.FLASHINFER[case.version], machine.sources)
    found = machine.run_case(case)
    assert run.problems(found) == [], found
