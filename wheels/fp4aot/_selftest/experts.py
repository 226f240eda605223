"""Random arguments for the operators of mixtures of experts."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fp4aot._activations import ActivationType
from fp4aot._selftest.case import Case, blocks
from fp4aot.operators.batched import nvfp4_batched_quantize
from fp4aot.operators.grouped_matmul import (
    first_scale_row,
    group_gemm_mxfp8_mxfp4_nt_groupwise,
    group_gemm_nvfp4_nt_groupwise,
)
from fp4aot.operators.mixture_of_experts import cutlass_fused_moe
from fp4aot.operators.quantize import fp4_quantize

_HIDDEN, _INTER, _EXPERTS, _TOKENS, _TOP_K = 256, 192, 4, 37, 2
_GLOBAL_SCALE = 37.3
# A tie of e2m1 that a GPU decides otherwise changes a whole row a little.
_MIXTURE_ERROR = 0.03


class _Matrices(NamedTuple):
    """Quantized matrices, the scales of each in the 128x4 layout."""

    packed: torch.Tensor
    block_scales: torch.Tensor


def cases(generator: torch.Generator) -> list[Case]:
    """Return calls of the mixture of experts and of the grouped GEMMs."""
    return [*_mixtures(generator), *_grouped_nvfp4(generator), *_grouped_mxfp4(generator)]


def _quantized(generator: torch.Generator, count: int, rows: int, columns: int) -> _Matrices:
    values = blocks(generator, count, rows, columns).to(torch.bfloat16)
    packed, scales = nvfp4_batched_quantize(values, torch.tensor([_GLOBAL_SCALE]))
    return _Matrices(packed, scales.reshape(count, -1, columns // 16))


def _mixtures(generator: torch.Generator) -> list[Case]:
    found = []
    for dtype, activation in (
        (torch.bfloat16, ActivationType.Swiglu),
        (torch.float16, ActivationType.Relu2),
    ):
        rows = 2 * _INTER if activation.is_gated else _INTER
        fc1 = _quantized(generator, _EXPERTS, rows, _HIDDEN)
        fc2 = _quantized(generator, _EXPERTS, _HIDDEN, _INTER)
        tokens = blocks(generator, _TOKENS, _HIDDEN).to(dtype)
        selected = torch.rand(_TOKENS, _EXPERTS, generator=generator).argsort(dim=1)[:, :_TOP_K]
        selected = selected.to(torch.int32)
        selected[3, 1] = -1  # padding
        weights = torch.rand(_TOKENS, _TOP_K, generator=generator)
        # Small, so that squares stay within float16.
        alpha = torch.linspace(1e-5, 2e-5, _EXPERTS)
        one = torch.tensor([_GLOBAL_SCALE])
        fixed = (
            *(fc1.packed, fc2.packed, one, fc1.block_scales, alpha),
            *(torch.tensor(800.0), fc2.block_scales, alpha, dtype),
        )
        unquantized = (tokens, selected, weights, *fixed)
        packed, scales = fp4_quantize(tokens, one)
        quantized = (packed, selected, weights, *fixed)
        for name, arguments, input_scales in (
            ("quantized inside", unquantized, None),
            ("quantized before", quantized, scales),
        ):
            # Without the fused sum, whose order differs from run to run.
            options = (
                *(None, None, input_scales, None, None, None, 1, 0, 1, 0, False, None),
                *(int(activation), True, False),
            )
            found.append(
                Case(
                    cutlass_fused_moe,
                    f"{str(dtype).removeprefix('torch.')} {activation.name} {name}",
                    (*arguments, *options),
                    largest_error=_MIXTURE_ERROR,
                )
            )
    return found


def _segments(sizes: tuple[int, ...]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _grouped_nvfp4(generator: torch.Generator) -> list[Case]:
    starts = _segments((12, 0, 132))
    groups, rows, k, n = len(starts) - 1, starts[-1], 256, 72
    b = _quantized(generator, groups, n, k)
    a = blocks(generator, rows, k).to(torch.bfloat16)
    packed = torch.empty(rows, k // 2, dtype=torch.uint8)
    scales = torch.zeros(first_scale_row(rows, groups), k // 16, dtype=torch.uint8)
    one = torch.tensor([_GLOBAL_SCALE])
    for group in range(groups):
        first, last = starts[group : group + 2]
        values, block_scales = fp4_quantize(a[first:last], one)
        packed[first:last] = values
        at = first_scale_row(first, group)
        block_scales = block_scales.reshape(-1, k // 16)
        scales[at : at + len(block_scales)] = block_scales
    indptr = torch.tensor(starts, dtype=torch.int32)
    alpha = torch.linspace(5e-4, 9e-4, groups)
    arguments = (packed, b.packed, scales, b.block_scales, indptr, alpha, torch.bfloat16)
    return [Case(group_gemm_nvfp4_nt_groupwise, "bfloat16 3 groups", arguments, 0.05)]


def _exponents(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """E8M0 scales from 2^-7 to 1."""
    return torch.randint(120, 128, shape, generator=generator, dtype=torch.uint8)


def _grouped_mxfp4(generator: torch.Generator) -> list[Case]:
    starts = _segments((12, 0, 132))
    groups, rows, k, n = len(starts) - 1, starts[-1], 256, 72
    b = torch.randint(0, 256, (groups, n, k // 2), generator=generator, dtype=torch.uint8)
    b_scales = _exponents(generator, groups, 128, k // 32)
    a = blocks(generator, rows, k).clamp(-400, 400).to(torch.float8_e4m3fn)
    a_scales = _exponents(generator, first_scale_row(rows, groups), k // 32)
    indptr = torch.tensor(starts, dtype=torch.int32)
    arguments = (a, b, a_scales, b_scales, indptr, torch.bfloat16)
    return [Case(group_gemm_mxfp8_mxfp4_nt_groupwise, "bfloat16 3 groups", arguments, 0.05)]
