"""Quantization to FP4 in plain PyTorch: the CPU kernel of `fp4_quantize`, and the tests' oracle.

Each float32 operation of FlashInfer 0.7.2's kernels is repeated in the kernels' order
(`cvt_warp_fp16_to_fp4` and `cvt_warp_fp8_to_fp4` in `quantization_utils.cuh`), with the flushing
of subnormals that `-use_fast_math` implies. The one step that is not the GPU's is the reciprocal:
see `scales.reciprocal` for what may differ, which is the choice between two neighbours at a tie.
Conversion from float16 and bfloat16 to NVFP4 is in `nvfp4.py`.
"""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import blocks, nvfp4, scales
from fp4aot._reference.blocks import Blocks


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    nvfp4_4over6: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to FP4. `fp4aot.fp4_quantize` documents arguments and results.

    A NaN element becomes +6 and does not count for its block's maximum. A block of nothing but NaN
    has a NaN scale (0x7F or 0xFF). A block whose E4M3 scale underflows to zero while its maximum is
    not zero saturates to +-6 (and +6 where an element is zero), as in the kernel.
    """
    _checks.fp4_quantize(
        input,
        global_scale,
        sf_vec_size,
        sf_use_ue8m0,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
        is_global_scale_inversed,
        nvfp4_4over6,
    )
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    rows, columns = _layouts.flattened_rows(matrix.shape), matrix.shape[-1]
    elements = blocks.split(matrix.reshape(rows, columns), sf_vec_size)
    if global_scale is None:
        global_scale = torch.ones(1, dtype=torch.float32, device=input.device)
    factor = row_factors(global_scale, is_global_scale_inversed)
    if input.dtype == torch.float8_e4m3fn:
        quantized = quantize_from_fp8(elements, factor, sf_use_ue8m0)
    elif sf_use_ue8m0:
        quantized = _quantize_to_mxfp4(elements)
    else:
        quantized = nvfp4.quantize(elements, factor, nvfp4_4over6)
    values = quantized.packed().reshape(*matrix.shape[:-1], columns // 2)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    block_scales = arrange_scales(quantized.scale_codes, layout)
    if column_major:
        return values.transpose(-2, -1), block_scales.transpose(-2, -1)
    return values, block_scales


def fp4_quantize_out(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Quantize into the caller's buffers."""
    quantized = fp4_quantize(
        input,
        global_scale,
        sf_vec_size,
        sf_use_ue8m0,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
        is_global_scale_inversed,
        enable_pdl,
        nvfp4_4over6,
    )
    _checks.fp4_quantize_out(
        input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, values, block_scales
    )
    values.copy_(quantized[0])
    block_scales.copy_(quantized[1])


def arrange_scales(scale_codes: torch.Tensor, layout: _layouts.SfLayout) -> torch.Tensor:
    """Pad row-major scale factors `[..., rows, columns]` with zeros and put them in the layout."""
    *batch, rows, columns = scale_codes.shape
    padded_rows, padded_columns = _layouts.scale_shape(rows, columns, layout)
    padded = scale_codes.new_zeros(*batch, padded_rows, padded_columns)
    padded[..., :rows, :columns] = scale_codes
    return _layouts.swizzle(padded, layout)


def row_factors(global_scale: torch.Tensor, inversed: bool = False) -> torch.Tensor:
    """Return the factor of each row, `[M, 1]`, or `[1, 1]` where one serves all rows."""
    factor = scales.flush_subnormals(global_scale.reshape(-1, 1))
    return scales.reciprocal(factor) if inversed else factor


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
