"""NVFP4 quantization of a batch `[B, M, K]`.

The expert operators repeat `cvt_fp16_to_fp4_expert` of FlashInfer 0.7.2's `quantization.cuh`:
matrix b has `mask[b]` rows (none if negative, all if more than M), and nothing is written for the
others, nor for the padding of the scales. Unlike FlashInfer's, the operators clear the scales first
if they have padding columns: those meet real rows in a GEMM.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fp4aot import _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, nvfp4, scales
from fp4aot.operators.quantize import quantize_from_fp8
from fp4aot.operators.structured import Layout, operator

_LAYOUT = _layouts.SfLayout.layout_128x4
# The grouped GEMM reads its operands with the batch last: the operators return permuted views, of
# `[B, M, K / 2]` values and `[B, rm, rk, 32, 4, 4]` block scales.
_VALUES_ORDER = (1, 2, 0)
_SCALES_ORDER = (3, 4, 1, 5, 2, 0)
# log2(e) rounded to float32.
_LOG2_OF_E = 12102203 * 2.0**-23


@operator
def nvfp4_batched_quantize(
    a: torch.Tensor, a_global_sf: torch.Tensor, sf_vec_size: int, nvfp4_4over6: int
) -> tuple[Layout, Layout]:
    """Refuse what cannot be quantized; block scales are flat for each matrix."""
    name = "nvfp4_batched_quantize"
    checks.check_dtype(name, "a", a, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    checks.check_rank(name, "a", a, (3,))
    if sf_vec_size != checks.NVFP4_BLOCK:
        checks.fail(name, "sf_vec_size", f"{sf_vec_size}", "16", "NVFP4 has blocks of 16 values")
    checks.check_recipe(name, nvfp4_4over6, "a", a)
    checks.check_blocks(name, "a", a)
    batch, rows, columns = a.shape
    checks.check_int32(name, "a", batch * rows, "a number of rows of")
    checks.check_int32(name, "a", columns, "a number of columns of")
    scale_count = math.prod(_layouts.scale_shape(rows, columns // checks.NVFP4_BLOCK, _LAYOUT))
    checks.check_int32(name, "a", batch * scale_count, "a padded number of scales of")
    # A row of the batch's matrices may have a global scale of its own.
    checks.check_row_scales(name, "a_global_sf", a_global_sf, rows, "a", a)
    return (
        Layout((batch, rows, columns // 2), torch.uint8),
        Layout((batch, scale_count), torch.uint8),
    )


@nvfp4_batched_quantize.reference
def _(
    a: torch.Tensor, a_global_sf: torch.Tensor, sf_vec_size: int, nvfp4_4over6: int
) -> tuple[torch.Tensor, torch.Tensor]:
    elements = blocks.split(a, sf_vec_size)
    factor = scales.row_factors(a_global_sf)
    if a.dtype == torch.float8_e4m3fn:
        quantized = quantize_from_fp8(elements, factor)
    else:
        quantized = nvfp4.quantize(elements, factor, nvfp4_4over6)
    arranged = scales.arrange(quantized.scale_codes, _LAYOUT)
    return quantized.packed(), arranged.reshape(a.shape[0], math.prod(arranged.shape[1:]))


@operator
def scaled_fp4_grouped_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int
) -> tuple[Layout, Layout]:
    """Refuse what cannot be quantized; results are views with the batch in the last dimension."""
    return _experts("scaled_fp4_grouped_quantize", a, mask, a_global_sf, nvfp4_4over6)


@operator
def silu_and_mul_scaled_nvfp4_experts_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int
) -> tuple[Layout, Layout]:
    """Do the same for SiLU of the first half of each row times its second half."""
    name = "silu_and_mul_scaled_nvfp4_experts_quantize"
    return _experts(name, a, mask, a_global_sf, nvfp4_4over6, halves=2)


@silu_and_mul_scaled_nvfp4_experts_quantize.writes
def _(*arguments: Any, outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, mask, a_global_sf, nvfp4_4over6 = arguments
    _write_experts(_silu_and_mul(a), mask, a_global_sf, nvfp4_4over6, outputs)


def _experts(
    name: str,
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int,
    halves: int = 1,
) -> tuple[Layout, Layout]:
    """Check the arguments; `a` is `[B, M, halves * K]`."""
    checks.check_dtype(name, "a", a, (torch.float16, torch.bfloat16))
    checks.check_rank(name, "a", a, (3,))
    checks.check_recipe(name, nvfp4_4over6, "a", a)
    checks.check_blocks(name, "a", a, halves * checks.NVFP4_BLOCK)
    batch, rows, columns = a.shape
    columns = columns // halves
    scale_rows, scale_columns = _layouts.scale_shape(rows, columns // checks.NVFP4_BLOCK, _LAYOUT)
    # The kernel counts its work in groups of eight values.
    checks.check_int32(
        name, "a", batch * rows * (columns // 8), "a number of groups of 8 values of"
    )
    checks.check_int32(
        name, "a", batch * scale_rows * scale_columns, "a padded number of scales of"
    )
    for argument, tensor, dtype, what_to_do in (
        ("mask", mask, torch.int32, "pass one number of rows for each matrix"),
        ("a_global_sf", a_global_sf, torch.float32, "pass one global scale for each matrix"),
    ):
        checks.check_dtype(name, argument, tensor, (dtype,))
        checks.check_shape(name, argument, tensor, (batch,), what_to_do, ", the batch of 'a'")
        checks.check_same_device(name, argument, tensor, "a", a)
    tiles = (batch, scale_rows // 128, scale_columns // _layouts.COLUMN_TILE)
    scale_shape = (*tiles, 32, 4, _layouts.COLUMN_TILE)
    return (
        Layout((batch, rows, columns // 2), torch.uint8, _VALUES_ORDER),
        Layout(scale_shape, torch.float8_e4m3fn, _SCALES_ORDER),
    )


def _silu_and_mul(a: torch.Tensor) -> torch.Tensor:
    """Compute in float32 and round to the dtype of `a`, as `silu_and_mul` of the kernel does.

    Division and exponential have the steps of `__fdividef` and `__expf`. Here each step is rounded
    correctly, on a GPU it is not, so that a result may be the neighbouring value of its dtype.
    """
    gate, up = (scales.flush_subnormals(half) for half in a.to(torch.float32).chunk(2, dim=-1))
    exponential = scales.flush_subnormals(scales.multiply(-gate, _LOG2_OF_E).exp2())
    silu = scales.multiply(gate, scales.reciprocal(1.0 + exponential))
    return scales.multiply(silu, up).to(a.dtype)


@scaled_fp4_grouped_quantize.writes
def _write_experts(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int,
    outputs: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Write the first rows of each matrix; the values of other rows stay as they were.

    So do the scales, unless they have padding columns; then the rest of them is zero.
    """
    factor = scales.flush_subnormals(a_global_sf.reshape(-1, 1, 1))
    quantized = nvfp4.quantize(blocks.split(a, checks.NVFP4_BLOCK), factor, nvfp4_4over6)
    row = torch.arange(a.shape[1], device=a.device).reshape(1, -1, 1)
    written = row < mask.reshape(-1, 1, 1)
    values, block_scales = outputs
    memory = _unpermuted(values, _VALUES_ORDER)
    memory.copy_(torch.where(written, quantized.packed(), memory))
    memory = _unpermuted(block_scales.view(torch.uint8), _SCALES_ORDER)
    batch, row_tiles, column_tiles = memory.shape[:3]
    padded = memory.reshape(batch, 128 * row_tiles, _layouts.COLUMN_TILE * column_tiles)
    linear = _layouts.unswizzle(padded, _LAYOUT).clone()
    rows, columns = quantized.scale_codes.shape[1:]
    if columns % _layouts.COLUMN_TILE != 0:
        linear.zero_()
    held = linear[:, :rows, :columns]
    held.copy_(torch.where(written, quantized.scale_codes, held))
    memory.copy_(_layouts.swizzle(linear, _LAYOUT).reshape(memory.shape))


def _unpermuted(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the view that `permute(order)` turned into `tensor`."""
    return tensor.permute([order.index(dimension) for dimension in range(len(order))])
