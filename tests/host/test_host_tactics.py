"""Tactics are positions in lists: those of the wheel are made as FlashInfer makes its own.

The same sources are compiled for every target, so what holds of them holds for each.
"""

from __future__ import annotations

import re
from pathlib import Path

from aot import catalog

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "wheels/fp4aot/csrc/modules/nvfp4_moe.cu"
BINDING = "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
_LISTS = re.compile(r"getTactics\(kernels::MoeGemmId::(GEMM_\d)\)")


def test_a_mixtures_lists_are_those_of_flashinfers_binding():
    environment = ROOT / "build/environments" / f"flashinfer-{catalog.DEFAULT_FLASHINFER}"
    (binding,) = environment.glob(f"lib/python*/site-packages/flashinfer/data/csrc/{BINDING}")
    text = binding.read_text()
    assert _LISTS.findall(text) == ["GEMM_1", "GEMM_2"]
    # The second list is counted on from the first, and what is fused is known before both.
    order = [
        "use_fused_finalize_ = mUseFusedFinalize",
        "mAllProfiles = gemm1_tactics",
        "mAllProfiles.insert(mAllProfiles.end(), gemm2_tactics.begin(), gemm2_tactics.end())",
    ]
    assert sorted(order, key=text.index) == order
    ours = ENTRY.read_text()
    assert _LISTS.findall(ours) == ["GEMM_1", "GEMM_2"]
    assert ours.index("use_fused_finalize_ = fused_finalize") < ours.index("getTactics")


def test_the_gemms_list_is_in_flashinfers_own_source():
    gemms = [module for module in catalog.MODULES if module.family == "gemm"]
    assert gemms
    assert all(module.selection is None for module in gemms)
