"""Arguments of the operators that quantize a batch `[B, M, K]`."""

from __future__ import annotations

import torch

from fp4aot import _layouts
from fp4aot._checks import common, quantize

_BLOCK = 16
# The grouped GEMM reads its operands with the batch last: the operators return permuted views.
EXPERT_VALUES_ORDER = (1, 2, 0)
"""Permutes contiguous `[B, M, K / 2]` values into what the expert operators return."""
EXPERT_SCALES_ORDER = (3, 4, 1, 5, 2, 0)
"""Permutes contiguous `[B, rm, rk, 32, 4, 4]` block scales into what they return."""


def nvfp4_batched_quantize(
    a: torch.Tensor, a_global_sf: torch.Tensor, sf_vec_size: int, nvfp4_4over6: int
) -> None:
    """Refuse what `nvfp4_batched_quantize` cannot quantize."""
    name = "nvfp4_batched_quantize"
    common.check_dtype(name, "a", a, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    common.check_rank(name, "a", a, (3,))
    if sf_vec_size != _BLOCK:
        common.fail(name, "sf_vec_size", f"{sf_vec_size}", "16", "NVFP4 has blocks of 16 values")
    quantize.check_recipe(name, nvfp4_4over6, "a", a)
    quantize.check_blocks(name, "a", a)
    batch, rows, columns = a.shape
    common.check_int32(name, "a", batch * rows, "a number of rows of")
    common.check_int32(name, "a", columns, "a number of columns of")
    _, scale_shape = batched_shapes(a)
    common.check_int32(name, "a", batch * scale_shape[1], "a padded number of scales of")
    common.check_dtype(name, "a_global_sf", a_global_sf, (torch.float32,))
    if a_global_sf.numel() not in (1, rows):
        common.fail(
            name,
            "a_global_sf",
            f"shape {common.shape_text(a_global_sf)}",
            f"1 element, or one per row: {rows}",
            "pass a tensor of shape [1], or of shape [rows]",
        )
    common.check_same_device(name, "a_global_sf", a_global_sf, "a", a)


def nvfp4_batched_quantize_out(
    a: torch.Tensor, values: torch.Tensor, block_scales: torch.Tensor
) -> None:
    """Refuse buffers that differ from what the functional form returns for a valid `a`."""
    name = "nvfp4_batched_quantize"
    value_shape, scale_shape = batched_shapes(a)
    common.check_output(name, "values", values, value_shape, torch.uint8, "a", a)
    common.check_output(name, "block_scales", block_scales, scale_shape, torch.uint8, "a", a)


def batched_shapes(a: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of values and block scales; the latter are flat for each matrix."""
    batch, rows, columns = a.shape
    scale_rows, scale_columns = _layouts.scale_shape(
        rows, columns // _BLOCK, _layouts.SfLayout.layout_128x4
    )
    return (batch, rows, columns // 2), (batch, scale_rows * scale_columns)


def quantize_experts(
    operator: str,
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int,
    fused: bool,
) -> None:
    """Refuse what the two expert operators cannot quantize.

    With `fused`, `a` is `[B, M, 2 K]`, and SiLU and multiplication come first.
    """
    common.check_dtype(operator, "a", a, (torch.float16, torch.bfloat16))
    common.check_rank(operator, "a", a, (3,))
    quantize.check_recipe(operator, nvfp4_4over6, "a", a)
    quantize.check_blocks(operator, "a", a, multiple=2 * _BLOCK if fused else _BLOCK)
    value_shape, scale_shape = expert_shapes(a, fused)
    batch, rows, bytes_of_row = value_shape
    # The kernel counts its work in groups of eight values, four bytes.
    common.check_int32(
        operator, "a", batch * rows * (bytes_of_row // 4), "a number of groups of 8 values of"
    )
    _, row_tiles, column_tiles, *tile = scale_shape
    padded_scales = batch * row_tiles * column_tiles * tile[0] * tile[1] * tile[2]
    common.check_int32(operator, "a", padded_scales, "a padded number of scales of")
    for argument, tensor, dtype, what_to_do in (
        ("mask", mask, torch.int32, "pass one number of rows for each matrix"),
        ("a_global_sf", a_global_sf, torch.float32, "pass one global scale for each matrix"),
    ):
        common.check_dtype(operator, argument, tensor, (dtype,))
        if tuple(tensor.shape) != (batch,):
            common.fail(
                operator,
                argument,
                f"shape {common.shape_text(tensor)}",
                f"[{batch}], the batch of 'a'",
                what_to_do,
            )
        common.check_same_device(operator, argument, tensor, "a", a)


def quantize_experts_out(
    operator: str,
    a: torch.Tensor,
    values: torch.Tensor,
    block_scales: torch.Tensor,
    fused: bool,
) -> None:
    """Refuse buffers that differ from what the functional forms return for a valid `a`."""
    value_shape, scale_shape = expert_shapes(a, fused)
    for argument, buffer, shape, order, dtype in (
        ("values", values, value_shape, EXPERT_VALUES_ORDER, torch.uint8),
        (
            "block_scales",
            block_scales,
            scale_shape,
            EXPERT_SCALES_ORDER,
            torch.float8_e4m3fn,
        ),
    ):
        common.check_permuted_output(operator, argument, buffer, shape, order, dtype, "a", a)


def expert_shapes(a: torch.Tensor, fused: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of values and block scales as they lie in memory, before permuting."""
    batch, rows, columns = a.shape
    if fused:
        columns = columns // 2
    scale_rows, scale_columns = _layouts.scale_shape(
        rows, columns // _BLOCK, _layouts.SfLayout.layout_128x4
    )
    tiles = (batch, scale_rows // 128, scale_columns // _layouts.COLUMN_TILE)
    return (batch, rows, columns // 2), (*tiles, 32, 4, _layouts.COLUMN_TILE)
