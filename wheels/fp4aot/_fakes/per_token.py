"""Results of `nvfp4_quantize_per_token`."""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._fakes import common


def nvfp4_quantize_per_token(
    input: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    sf_layout: int = 0,
    nvfp4_4over6: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return packed values, block scales and float32 `[M]`."""
    _checks.nvfp4_quantize_per_token(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6)
    value_shape, scale_shape, row_shape = _checks.per_token_shapes(input, sf_layout)
    return (
        common.uint8(value_shape, input),
        common.uint8(scale_shape, input),
        input.new_empty(row_shape, dtype=torch.float32),
    )


def nvfp4_quantize_per_token_out(
    input: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    sf_layout: int = 0,
    nvfp4_4over6: int = 0,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
    per_token_scale: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.nvfp4_quantize_per_token(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6)
    _checks.nvfp4_quantize_per_token_out(input, sf_layout, values, block_scales, per_token_scale)
