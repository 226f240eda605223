"""Grouped GEMMs with block scales: NVFP4, and MXFP8 by MXFP4.

As in `mm_fp4`, the sum over K is taken in float64 instead of float32, is rounded to float32,
multiplied by alpha and rounded once to the output dtype. With NVFP4's factors it is exact as it is
there; MXFP8's and MXFP4's scales span more exponents than float64 has bits, so that a sum may be
off by K * 2^-53 of the sum of magnitudes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fp4aot import _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, e2m1, scales
from fp4aot.operators.structured import Layout, operator

_LAYOUT = _layouts.SfLayout.layout_128x4
_ROW_TILE = 128
# The kernels store 16 bytes at once, and load whole tiles along K.
_MULTIPLE_OF_N = 8
_MULTIPLE_OF_K = 128


class _Factors(NamedTuple):
    """What both operators multiply.

    Attributes
    ----------
    a, b
        Values: `[M, K]`, packed for NVFP4, and packed `[G, N, K / 2]`.
    a_scale, b_scale
        Their block scales.
    m_indptr
        int32 `[G + 1]`.
    """

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    b_scale: torch.Tensor
    m_indptr: torch.Tensor


class _Format(NamedTuple):
    """What differs between the two operators.

    Attributes
    ----------
    operator
        Its name.
    values
        Dtypes of `a`.
    values_of_element
        How many values one element of `a` holds.
    scales
        Dtypes of the block scales.
    decode
        Makes float32 of the block scales' bytes.
    block
        Values that share one scale.
    tiles_n
        Accepted by some device's kernels.
    """

    operator: str
    values: tuple[torch.dtype, ...]
    values_of_element: int
    scales: tuple[torch.dtype, ...]
    decode: Callable[[torch.Tensor], torch.Tensor]
    block: int
    tiles_n: tuple[int, ...]


_NVFP4 = _Format(
    "group_gemm_nvfp4_nt_groupwise",
    values=checks.PACKED_DTYPES,
    values_of_element=2,
    scales=checks.E4M3_DTYPES,
    decode=scales.decode_e4m3,
    block=checks.NVFP4_BLOCK,
    tiles_n=(32, 64, 128),
)
_MXFP4 = _Format(
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    values=(torch.float8_e4m3fn, torch.float8_e5m2),
    values_of_element=1,
    scales=(torch.uint8, torch.float8_e8m0fnu),
    decode=scales.decode_ue8m0,
    block=32,
    tiles_n=(32, 64, 128, 192, 256),
)


@operator
def group_gemm_nvfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tile_m: int,
    tile_n: int,
    tile_k: int,
    swap_ab: bool,
) -> Layout:
    """Refuse what no device's kernels can multiply; return `[M, N]`."""
    name = _NVFP4.operator
    checks.check_output_dtype(name, "out_dtype", out_dtype)
    _check_factors(_NVFP4, _Factors(a, b, a_scale, b_scale, m_indptr))
    groups = b.shape[0]
    if alpha is not None:
        checks.check_dtype(name, "alpha", alpha, (torch.float32,))
        if alpha.numel() != 0:
            what_to_do = "pass one value for each group, or None for 1"
            checks.check_shape(name, "alpha", alpha, (groups,), what_to_do, _matrices(groups))
        checks.check_same_device(name, "alpha", alpha, "a", a)
    _check_tiles(_NVFP4, tile_m, tile_n, tile_k)
    return Layout((a.shape[0], b.shape[1]), out_dtype)


@group_gemm_nvfp4_nt_groupwise.writes
def _(*arguments: Any, outputs: tuple[torch.Tensor]) -> None:
    _multiply_into(_NVFP4, _Factors(*arguments[:5]), arguments[5], outputs[0])


