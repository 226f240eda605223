"""What the autotuner of every FlashInfer that is accepted would choose is what the table says."""

from __future__ import annotations

import pytest

from integrations import wheels

CASES = 150


@pytest.mark.parametrize(
    "wheel", [*wheels.FLASHINFER.values(), *wheels.MORE_FLASHINFER], ids=lambda one: one.version
)
def test_the_table_answers_what_the_autotuner_would(machine, wheel):
    folder = wheels.provide(wheel, machine.sources)
    found = machine.run("tuned_choices.py", str(CASES), path=folder)
    assert found.get("flashinfer") == wheel.version, found
    assert min(found["compared"].values()) > 10 * CASES
