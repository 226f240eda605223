"""SGLang's own mixture-of-experts runner reaches the operator through its plugin loader.

What of SGLang is real here and what stands in is in `moe_harness` and `sglang_package`.
"""

from __future__ import annotations

import pytest

from integrations import run, wheels

(WHEEL,) = (wheel for wheel in wheels.SGLANG if wheel.version == run.MOE)


def run_side(machine, side: str) -> dict:
    wheels.provide(WHEEL, machine.sources)
    (found,) = run.run_moe(machine, (side,))
    return found


@pytest.mark.parametrize("side", ["stock", "plugin"])
def test_sglangs_experts(machine, side):
    """With the plugin: the operator's results, no process, file or lock. Stock compiles first."""
    found = run_side(machine, side)
    assert found["problems"] == [], found


def test_nothing_changes_where_it_is_turned_off(machine, monkeypatch):
    monkeypatch.setenv("FP4AOT_DISABLE", "1")
    found = run_side(machine, "plugin")
    assert found["bound"].startswith("flashinfer."), found
    assert "right" not in found["cases"].values(), found