@operator
def group_gemm_mxfp8_mxfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    out_dtype: torch.dtype,
    mma_sm: int,
    tile_m: int,
    tile_n: int,
    tile_k: int,
    swap_ab: bool,
) -> Layout:
    """Refuse what no device's kernels can multiply; return `[M, N]`."""
    checks.check_output_dtype(_MXFP4.operator, "out_dtype", out_dtype)
    _check_factors(_MXFP4, _Factors(a, b, a_scale, b_scale, m_indptr))
    _check_choice(_MXFP4.operator, "mma_sm", mma_sm, (1, 2))
    _check_tiles(_MXFP4, tile_m, tile_n, tile_k)
    return Layout((a.shape[0], b.shape[1]), out_dtype)


@group_gemm_mxfp8_mxfp4_nt_groupwise.writes
def _(*arguments: Any, outputs: tuple[torch.Tensor]) -> None:
    _multiply_into(_MXFP4, _Factors(*arguments[:5]), None, outputs[0])


def first_scale_row(first_row: int, group: int) -> int:
    """Return the row of `a_scale` with which a group begins that begins with `first_row` of `a`."""
    return (first_row + group * (_ROW_TILE - 1)) // _ROW_TILE * _ROW_TILE


def _check_factors(form: _Format, factors: _Factors) -> None:
    name, a, b, m_indptr = form.operator, factors.a, factors.b, factors.m_indptr
    checks.check_dtype(name, "a", a, form.values)
    checks.check_rank(name, "a", a, (2,))
    checks.check_dtype(name, "b", b, checks.PACKED_DTYPES)
    checks.check_rank(name, "b", b, (3,))
    checks.check_same_device(name, "b", b, "a", a)
    (m, k), (groups, n, half_k) = (a.shape[0], a.shape[1] * form.values_of_element), b.shape
    if groups == 0:
        checks.fail_shape(name, "b", b, "at least one matrix", "pass one matrix for each group")
    if half_k * 2 != k:
        expected = f"{k} values a row, for a of shape {checks.shape_text(a)}"
        what_to_do, note = "pass the packed weights [G, N, K / 2]", f" ({half_k * 2} values a row)"
        checks.fail_shape(name, "b", b, expected, what_to_do, note)
    checks.check_positive_multiple(name, "a", a, k, "values a row", _MULTIPLE_OF_K)
    checks.check_positive_multiple(name, "b", b, n, "rows", _MULTIPLE_OF_N)
    checks.check_int32(name, "a", m, "a number of rows of")
    checks.check_int32(name, "a", k, "a number of values a row of")
    checks.check_int32(name, "b", n, "a number of rows of")
    checks.check_contiguous(name, "b", b, f"strides {list(_layouts.contiguous_strides(b.shape))}")
    _check_scales(form, "a_scale", factors.a_scale, a)
    columns = k // form.block
    needed, given = first_scale_row(m, groups) * columns, factors.a_scale.numel()
    # A bound, which would become a condition on the exported program: left to run time.
    if isinstance(needed, int) and isinstance(given, int) and given < needed:
        checks.fail(
            name,
            "a_scale",
            f"{given} scales",
            f"at least {needed} (({m} rows + 127 * {groups} groups) / 128 * 128 rows of {columns})",
            "start the scales of group i at row (m_indptr[i] + 127 * i) / 128 * 128, and put "
            "each group's into the 128x4 layout by itself",
        )
    _check_scales(form, "b_scale", factors.b_scale, a)
    count, given = groups * _layouts.round_up(n, _ROW_TILE) * columns, factors.b_scale.numel()
    if given != count:
        each = f"layout_128x4 for each of {groups} matrices with {n} rows of {k} values"
        what_to_do = "quantize with the 128x4 layout, each matrix by itself"
        checks.fail(name, "b_scale", f"{given} scales", f"{count} ({each})", what_to_do)
    checks.check_dtype(name, "m_indptr", m_indptr, (torch.int32,))
    what_to_do = "pass the first row of each group, then the number of rows"
    checks.check_shape(name, "m_indptr", m_indptr, (groups + 1,), what_to_do, _matrices(groups))
    checks.check_same_device(name, "m_indptr", m_indptr, "a", a)


def _matrices(groups: int) -> str:
    return f", for {groups} matrices of 'b'"


