"""Arguments of `group_gemm_nvfp4_nt_groupwise` and `group_gemm_mxfp8_mxfp4_nt_groupwise`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fp4aot import _layouts
from fp4aot._checks import common

_ROW_TILE = 128
# The kernels store 16 bytes at once, and load whole tiles along K.
_MULTIPLE_OF_N = 8
_MULTIPLE_OF_K = 128
_PACKED = (torch.uint8, torch.float4_e2m1fn_x2)
_OUTPUTS = (torch.bfloat16, torch.float16)


class Factors(NamedTuple):
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


class GroupFormat(NamedTuple):
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
    block
        Values that share one scale.
    tiles_n
        Accepted by some device's kernels.
    """

    operator: str
    values: tuple[torch.dtype, ...]
    values_of_element: int
    scales: tuple[torch.dtype, ...]
    block: int
    tiles_n: tuple[int, ...]


GROUP_NVFP4 = GroupFormat(
    "group_gemm_nvfp4_nt_groupwise",
    values=_PACKED,
    values_of_element=2,
    scales=(torch.uint8, torch.float8_e4m3fn),
    block=16,
    tiles_n=(32, 64, 128),
)
GROUP_MXFP4 = GroupFormat(
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    values=(torch.float8_e4m3fn, torch.float8_e5m2),
    values_of_element=1,
    scales=(torch.uint8, torch.float8_e8m0fnu),
    block=32,
    tiles_n=(32, 64, 128, 192, 256),
)


def group_gemm_nvfp4_nt_groupwise(
    factors: Factors,
    alpha: torch.Tensor | None,
    tiles: tuple[int, int, int],
    out_dtype: torch.dtype,
) -> None:
    """Refuse what `group_gemm_nvfp4_nt_groupwise` cannot multiply; `tiles` are those of M, N, K."""
    _nvfp4(factors, alpha, tiles)
    _output_dtype(GROUP_NVFP4.operator, out_dtype)


