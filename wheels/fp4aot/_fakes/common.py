"""Results that several operators return."""

from __future__ import annotations

import torch


def uint8(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return contiguous bytes on the device of `like`."""
    return like.new_empty(shape, dtype=torch.uint8)


def dequantized(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix with two values for each packed byte."""
    return packed.new_empty((packed.shape[0], packed.shape[1] * 2), dtype=dtype)
