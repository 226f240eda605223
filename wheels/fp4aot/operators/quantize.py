"""Quantization to FP4: `fp4_quantize`.

Each float32 operation of FlashInfer 0.7.2's kernels is repeated in the kernels' order
(`cvt_warp_fp16_to_fp4` and `cvt_warp_fp8_to_fp4` in `quantization_utils.cuh`), with the flushing
of subnormals that `-use_fast_math` implies. The one step that is not the GPU's is the reciprocal:
see `scales.reciprocal` for what may differ, which is the choice between two neighbours at a tie.
Conversion from float16 and bfloat16 to NVFP4 is in `arithmetic/nvfp4.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _layouts, _recipes
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, nvfp4, scales
from fp4aot.operators.arithmetic.blocks import Blocks
from fp4aot.operators.structured import Layout, operator


@operator
def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
    is_global_scale_inversed: bool,
    enable_pdl: bool | None,
    nvfp4_4over6: int,
) -> tuple[Layout, Layout]:
    """Refuse what cannot be quantized; packed values and scales are transposed as the input is."""
    name = "fp4_quantize"
    checks.check_dtype(name, "input", input, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    if input.dim() < 2:
        what_to_do = "use input.unsqueeze(0) for a vector"
        checks.fail_shape(name, "input", input, "two or more dimensions", what_to_do)
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        got = f"{sf_vec_size} with sf_use_ue8m0={sf_use_ue8m0}"
        expected = "16 with sf_use_ue8m0=False (NVFP4) or 32 with sf_use_ue8m0=True (MXFP4)"
        checks.fail(name, "sf_vec_size", got, expected, "choose one of the two formats")
    checks.check_layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    checks.check_recipe(name, nvfp4_4over6, "input", input)
    if nvfp4_4over6 != _recipes.STANDARD and sf_use_ue8m0:
        got, expected = f"{nvfp4_4over6} with sf_use_ue8m0=True", "0 (MXFP4 has no other recipe)"
        checks.fail(name, "nvfp4_4over6", got, expected, "pass the standard recipe")
    column_major = _layouts.is_column_major(input)
    *batch, rows, columns = input.transpose(-2, -1).shape if column_major else input.shape
    all_rows = _layouts.flattened_rows((*batch, rows, columns))
    if columns % sf_vec_size != 0:
        dimension = "contiguous second-to-last" if column_major else "last"
        note = f", where {columns} values are quantized along the {dimension} dimension"
        expected = f"a multiple of {sf_vec_size}"
        checks.fail_shape(name, "input", input, expected, "pad that dimension", note)
    checks.check_int32(name, "input", all_rows, "a number of rows of")
    checks.check_int32(name, "input", columns, "a number of columns of")
    if global_scale is not None:
        checks.check_row_scales(name, "global_scale", global_scale, all_rows, "input", input)
    elif not sf_use_ue8m0:
        expected = "a float32 tensor (NVFP4 needs one)"
        what_to_do = "pass 448 * 6 / input.abs().max() as a tensor of shape [1]"
        checks.fail(name, "global_scale", "None", expected, what_to_do)
    elif is_global_scale_inversed:
        got, what_to_do = "True without a global_scale", "pass the global_scale that is inverted"
        checks.fail(name, "is_global_scale_inversed", got, "False", what_to_do)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    scale_shape = _layouts.scale_shape(all_rows, columns // sf_vec_size, layout)
    last = len(batch)
    return (
        Layout(
            (*batch, rows, columns // 2),
            torch.uint8,
            (*range(last), last + 1, last) if column_major else None,
        ),
        Layout(scale_shape, torch.uint8, (1, 0) if column_major else None),
    )


@fp4_quantize.reference
def _(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    # A NaN element becomes +6 and does not count for its block's maximum. A block of nothing but
    # NaN has a NaN scale (0x7F or 0xFF). A block whose E4M3 scale underflows to zero while its
    # maximum is not zero saturates to +-6 (and +6 where an element is zero), as in the kernel.
    given, global_scale, sf_vec_size, sf_use_ue8m0, *layout_flags = arguments[:6]
    is_global_scale_inversed, _, nvfp4_4over6 = arguments[6:]
    column_major = _layouts.is_column_major(given)
    matrix = given.transpose(-2, -1) if column_major else given
    rows, columns = _layouts.flattened_rows(matrix.shape), matrix.shape[-1]
    elements = blocks.split(matrix.reshape(rows, columns), sf_vec_size)
    if global_scale is None:
        global_scale = torch.ones(1, dtype=torch.float32, device=given.device)
    factor = scales.row_factors(global_scale, is_global_scale_inversed)
    if given.dtype == torch.float8_e4m3fn:
        quantized = quantize_from_fp8(elements, factor, sf_use_ue8m0)
    elif sf_use_ue8m0:
        quantized = _quantize_to_mxfp4(elements)
    else:
        quantized = nvfp4.quantize(elements, factor, nvfp4_4over6)
    values = quantized.packed().reshape(*matrix.shape[:-1], columns // 2)
    layout = _layouts.layout_from_flags(*layout_flags)
    block_scales = scales.arrange(quantized.scale_codes, layout)
    if column_major:
        return values.transpose(-2, -1), block_scales.transpose(-2, -1)
    return values, block_scales


def _quantize_to_mxfp4(elements: torch.Tensor) -> Blocks:
    """Quantize float16 or bfloat16 elements with UE8M0 scales. No global scale enters."""
    elements = scales.flush_subnormals(elements)
    scale = blocks.sixth(blocks.maximum_of_pairs(elements))
    scale_codes = scales.encode_ue8m0_round_up(scale)
    output_scale = scales.inverse_power_of_two(scale_codes).masked_fill(scale == 0.0, 0.0)
    return Blocks(blocks.encode(elements, output_scale), scale_codes)


def quantize_from_fp8(
    elements: torch.Tensor, factor: torch.Tensor, sf_use_ue8m0: bool = False
) -> Blocks:
    """Quantize float8_e4m3fn elements, which the kernel first widens to float16.

    The widening multiplies by 6 / global scale and rounds to float16, where a large value becomes
    infinity and a small one loses bits: both are the kernel's, and are kept.
    """
    widening = scales.multiply(scales.reciprocal(factor), 6.0).unsqueeze(-1)
    widened = scales.multiply(elements, widening).to(torch.float16).to(torch.float32)
    scale = scales.multiply(blocks.sixth(blocks.maximum(widened)), factor)
    if sf_use_ue8m0:
        scale_codes = scales.encode_ue8m0_round_up(scale)
        rounded_scale = scales.decode_ue8m0(scale_codes)
    else:
        scale_codes = scales.encode_e4m3(scale)
        rounded_scale = scales.decode_e4m3(scale_codes)
    output_scale = scales.multiply(scales.reciprocal(rounded_scale), factor)
    output_scale = output_scale.masked_fill(scale == 0.0, 0.0)
    return Blocks(blocks.encode(widened, output_scale), scale_codes)
