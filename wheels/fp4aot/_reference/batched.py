"""NVFP4 quantization of a batch `[B, M, K]` in plain PyTorch.

The expert operators repeat `cvt_fp16_to_fp4_expert` of FlashInfer 0.7.2's `quantization.cuh`:
matrix b has `mask[b]` rows (none if negative, all if more than M), and nothing is written for the
others, nor for the padding of the scales. Unlike FlashInfer's, the operators clear the scales first
if they have padding columns: those meet real rows in a GEMM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import blocks, nvfp4, scales
from fp4aot._reference.quantize import arrange_scales, quantize_from_fp8, row_factors

_LAYOUT = _layouts.SfLayout.layout_128x4
_GROUPED = "scaled_fp4_grouped_quantize"
_FUSED = "silu_and_mul_scaled_nvfp4_experts_quantize"
# log2(e) rounded to float32.
_LOG2_OF_E = 12102203 * 2.0**-23


def nvfp4_batched_quantize(
    a: torch.Tensor, a_global_sf: torch.Tensor, sf_vec_size: int = 16, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each matrix; a row of the batch's matrices may have a global scale of its own."""
    _checks.nvfp4_batched_quantize(a, a_global_sf, sf_vec_size, nvfp4_4over6)
    elements = blocks.split(a, sf_vec_size)
    factor = row_factors(a_global_sf)
    if a.dtype == torch.float8_e4m3fn:
        quantized = quantize_from_fp8(elements, factor)
    else:
        quantized = nvfp4.quantize(elements, factor, nvfp4_4over6)
    _, scale_shape = _checks.batched_shapes(a)
    return quantized.packed(), arrange_scales(quantized.scale_codes, _LAYOUT).reshape(scale_shape)


def nvfp4_batched_quantize_out(
    a: torch.Tensor,
    a_global_sf: torch.Tensor,
    sf_vec_size: int = 16,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Quantize into the caller's buffers."""
    quantized = nvfp4_batched_quantize(a, a_global_sf, sf_vec_size, nvfp4_4over6)
    _checks.nvfp4_batched_quantize_out(a, values, block_scales)
    values.copy_(quantized[0])
    block_scales.copy_(quantized[1])


def scaled_fp4_grouped_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize the first rows of each matrix; everything else is zero."""
    _checks.quantize_experts(_GROUPED, a, mask, a_global_sf, nvfp4_4over6, fused=False)
    return _zeros_and(_quantize_experts(a, mask, a_global_sf, nvfp4_4over6), a, fused=False)


def scaled_fp4_grouped_quantize_out(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Quantize the first rows of each matrix; the values of other rows stay as they were.

    So do the scales, unless they have padding columns; then the rest of them is zero.
    """
    _checks.quantize_experts(_GROUPED, a, mask, a_global_sf, nvfp4_4over6, fused=False)
    _checks.quantize_experts_out(_GROUPED, a, values, block_scales, fused=False)
    _write(_quantize_experts(a, mask, a_global_sf, nvfp4_4over6), values, block_scales)


def silu_and_mul_scaled_nvfp4_experts_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same to SiLU of the first half of each row times its second half."""
    _checks.quantize_experts(_FUSED, a, mask, a_global_sf, nvfp4_4over6, fused=True)
    activated = _silu_and_mul(a)
    return _zeros_and(_quantize_experts(activated, mask, a_global_sf, nvfp4_4over6), a, fused=True)


def silu_and_mul_scaled_nvfp4_experts_quantize_out(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Do the same to SiLU of the first half of each row times its second half."""
    _checks.quantize_experts(_FUSED, a, mask, a_global_sf, nvfp4_4over6, fused=True)
    _checks.quantize_experts_out(_FUSED, a, values, block_scales, fused=True)
    activated = _silu_and_mul(a)
    _write(_quantize_experts(activated, mask, a_global_sf, nvfp4_4over6), values, block_scales)


@dataclass(frozen=True)
class _Experts:
    """Every row, quantized, and which rows count.

    Attributes
    ----------
    values
        `[B, M, K / 2]`.
    scale_codes
        `[B, M, K / 16]`, row-major.
    written
        `[B, M, 1]`: whether the row is one that the mask counts.
    """

    values: torch.Tensor
    scale_codes: torch.Tensor
    written: torch.Tensor


def _quantize_experts(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, recipe: int
) -> _Experts:
    factor = scales.flush_subnormals(a_global_sf.reshape(-1, 1, 1))
    quantized = nvfp4.quantize(blocks.split(a, 16), factor, recipe)
    row = torch.arange(a.shape[1], device=a.device).reshape(1, -1, 1)
    return _Experts(quantized.packed(), quantized.scale_codes, row < mask.reshape(-1, 1, 1))


def _silu_and_mul(a: torch.Tensor) -> torch.Tensor:
    """Compute in float32 and round to the dtype of `a`, as `silu_and_mul` of the kernel does.

    Division and exponential have the steps of `__fdividef` and `__expf`. Here each step is rounded
    correctly, on a GPU it is not, so that a result may be the neighbouring value of its dtype.
    """
    gate, up = (scales.flush_subnormals(half) for half in a.to(torch.float32).chunk(2, dim=-1))
    exponential = scales.flush_subnormals(scales.multiply(-gate, _LOG2_OF_E).exp2())
    silu = scales.multiply(gate, scales.reciprocal(1.0 + exponential))
    return scales.multiply(silu, up).to(a.dtype)


def _zeros_and(
    experts: _Experts, a: torch.Tensor, fused: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new results with the rows that the mask counts; a GPU leaves the rest unset."""
    value_shape, scale_shape = _checks.expert_shapes(a, fused)
    values = torch.zeros(value_shape, dtype=torch.uint8, device=a.device)
    block_scales = torch.zeros(scale_shape, dtype=torch.uint8, device=a.device)
    results = (
        values.permute(_checks.EXPERT_VALUES_ORDER),
        block_scales.view(torch.float8_e4m3fn).permute(_checks.EXPERT_SCALES_ORDER),
    )
    _write(experts, *results)
    return results


def _write(experts: _Experts, values: torch.Tensor, block_scales: torch.Tensor) -> None:
    """Write the rows that the mask counts to buffers with the batch in the last dimension."""
    memory = _unpermuted(values, _checks.EXPERT_VALUES_ORDER)
    memory.copy_(torch.where(experts.written, experts.values, memory))
    memory = _unpermuted(block_scales.view(torch.uint8), _checks.EXPERT_SCALES_ORDER)
    batch, row_tiles, column_tiles = memory.shape[:3]
    padded = memory.reshape(batch, 128 * row_tiles, _layouts.COLUMN_TILE * column_tiles)
    linear = _layouts.unswizzle(padded, _LAYOUT).clone()
    rows, columns = experts.scale_codes.shape[1:]
    if columns % _layouts.COLUMN_TILE != 0:
        linear.zero_()
    held = linear[:, :rows, :columns]
    held.copy_(torch.where(experts.written, experts.scale_codes, held))
    memory.copy_(_layouts.swizzle(linear, _LAYOUT).reshape(memory.shape))


def _unpermuted(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the view that `permute(order)` turned into `tensor`."""
    return tensor.permute([order.index(dimension) for dimension in range(len(order))])
