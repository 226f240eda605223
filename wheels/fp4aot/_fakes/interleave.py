"""Results of `block_scale_interleave` and its reverse."""

from __future__ import annotations

import torch

from fp4aot import _checks


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    """Return the flat padded buffer."""
    _checks.block_scale_interleave(unswizzled_sf)
    return unswizzled_sf.new_empty((_checks.interleaved_numel(unswizzled_sf),))


def block_scale_interleave_out(unswizzled_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Validate only."""
    _checks.block_scale_interleave_out(unswizzled_sf, out)


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same shape."""
    _checks.block_scale_interleave_reverse(interleaved_sf)
    return interleaved_sf.new_empty(interleaved_sf.shape)


def block_scale_interleave_reverse_out(interleaved_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Validate only."""
    _checks.block_scale_interleave_reverse_out(interleaved_sf, out)
