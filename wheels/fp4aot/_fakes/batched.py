"""Results of the operators that quantize a batch `[B, M, K]`."""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._fakes import common


def nvfp4_batched_quantize(
    a: torch.Tensor, a_global_sf: torch.Tensor, sf_vec_size: int = 16, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed values, and block scales that are flat for each matrix."""
    _checks.nvfp4_batched_quantize(a, a_global_sf, sf_vec_size, nvfp4_4over6)
    value_shape, scale_shape = _checks.batched_shapes(a)
    return common.uint8(value_shape, a), common.uint8(scale_shape, a)


def nvfp4_batched_quantize_out(
    a: torch.Tensor,
    a_global_sf: torch.Tensor,
    sf_vec_size: int = 16,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.nvfp4_batched_quantize(a, a_global_sf, sf_vec_size, nvfp4_4over6)
    _checks.nvfp4_batched_quantize_out(a, values, block_scales)


def scaled_fp4_grouped_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views with the batch in the last dimension."""
    name = "scaled_fp4_grouped_quantize"
    _checks.quantize_experts(name, a, mask, a_global_sf, nvfp4_4over6, fused=False)
    return _experts(a, fused=False)


def scaled_fp4_grouped_quantize_out(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Validate only."""
    name = "scaled_fp4_grouped_quantize"
    _checks.quantize_experts(name, a, mask, a_global_sf, nvfp4_4over6, fused=False)
    _checks.quantize_experts_out(name, a, values, block_scales, fused=False)


def silu_and_mul_scaled_nvfp4_experts_quantize(
    a: torch.Tensor, mask: torch.Tensor, a_global_sf: torch.Tensor, nvfp4_4over6: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views with the batch in the last dimension."""
    name = "silu_and_mul_scaled_nvfp4_experts_quantize"
    _checks.quantize_experts(name, a, mask, a_global_sf, nvfp4_4over6, fused=True)
    return _experts(a, fused=True)


def silu_and_mul_scaled_nvfp4_experts_quantize_out(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Validate only."""
    name = "silu_and_mul_scaled_nvfp4_experts_quantize"
    _checks.quantize_experts(name, a, mask, a_global_sf, nvfp4_4over6, fused=True)
    _checks.quantize_experts_out(name, a, values, block_scales, fused=True)


def _experts(a: torch.Tensor, fused: bool) -> tuple[torch.Tensor, torch.Tensor]:
    value_shape, scale_shape = _checks.expert_shapes(a, fused)
    values = common.uint8(value_shape, a)
    block_scales = a.new_empty(scale_shape, dtype=torch.float8_e4m3fn)
    return (
        values.permute(_checks.EXPERT_VALUES_ORDER),
        block_scales.permute(_checks.EXPERT_SCALES_ORDER),
    )
