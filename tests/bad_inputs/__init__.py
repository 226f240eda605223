"""Calls that every implementation of an operator must refuse, and what the error must say.

One table for the CPU kernels, the fakes and the CUDA kernels: a call that one of them accepts, or
refuses in other words, is a bug in one of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bad_inputs.arguments import (
    HALF,
    Arguments,
    BadInput,
    call,
    column_major,
    empty,
    every_other,
    scale,
    uint8,
    viewed,
)
from bad_inputs.batched import BATCHED, batched
from bad_inputs.dequantize import DEQUANTIZE, HOST, NVFP4
from bad_inputs.experts import EXPERTS, FUSED, GROUPED, experts
from bad_inputs.gemm import GEMM, multiply, multiply_into
from bad_inputs.group_gemm import ACCEPTED_GROUPS, GROUP_GEMM
from bad_inputs.interleave import INTERLEAVE
from bad_inputs.kv_cache import KV, KV_CACHE, KV_QUANTIZE, PAGED, kv_quantize, paged
from bad_inputs.moe import MIXTURE, MOE_ACCEPTED
from bad_inputs.per_token import PER_TOKEN, index, per_token
from bad_inputs.quantize import QUANTIZE, quantize, quantize_out

# Calls that must be accepted: the bad ones differ from these in one point.
ACCEPTED: tuple[tuple[str, Callable[[str], Arguments]], ...] = (
    ("fp4_quantize", quantize()),
    ("fp4_quantize", quantize(sf_vec_size=32, sf_use_ue8m0=True, global_scale=None)),
    ("fp4_quantize", quantize(global_scale=lambda device: scale(device, 4))),
    ("fp4_quantize", quantize(global_scale=lambda device: torch.ones((), device=device))),
    ("fp4_quantize.out", quantize_out()),
    ("fp4_quantize.out", quantize_out(is_sf_8x4_layout=True, block_scales=uint8(8, 4))),
    ("fp4_quantize.out", quantize_out(is_sf_swizzled_layout=False, block_scales=uint8(4, 4))),
    (
        "fp4_quantize.out",
        quantize_out(
            input=lambda device: empty(device, 4, 64, dtype=HALF).t(),
            values=lambda device: empty(device, 4, 32).t(),
            block_scales=lambda device: empty(device, 128, 4).t(),
        ),
    ),
    ("block_scale_interleave", call(uint8(4, 4))),
    ("block_scale_interleave", call(uint8(2, 4, 4, dtype=torch.bfloat16))),
    ("block_scale_interleave.out", call(uint8(4, 4), out=uint8(512))),
    ("block_scale_interleave_reverse", call(uint8(2, 128, 4))),
    ("block_scale_interleave_reverse.out", call(uint8(128, 4), out=uint8(128, 4))),
    ("e2m1_and_ufp8sf_scale_to_float", call(*NVFP4)),
    ("e2m1_and_ufp8sf_scale_to_float.out", call(*NVFP4, out=uint8(4, 64, dtype=torch.float32))),
    ("mxfp4_dequantize", call(uint8(4, 32), uint8(8, 4), 1)),
    (
        "mxfp4_dequantize.out",
        call(uint8(4, 32), uint8(128, 4), out=uint8(4, 64, dtype=torch.float32)),
    ),
    ("fp4_quantize", quantize(nvfp4_4over6=23)),
    ("nvfp4_quantize_per_token", per_token()),
    ("nvfp4_quantize_per_token", per_token(sf_layout=2, nvfp4_4over6=1)),
    ("nvfp4_quantize_per_token", per_token(expanded_idx_to_permuted_idx=index(9))),
    ("nvfp4_quantize_per_token", per_token(input=column_major(4, 64, dtype=HALF))),
    ("nvfp4_quantize_per_token.out", per_token(out=True)),
    (
        "nvfp4_quantize_per_token.out",
        per_token(out=True, sf_layout=1, block_scales=uint8(8, 4), nvfp4_4over6=7),
    ),
    ("nvfp4_batched_quantize", batched()),
    ("nvfp4_batched_quantize", batched(a_global_sf=lambda device: scale(device, 4))),
    ("nvfp4_batched_quantize", batched(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn))),
    ("nvfp4_batched_quantize.out", batched(out=True, nvfp4_4over6=5)),
    (GROUPED, experts()),
    (
        GROUPED,
        experts(
            a=uint8(0, 4, 64, dtype=HALF),
            mask=index(0),
            a_global_sf=uint8(0, dtype=torch.float32),
        ),
    ),
    (f"{GROUPED}.out", experts(out=True, nvfp4_4over6=3)),
    (FUSED, experts(128)),
    (f"{FUSED}.out", experts(128, out=True, nvfp4_4over6=17)),
    ("nvfp4_kv_quantize", kv_quantize()),
    ("nvfp4_kv_quantize", kv_quantize(global_scale=lambda d: torch.ones((), device=d))),
    ("nvfp4_kv_quantize.out", kv_quantize(out=True)),
    ("nvfp4_kv_dequantize", call(*KV, torch.bfloat16)),
    ("nvfp4_kv_dequantize.out", call(*KV, out=uint8(4, 64, dtype=HALF))),
    ("nvfp4_kv_dequantize_paged", paged()),
    ("nvfp4_kv_dequantize_paged.out", paged(out=True)),
    ("mm_fp4", multiply()),
    ("mm_fp4", multiply(batch=(2,), out_dtype=HALF, tactic=3)),
    ("mm_fp4", multiply(a=uint8(0, 32), a_descale=uint8(0, 4))),
    ("mm_fp4", multiply(batch=(0,))),
    ("mm_fp4", multiply(a=viewed(torch.float4_e2m1fn_x2, 4, 32))),
    ("mm_fp4", multiply(a=every_other(4, 32), alpha=lambda d: torch.ones((), device=d))),
    ("mm_fp4", multiply(a_descale=uint8(512), b_descale=column_major(4, 128))),
    ("mm_fp4", multiply(batch=(2,), b_descale=column_major(2, 4, 128))),
    ("mm_fp4.out", multiply_into()),
    ("mm_fp4.out", multiply_into(batch=(2,), out=uint8(2, 4, 96, dtype=HALF))),
    *ACCEPTED_GROUPS,
    *MOE_ACCEPTED,
)


# For any device; the host function's are separate because it has no other device.
EVERY_DEVICE = (
    QUANTIZE
    + INTERLEAVE
    + DEQUANTIZE
    + KV_CACHE
    + PAGED
    + GEMM
    + GROUP_GEMM
    + MIXTURE
    + PER_TOKEN
    + BATCHED
    + EXPERTS
    + KV_QUANTIZE
)


__all__ = ["ACCEPTED", "EVERY_DEVICE", "HOST", "BadInput"]
