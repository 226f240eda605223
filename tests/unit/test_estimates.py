"""What units are expected to cost: by folder and name, and by the number of their targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from aot.estimates import ESTIMATES, estimate

TARGETS = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ("100a", "110a", "120f")]
RENDERED = "@WORKSPACE@/.cache/flashinfer/0.7.2/x/generated/gen_gemm_{}_cutlass_fp4/{}.cu"


@pytest.mark.parametrize(
    "source",
    [
        *(RENDERED.format(kernels, "fp4_gemm_cutlass_half_128_64_128") for kernels in
          ("sm100", "sm103", "sm120")),
        RENDERED.format("sm103", "fp4_gemm_cutlass_store256___nv_bfloat16_128_64_128"),
        "@FLASHINFER@/csrc/fp4_gemm_cutlass.cu",
        "@FLASHINFER@/csrc/fp4_gemm_cutlass_sm103.cu",
        "@FLASHINFER@/csrc/fp4_gemm_cutlass_sm120.cu",
        "@FLASHINFER@/csrc/nv_internal/cpp/kernels/quantization.cu",
        "@FLASHINFER@/csrc/fp4_kv_quantization.cu",
        "@FLASHINFER@/csrc/fp4_kv_dequantization.cu",
    ],
)  # fmt: skip
def test_every_cuda_source_that_is_shipped_was_measured(source: str) -> None:
    assert estimate(Path(source)) != estimate(Path("anything.cpp"))


def test_a_rendered_source_is_known_by_its_folder() -> None:
    name = "fp4_gemm_cutlass_half_128_64_128"
    costs = {k: estimate(Path(RENDERED.format(k, name))) for k in ("sm100", "sm120")}
    assert costs["sm100"] != costs["sm120"]
    # Not by its name alone: the source of the dispatcher has a similar one.
    assert estimate(Path(f"/csrc/{name}.cu"))[0] < 2000
    assert all(megabytes > 5000 for megabytes, _ in costs.values())


def test_each_further_target_costs_more() -> None:
    source = Path(RENDERED.format("sm100", "fp4_gemm_cutlass_half_128_64_128"))
    (found,) = [one for one in ESTIMATES if "sm100_cutlass_fp4" in one.pattern]
    seconds = [estimate(source, ["-O3", *TARGETS[:count]])[1] for count in range(4)]
    assert seconds[0] == seconds[1] == found.seconds
    assert seconds[2] - seconds[1] == seconds[3] - seconds[2] == found.more_seconds > 0
    # One process compiles one target: the peak stays.
    assert estimate(source, TARGETS)[0] == found.megabytes


def test_our_own_sources_are_known_by_the_names_of_their_jobs() -> None:
    runtime, operators = (estimate(Path(name)) for name in ("tvm_ffi/error", "operators/gemm"))
    anything = estimate(Path("new.cu"))
    assert len({runtime, operators, anything}) == 3
    assert runtime < operators < anything
    # What we add to a module is compiled as FlashInfer's device code is.
    assert estimate(Path("@OPERATORS@/modules/nvfp4_moe_runners.cu"))[0] > 1000


def test_anything_has_an_estimate() -> None:
    assert ESTIMATES[-1].pattern == "*"
    assert estimate(Path("new.cu")) == dataclasses.astuple(ESTIMATES[-1])[1:3]
