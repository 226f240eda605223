"""The failure that began this project, in SGLang 0.5.11's own code, and its end.

What of SGLang is real here and what stands in is in `sglang_package`; how it is driven, in
`sglang_harness`; what must come of it, in `run.problems`.
"""

from __future__ import annotations

import pytest

from integrations import run, wheels

(WHEEL,) = (wheel for wheel in wheels.SGLANG if wheel.version in run.RAW)


@pytest.mark.parametrize("side", ["stock", "plugin"])
def test_sglang_compiles_an_nvfp4_model(machine, side):
    """Stock FlashInfer stops Dynamo at a lock; with the plugin it traces, and equals eager."""
    wheels.provide(WHEEL, machine.sources)
    found = machine.run_case(run.Case(WHEEL.version, side))
    assert run.problems(found) == [], found


@pytest.mark.parametrize("side", ["stock", "fp4aot"])
def test_what_first_calls_do_to_the_machine(machine, side):
    """No process, no file, no file lock; stock FlashInfer has all three in its first call."""
    found = machine.run("start.py", side)
    assert run.start_problems(found) == [], found
