"""vLLM's own plugin loader loads the plugin, and its wrappers reach the operators.

What of vLLM is real here and what stands in is in `vllm_harness`.
"""

from __future__ import annotations

from integrations import run, wheels

WRAPPERS = {
    "flashinfer_fp4_quantize",
    "flashinfer_quant_nvfp4_8x4_sf_layout",
    "nvfp4_block_scale_interleave",
    "flashinfer_scaled_fp4_mm",
    "flashinfer_cutlass_fused_moe",
}


def test_wrappers_reach_the_operators(machine):
    """Also those that have been called before, which keep the function that they found."""
    folder = wheels.provide(wheels.VLLM, machine.sources)
    found = machine.run("vllm_harness.py", str(folder), "plugin")
    assert run.vllm_problems(found) == [], found
    assert set(found["after"]) == WRAPPERS
    (line,) = found["log"]
    assert line.startswith("INFO fp4aot: FlashInfer ")


def test_nothing_changes_where_it_is_turned_off(machine, monkeypatch):
    folder = wheels.provide(wheels.VLLM, machine.sources)
    monkeypatch.setenv("FP4AOT_DISABLE", "1")
    found = machine.run("vllm_harness.py", str(folder), "plugin")
    assert found["after"] == found["before"]
    assert "right" not in found["after"].values(), found
