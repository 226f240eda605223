"""Ranges of values, and the scales that make them NVFP4's."""

from __future__ import annotations

import torch

BLOCK = 16
"""Values that share an E4M3 block scale."""

MULTIPLE = 32
"""What the sizes of a product have to be multiples of."""

# The largest E4M3 block scale times the largest E2M1 value.
_RANGE = 448.0 * 6.0
_SMALLEST_NORMAL = 2.0**-126


def amax_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude as a float32 scalar, 0 for an empty tensor."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    return tensor.abs().amax().to(torch.float32)


def scale_of(amax: torch.Tensor) -> torch.Tensor:
    """Return the scale with which values up to `amax` fill the range."""
    return usable(amax / _RANGE)


def usable(scale: torch.Tensor) -> torch.Tensor:
    """Replace a scale that has no reciprocal by 1.

    That of a layer whose weight is zero, or that was calibrated with nothing but zeros: 1 lets
    inputs up to 2688 pass.
    """
    return torch.where(scale < _SMALLEST_NORMAL, 1.0, scale)
