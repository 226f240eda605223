"""Quantization to FP4 in plain PyTorch: the CPU kernel of `fp4_quantize`, and the tests' oracle.

Each float32 operation of FlashInfer 0.7.2's kernels is repeated in the kernels' order
(`cvt_warp_fp16_to_fp4` and `cvt_warp_fp8_to_fp4` in `quantization_utils.cuh`), with the flushing
of subnormals that `-use_fast_math` implies. The one step that is not the GPU's is the reciprocal:
see `scales.reciprocal` for what may differ, which is the choice between two neighbours at a tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import e2m1, scales

# 1 / 6 rounded to float32. E2M1 ends at 6, so a block's scale is its maximum divided by 6.
_RECIPROCAL_OF_6 = 11184811 * 2.0**-26


@dataclass(frozen=True)
class _Blocks:
    """What a kernel computes for all blocks of a matrix.

    Attributes
    ----------
    codes
        E2M1 codes, uint8 `[M, K / block, block]`.
    scale_codes
        E4M3 or UE8M0 bytes, uint8 `[M, K / block]`.
    """

    codes: torch.Tensor
    scale_codes: torch.Tensor


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
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
    )
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    rows, columns = _layouts.flattened_rows(matrix.shape), matrix.shape[-1]
    elements = matrix.reshape(rows, columns // sf_vec_size, sf_vec_size).to(torch.float32)
    factor = _row_factors(global_scale, is_global_scale_inversed, input.device)
    if input.dtype == torch.float8_e4m3fn:
        blocks = _quantize_from_fp8(elements, factor, sf_use_ue8m0)
    elif sf_use_ue8m0:
        blocks = _quantize_to_mxfp4(elements)
    else:
        blocks = _quantize_to_nvfp4(elements, factor)
    values = e2m1.pack(blocks.codes).reshape(*matrix.shape[:-1], columns // 2)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    block_scales = arrange_scales(blocks.scale_codes, layout)
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


def _row_factors(
    global_scale: torch.Tensor | None, inversed: bool, device: torch.device
) -> torch.Tensor:
    """Return the factor of each row, `[M, 1]`, or `[1, 1]` where one serves all rows."""
    if global_scale is None:
        return torch.ones(1, 1, dtype=torch.float32, device=device)
    factor = scales.flush_subnormals(global_scale.reshape(-1, 1))
    return scales.reciprocal(factor) if inversed else factor


def _block_maximum(elements: torch.Tensor) -> torch.Tensor:
    """Return each block's largest magnitude, ignoring NaN as the GPU's packed maximum does.

    `max.f16x2` and `max.bf16x2` return the operand that is a number; only a block of nothing but
    NaN has the maximum NaN.
    """
    is_nan = elements.isnan()
    maximum = elements.abs().masked_fill(is_nan, 0.0).amax(dim=-1)
    return maximum.masked_fill(is_nan.all(dim=-1), float("nan"))


def _scaled_codes(elements: torch.Tensor, output_scale: torch.Tensor) -> torch.Tensor:
    # A product below the normal range rounds to a zero of its sign, flushed or not.
    return e2m1.encode(elements * output_scale.unsqueeze(-1))


def _quantize_to_nvfp4(elements: torch.Tensor, factor: torch.Tensor) -> _Blocks:
    """Quantize float16 or bfloat16 elements with E4M3 scales."""
    elements = scales.flush_subnormals(elements)
    maximum = _block_maximum(elements)
    scale = scales.multiply(scales.multiply(maximum, _RECIPROCAL_OF_6), factor)
    scale_codes = scales.encode_e4m3(scale)
    rounded_scale = scales.decode_e4m3(scale_codes)
    output_scale = scales.reciprocal(scales.multiply(rounded_scale, scales.reciprocal(factor)))
    output_scale = output_scale.masked_fill(maximum == 0.0, 0.0)
    return _Blocks(_scaled_codes(elements, output_scale), scale_codes)


def _quantize_to_mxfp4(elements: torch.Tensor) -> _Blocks:
    """Quantize float16 or bfloat16 elements with UE8M0 scales. No global scale enters."""
    elements = scales.flush_subnormals(elements)
    scale = scales.multiply(_block_maximum(elements), _RECIPROCAL_OF_6)
    scale_codes = scales.encode_ue8m0_round_up(scale)
    output_scale = scales.inverse_power_of_two(scale_codes).masked_fill(scale == 0.0, 0.0)
    return _Blocks(_scaled_codes(elements, output_scale), scale_codes)


def _quantize_from_fp8(elements: torch.Tensor, factor: torch.Tensor, sf_use_ue8m0: bool) -> _Blocks:
    """Quantize float8_e4m3fn elements, which the kernel first widens to float16.

    The widening multiplies by 6 / global scale and rounds to float16, where a large value becomes
    infinity and a small one loses bits: both are the kernel's, and are kept.
    """
    widening = scales.multiply(scales.reciprocal(factor), 6.0).unsqueeze(-1)
    widened = scales.multiply(elements, widening).to(torch.float16).to(torch.float32)
    scale = scales.multiply(scales.multiply(_block_maximum(widened), _RECIPROCAL_OF_6), factor)
    if sf_use_ue8m0:
        scale_codes = scales.encode_ue8m0_round_up(scale)
        rounded_scale = scales.decode_ue8m0(scale_codes)
    else:
        scale_codes = scales.encode_e4m3(scale)
        rounded_scale = scales.decode_e4m3(scale_codes)
    output_scale = scales.multiply(scales.reciprocal(rounded_scale), factor)
    output_scale = output_scale.masked_fill(scale == 0.0, 0.0)
    return _Blocks(_scaled_codes(widened, output_scale), scale_codes)
