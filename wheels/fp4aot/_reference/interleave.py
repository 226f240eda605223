"""Swizzling of separate scale factors in plain PyTorch: `block_scale_interleave` and its reverse.

Layout and padding are those of `BlockScaleInterleave` and `BlockScaleInterleaveReverse` in
FlashInfer 0.7.2's `fp4Op.cpp`.
"""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference.quantize import arrange_scales


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    """Pad and swizzle row-major scale factors into one flat 128x4 buffer."""
    _checks.block_scale_interleave(unswizzled_sf)
    return arrange_scales(unswizzled_sf, _layouts.SfLayout.layout_128x4).reshape(-1)


def block_scale_interleave_out(unswizzled_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Pad and swizzle into the caller's buffer."""
    _checks.block_scale_interleave_out(unswizzled_sf, out)
    out.copy_(block_scale_interleave(unswizzled_sf))


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> torch.Tensor:
    """Bring a swizzled 128x4 buffer back to row-major order, padding included."""
    _checks.block_scale_interleave_reverse(interleaved_sf)
    linear = _layouts.unswizzle(interleaved_sf, _layouts.SfLayout.layout_128x4)
    # An empty buffer has nothing to reorder, and what comes back may be the argument itself.
    return linear.clone() if linear.numel() == 0 else linear


def block_scale_interleave_reverse_out(interleaved_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Bring a swizzled buffer back to row-major order in the caller's buffer."""
    _checks.block_scale_interleave_reverse_out(interleaved_sf, out)
    out.copy_(block_scale_interleave_reverse(interleaved_sf))