def group_gemm_nvfp4_nt_groupwise_out(
    factors: Factors,
    alpha: torch.Tensor | None,
    tiles: tuple[int, int, int],
    out: torch.Tensor,
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    _nvfp4(factors, alpha, tiles)
    _output(GROUP_NVFP4.operator, factors, out)


def group_gemm_mxfp8_mxfp4_nt_groupwise(
    factors: Factors, mma_sm: int, tiles: tuple[int, int, int], out_dtype: torch.dtype
) -> None:
    """Refuse what no device's kernels can multiply; `tiles` are those of M, N and K."""
    _mxfp4(factors, mma_sm, tiles)
    _output_dtype(GROUP_MXFP4.operator, out_dtype)


def group_gemm_mxfp8_mxfp4_nt_groupwise_out(
    factors: Factors, mma_sm: int, tiles: tuple[int, int, int], out: torch.Tensor
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    _mxfp4(factors, mma_sm, tiles)
    _output(GROUP_MXFP4.operator, factors, out)


def first_scale_row(first_row: int, group: int) -> int:
    """Return the row of `a_scale` with which a group begins that begins with `first_row` of `a`."""
    return (first_row + group * (_ROW_TILE - 1)) // _ROW_TILE * _ROW_TILE


def _nvfp4(factors: Factors, alpha: torch.Tensor | None, tiles: tuple[int, int, int]) -> None:
    _operands(GROUP_NVFP4, factors)
    _alpha(GROUP_NVFP4.operator, alpha, factors)
    _tiles(GROUP_NVFP4, tiles)


def _mxfp4(factors: Factors, mma_sm: int, tiles: tuple[int, int, int]) -> None:
    _operands(GROUP_MXFP4, factors)
    _choice(GROUP_MXFP4.operator, "mma_sm", mma_sm, (1, 2))
    _tiles(GROUP_MXFP4, tiles)


def _operands(form: GroupFormat, factors: Factors) -> None:
    name, a, b = form.operator, factors.a, factors.b
    common.check_dtype(name, "a", a, form.values)
    common.check_rank(name, "a", a, (2,))
    common.check_dtype(name, "b", b, _PACKED)
    common.check_rank(name, "b", b, (3,))
    common.check_same_device(name, "b", b, "a", a)
    k = a.shape[1] * form.values_of_element
    _matching_shapes(name, a, b, k)
    if not b.is_contiguous():
        # The kernels could read another b only after a copy, which every call would pay.
        common.fail(
            name,
            "b",
            f"shape {common.shape_text(b)} with strides {list(b.stride())}",
            f"strides {list(_layouts.contiguous_strides(b.shape))}",
            "make it contiguous once, where it is loaded",
        )
    _scales_of_a(form, factors, k)
    _scales_of_b(form, factors, k)
    _segments(name, factors)


def _matching_shapes(name: str, a: torch.Tensor, b: torch.Tensor, k: int) -> None:
    shape = f"shape {common.shape_text(b)}"
    if b.shape[0] == 0:
        common.fail(name, "b", shape, "at least one matrix", "pass one matrix for each group")
    if b.shape[2] * 2 != k:
        common.fail(
            name,
            "b",
            f"{shape} ({b.shape[2] * 2} values a row)",
            f"{k} values a row, for a of shape {common.shape_text(a)}",
            "pass the packed weights [G, N, K / 2]",
        )
    common.check_positive_multiple(name, "a", a, k, "values a row", _MULTIPLE_OF_K)
    common.check_positive_multiple(name, "b", b, b.shape[1], "rows", _MULTIPLE_OF_N)
    common.check_int32(name, "a", a.shape[0], "a number of rows of")
    common.check_int32(name, "a", k, "a number of values a row of")
    common.check_int32(name, "b", b.shape[1], "a number of rows of")


def _scales(form: GroupFormat, argument: str, scales: torch.Tensor, a: torch.Tensor) -> None:
    name = form.operator
    common.check_dtype(name, argument, scales, form.scales)
    common.check_same_device(name, argument, scales, "a", a)
    if not scales.is_contiguous():
        common.fail(
            name,
            argument,
            f"shape {common.shape_text(scales)} with strides {list(scales.stride())}",
            "contiguous scales",
            "pass them as they were written",
        )
    common.check_int32(name, argument, scales.numel(), "a number of scales of")


def _scales_of_a(form: GroupFormat, factors: Factors, k: int) -> None:
    """Require as many scales as any segments of the rows can need."""
    scales, rows, groups = factors.a_scale, factors.a.shape[0], factors.b.shape[0]
    _scales(form, "a_scale", scales, factors.a)
    columns = k // form.block
    needed = first_scale_row(rows, groups) * columns
    # A bound, which would become a condition on the exported program: left to run time.
    if isinstance(needed, int) and isinstance(scales.numel(), int) and scales.numel() < needed:
        common.fail(
            form.operator,
            "a_scale",
            f"{scales.numel()} scales",
            f"at least {needed} (({rows} rows + 127 * {groups} groups) / 128 * 128 rows of "
            f"{columns})",
            "start the scales of group i at row (m_indptr[i] + 127 * i) / 128 * 128, and put "
            "each group's into the 128x4 layout by itself",
        )


def _scales_of_b(form: GroupFormat, factors: Factors, k: int) -> None:
    scales, (groups, rows, _) = factors.b_scale, factors.b.shape
    _scales(form, "b_scale", scales, factors.a)
    expected = groups * _layouts.round_up(rows, _ROW_TILE) * (k // form.block)
    if scales.numel() != expected:
        common.fail(
            form.operator,
            "b_scale",
            f"{scales.numel()} scales",
            f"{expected} (layout_128x4 for each of {groups} matrices with {rows} rows of {k} "
            "values)",
            "quantize with the 128x4 layout, each matrix by itself",
        )


def _segments(name: str, factors: Factors) -> None:
    m_indptr, groups = factors.m_indptr, factors.b.shape[0]
    common.check_dtype(name, "m_indptr", m_indptr, (torch.int32,))
    if m_indptr.dim() != 1 or m_indptr.shape[0] != groups + 1:
        common.fail(
            name,
            "m_indptr",
            f"shape {common.shape_text(m_indptr)}",
            f"[{groups + 1}], for {groups} matrices of 'b'",
            "pass the first row of each group, then the number of rows",
        )
    common.check_same_device(name, "m_indptr", m_indptr, "a", factors.a)


def _alpha(name: str, alpha: torch.Tensor | None, factors: Factors) -> None:
    if alpha is None:
        return
    groups = factors.b.shape[0]
    common.check_dtype(name, "alpha", alpha, (torch.float32,))
    if alpha.numel() != 0 and (alpha.dim() != 1 or alpha.shape[0] != groups):
        common.fail(
            name,
            "alpha",
            f"shape {common.shape_text(alpha)}",
            f"[{groups}], for {groups} matrices of 'b'",
            "pass one value for each group, or None for 1",
        )
    common.check_same_device(name, "alpha", alpha, "a", factors.a)


def _tiles(form: GroupFormat, tiles: tuple[int, int, int]) -> None:
    """Refuse tiles that no device has; the CUDA kernels also refuse those that theirs has not."""
    m, n, k = tiles
    _choice(form.operator, "tile_m", m, (128,))
    _choice(form.operator, "tile_n", n, form.tiles_n)
    _choice(form.operator, "tile_k", k, (128, 256))


def _choice(name: str, argument: str, value: int, accepted: Sequence[int]) -> None:
    if value not in accepted:
        *others, last = (str(choice) for choice in accepted)
        expected = f"{', '.join(others)} or {last}" if others else last
        common.fail(name, argument, f"{value}", expected, "leave the default")


def _output_dtype(name: str, out_dtype: torch.dtype) -> None:
    if out_dtype not in _OUTPUTS:
        expected = "torch.bfloat16 or torch.float16"
        common.fail(name, "out_dtype", str(out_dtype), expected, "convert the result instead")


def _output(name: str, factors: Factors, out: torch.Tensor) -> None:
    common.check_dtype(name, "out", out, _OUTPUTS)
    shape = (factors.a.shape[0], factors.b.shape[1])
    common.check_output(name, "out", out, shape, out.dtype, "a", factors.a)
