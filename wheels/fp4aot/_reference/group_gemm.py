"""Grouped GEMMs with block scales in plain PyTorch.

As in `fp4aot._reference.gemm`, the sum over K is taken in float64 instead of float32, is rounded to
float32, multiplied by alpha and rounded once to the output dtype. With NVFP4's factors it is exact
as it is there; MXFP8's and MXFP4's scales span more exponents than float64 has bits, so that a sum
may be off by K * 2^-53 of the sum of magnitudes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from fp4aot import _checks, _layouts
from fp4aot._checks.group_gemm import (
    GROUP_MXFP4,
    GROUP_NVFP4,
    Factors,
    GroupFormat,
    first_scale_row,
)
from fp4aot._reference import e2m1, scales
from fp4aot._reference.dequantize import scale_blocks

_LAYOUT = _layouts.SfLayout.layout_128x4


def group_gemm_nvfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
) -> torch.Tensor:
    """Multiply each segment of `a` by its matrix of `b`. Tiles and `swap_ab` change nothing.

    Rows outside of the segments are zero; on a GPU they hold whatever was in memory.
    """
    factors = Factors(a, b, a_scale, b_scale, m_indptr)
    _checks.group_gemm_nvfp4_nt_groupwise(factors, alpha, (tile_m, tile_n, tile_k), out_dtype)
    return _zeros_and_products(GROUP_NVFP4, factors, alpha, out_dtype)


def group_gemm_nvfp4_nt_groupwise_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    *,
    out: torch.Tensor,
) -> None:
    """Multiply into the caller's buffer, whose rows outside of the segments stay as they are."""
    factors = Factors(a, b, a_scale, b_scale, m_indptr)
    _checks.group_gemm_nvfp4_nt_groupwise_out(factors, alpha, (tile_m, tile_n, tile_k), out)
    _multiply_into(GROUP_NVFP4, factors, alpha, out)


def group_gemm_mxfp8_mxfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    out_dtype: torch.dtype,
    mma_sm: int = 1,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
) -> torch.Tensor:
    """Do the same for MXFP8 and MXFP4, without alpha."""
    factors, tiles = Factors(a, b, a_scale, b_scale, m_indptr), (tile_m, tile_n, tile_k)
    _checks.group_gemm_mxfp8_mxfp4_nt_groupwise(factors, mma_sm, tiles, out_dtype)
    return _zeros_and_products(GROUP_MXFP4, factors, None, out_dtype)


def group_gemm_mxfp8_mxfp4_nt_groupwise_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    mma_sm: int = 1,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    *,
    out: torch.Tensor,
) -> None:
    """Multiply into the caller's buffer, whose rows outside of the segments stay as they are."""
    factors, tiles = Factors(a, b, a_scale, b_scale, m_indptr), (tile_m, tile_n, tile_k)
    _checks.group_gemm_mxfp8_mxfp4_nt_groupwise_out(factors, mma_sm, tiles, out)
    _multiply_into(GROUP_MXFP4, factors, None, out)


def _zeros_and_products(
    form: GroupFormat, factors: Factors, alpha: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    out = factors.a.new_zeros((factors.a.shape[0], factors.b.shape[1]), dtype=out_dtype)
    _multiply_into(form, factors, alpha, out)
    return out


def _multiply_into(
    form: GroupFormat, factors: Factors, alpha: torch.Tensor | None, out: torch.Tensor
) -> None:
    alphas = torch.ones(factors.b.shape[0])
    if alpha is not None and alpha.numel() != 0:
        alphas = scales.flush_subnormals(alpha)
    # All segments first: nothing is written when one is refused.
    for group, first, last in list(_segments(form, factors)):
        if first == last:
            continue
        left = _rows_of_a(form, factors, group, first, last)
        total = torch.matmul(left, _matrix_of_b(form, factors, group).t()).to(torch.float32)
        out[first:last] = scales.multiply(total, alphas[group])


def _segments(form: GroupFormat, factors: Factors) -> Iterator[tuple[int, int, int]]:
    """Yield each group with its first row and the one after its last.

    A kernel does not look at them: it would read and write outside of the tensors.
    """
    rows = factors.a.shape[0]
    for group, (first, last) in enumerate(itertools.pairwise(factors.m_indptr.tolist())):
        if not 0 <= first <= last <= rows:
            _checks.fail(
                form.operator,
                "m_indptr",
                f"rows {first} to {last} for group {group}",
                f"rows of 'a', which has {rows}, in ascending order",
                "a GPU would read and write outside of the tensors",
            )
        yield group, first, last


def _rows_of_a(
    form: GroupFormat, factors: Factors, group: int, first: int, last: int
) -> torch.Tensor:
    """Return the values of one segment as float64."""
    values = factors.a[first:last]
    if form.values_of_element == 2:
        decoded = e2m1.decode(e2m1.unpack(values.view(torch.uint8)))
    else:
        decoded = values.to(torch.float32)
    columns = decoded.shape[1] // form.block
    tiles = factors.a_scale.view(torch.uint8).reshape(-1)
    return _scaled(form, decoded, tiles[first_scale_row(first, group) * columns :])


def _matrix_of_b(form: GroupFormat, factors: Factors, group: int) -> torch.Tensor:
    """Return the values of one matrix of `b` as float64."""
    decoded = e2m1.decode(e2m1.unpack(factors.b[group].view(torch.uint8)))
    tiles = factors.b_scale.view(torch.uint8).reshape(factors.b.shape[0], -1)
    return _scaled(form, decoded, tiles[group])


def _scaled(form: GroupFormat, values: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
    """Multiply `[rows, K]` by the scales at the beginning of `tiles`, in float64."""
    rows, columns = values.shape[0], values.shape[1] // form.block
    shape = _layouts.scale_shape(rows, columns, _LAYOUT)
    buffer = tiles[: shape[0] * shape[1]].reshape(shape)
    codes = _layouts.unswizzle(buffer, _LAYOUT)[:rows, :columns]
    factors = scales.decode_e4m3(codes) if form is GROUP_NVFP4 else scales.decode_ue8m0(codes)
    return scale_blocks(values.to(torch.float64), factors.to(torch.float64))
