"""NVFP4 quantization with a scale of its own for each row, in plain PyTorch.

The arithmetic is that of `nvfp4QuantAndPerTokenScaleKernel` in FlashInfer 0.7.2's
`quantization.cuh`. As there, the index does not move rows: it says which rows of the input go to
the same rows of the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import blocks, nvfp4, scales
from fp4aot._reference.quantize import arrange_scales


@dataclass(frozen=True)
class _Rows:
    """Every row, quantized, with its block scales in row-major order."""

    values: torch.Tensor
    scale_codes: torch.Tensor
    per_token_scale: torch.Tensor


def nvfp4_quantize_per_token(
    input: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    sf_layout: int = 0,
    nvfp4_4over6: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize the rows that the index names; the others, and padding, are zero."""
    _checks.nvfp4_quantize_per_token(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6)
    quantized = _quantize_rows(input, scale_inv, nvfp4_4over6)
    named = _named_rows(expanded_idx_to_permuted_idx, input)
    return (
        quantized.values.masked_fill(~named.unsqueeze(1), 0),
        arrange_scales(
            quantized.scale_codes.masked_fill(~named.unsqueeze(1), 0),
            _layouts.SfLayout(sf_layout),
        ),
        quantized.per_token_scale.masked_fill(~named, 0.0),
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
    """Quantize into the caller's buffers.

    Rows that an index does not name keep what the buffers held, and with an index so does the
    padding of the scales. Without one, padding is zero.
    """
    _checks.nvfp4_quantize_per_token(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6)
    _checks.nvfp4_quantize_per_token_out(input, sf_layout, values, block_scales, per_token_scale)
    quantized = _quantize_rows(input, scale_inv, nvfp4_4over6)
    named = _named_rows(expanded_idx_to_permuted_idx, input)
    layout = _layouts.SfLayout(sf_layout)
    values.copy_(torch.where(named.unsqueeze(1), quantized.values, values))
    linear = _layouts.unswizzle(block_scales, layout).clone()
    if expanded_idx_to_permuted_idx is None:
        linear.zero_()
    rows, columns = quantized.scale_codes.shape
    held = linear[:rows, :columns]
    held.copy_(torch.where(named.unsqueeze(1), quantized.scale_codes, held))
    block_scales.copy_(_layouts.swizzle(linear, layout))
    per_token_scale.copy_(torch.where(named, quantized.per_token_scale, per_token_scale))


def _quantize_rows(input: torch.Tensor, scale_inv: float, recipe: int) -> _Rows:
    elements = scales.flush_subnormals(blocks.split(input, 16))
    row_maximum = _row_maximum(elements)
    base = torch.tensor(scale_inv, dtype=torch.float32, device=input.device)
    per_token_scale = scales.multiply(row_maximum, scales.flush_subnormals(base))
    factor = scales.reciprocal(per_token_scale).masked_fill(per_token_scale == 0.0, 0.0)
    quantized = nvfp4.quantize(elements, factor, recipe, row_maximum)
    return _Rows(quantized.packed(), quantized.scale_codes, per_token_scale.squeeze(1))


def _row_maximum(elements: torch.Tensor) -> torch.Tensor:
    """Return each row's largest magnitude, `[M, 1]`; zero for a row of nothing but NaN."""
    if elements.shape[1] == 0:
        return elements.new_zeros(elements.shape[0], 1)
    return elements.abs().masked_fill(elements.isnan(), 0.0).amax(dim=(1, 2)).unsqueeze(1)


def _named_rows(index: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    """Say which rows to quantize, `[M]`: those that the first M entries of the index name."""
    rows = input.shape[0]
    if index is None:
        return torch.ones(rows, dtype=torch.bool, device=input.device)
    entries = index[:rows].to(torch.int64)
    outside = entries[entries >= rows]
    if outside.numel() > 0:
        # On a GPU this is undefined: checking would mean waiting for the device.
        _checks.fail(
            "nvfp4_quantize_per_token",
            "expanded_idx_to_permuted_idx",
            f"row number {int(outside[0])}",
            f"row numbers below {rows}, the rows of 'input'",
            "pass a negative number for a row to leave out",
        )
    named = torch.zeros(rows, dtype=torch.bool, device=input.device)
    named[entries[entries >= 0]] = True
    return named
