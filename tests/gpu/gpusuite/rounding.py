"""What rounding to an output's dtype may cost, and what a tensor core's float32 sum may."""

from __future__ import annotations

import torch

SIGNIFICANT_BITS = {torch.bfloat16: 8, torch.float16: 11}
_HALF_OF_SMALLEST = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}


def half_unit(magnitudes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half a unit in the last place of numbers up to these float64 magnitudes."""
    _, exponent = torch.frexp(magnitudes)
    half = torch.exp2((exponent - 1 - SIGNIFICANT_BITS[dtype]).double())
    return torch.where(magnitudes > 0, half, 0.0).clamp(min=_HALF_OF_SMALLEST[dtype])


def sum_error(length: int) -> float:
    """Return the error of a float32 sum of products, as a share of the sum of their magnitudes.

    A tensor core adds at least sixteen products at once, exactly but for where it aligns them, so
    that there are `length` / 16 roundings or truncations, of four units at the most.
    """
    return -(-length // 16) * 2.0**-21