def _check_scales(form: _Format, argument: str, scales: torch.Tensor, a: torch.Tensor) -> None:
    name = form.operator
    checks.check_dtype(name, argument, scales, form.scales)
    checks.check_same_device(name, argument, scales, "a", a)
    what_to_do = "pass them as they were written"
    checks.check_contiguous(name, argument, scales, "contiguous scales", what_to_do)
    checks.check_int32(name, argument, scales.numel(), "a number of scales of")


def _check_tiles(form: _Format, tile_m: int, tile_n: int, tile_k: int) -> None:
    """Refuse tiles that no device has; the CUDA kernels also refuse those that theirs has not."""
    _check_choice(form.operator, "tile_m", tile_m, (128,))
    _check_choice(form.operator, "tile_n", tile_n, form.tiles_n)
    _check_choice(form.operator, "tile_k", tile_k, (128, 256))


def _check_choice(name: str, argument: str, value: int, accepted: Sequence[int]) -> None:
    if value not in accepted:
        *others, last = (str(choice) for choice in accepted)
        expected = f"{', '.join(others)} or {last}" if others else last
        checks.fail(name, argument, f"{value}", expected, "leave the default")


def _multiply_into(
    form: _Format, factors: _Factors, alpha: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Multiply each segment of `a` by its matrix; rows outside of the segments are kept.

    Tiles and `swap_ab` change nothing.
    """
    alphas = torch.ones(factors.b.shape[0])
    if alpha is not None and alpha.numel() != 0:
        alphas = scales.flush_subnormals(alpha)
    segments = list(itertools.pairwise(factors.m_indptr.tolist()))
    # All segments first: nothing is written when one is refused.
    for group, segment in enumerate(segments):
        _check_segment(form.operator, group, segment, factors.a.shape[0])
    for group, (first, last) in enumerate(segments):
        if first == last:
            continue
        left = _rows_of_a(form, factors, group, first, last)
        total = torch.matmul(left, _matrix_of_b(form, factors, group).t()).to(torch.float32)
        out[first:last] = scales.multiply(total, alphas[group])


def _check_segment(name: str, group: int, segment: tuple[int, int], rows: int) -> None:
    """Refuse rows outside of the tensors. A kernel does not look: it would read and write there."""
    first, last = segment
    if not 0 <= first <= last <= rows:
        got = f"rows {first} to {last} for group {group}"
        expected = f"rows of 'a', which has {rows}, in ascending order"
        what_to_do = "a GPU would read and write outside of the tensors"
        checks.fail(name, "m_indptr", got, expected, what_to_do)


def _rows_of_a(form: _Format, factors: _Factors, group: int, first: int, last: int) -> torch.Tensor:
    """Return the values of one segment as float64."""
    values = factors.a[first:last]
    if form.values_of_element == 2:
        decoded = e2m1.decode(e2m1.unpack(values.view(torch.uint8)))
    else:
        decoded = values.to(torch.float32)
    columns = decoded.shape[1] // form.block
    tiles = factors.a_scale.view(torch.uint8).reshape(-1)
    return _scaled(form, decoded, tiles[first_scale_row(first, group) * columns :])


def _matrix_of_b(form: _Format, factors: _Factors, group: int) -> torch.Tensor:
    """Return the values of one matrix of `b` as float64."""
    decoded = e2m1.decode(e2m1.unpack(factors.b[group].view(torch.uint8)))
    tiles = factors.b_scale.view(torch.uint8).reshape(factors.b.shape[0], -1)
    return _scaled(form, decoded, tiles[group])


def _scaled(form: _Format, values: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
    """Multiply `[rows, K]` by the scales at the beginning of `tiles`, in float64."""
    rows, columns = values.shape[0], values.shape[1] // form.block
    padded_rows, padded_columns = _layouts.scale_shape(rows, columns, _LAYOUT)
    codes = scales.row_major(tiles[: padded_rows * padded_columns], rows, columns, _LAYOUT)
    return blocks.scale(values.to(torch.float64), form.decode(codes).to(torch.float64))
