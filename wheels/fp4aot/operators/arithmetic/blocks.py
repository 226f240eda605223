"""What the quantizing kernels have in common: blocks of values that share a scale factor."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fp4aot.operators.arithmetic import e2m1, scales

# 1 / 6 rounded to float32. E2M1 ends at 6, so a block's scale is its maximum divided by 6.
_RECIPROCAL_OF_6 = 11184811 * 2.0**-26


class Blocks(NamedTuple):
    """What a kernel computes for all blocks of a tensor.

    Attributes
    ----------
    codes
        E2M1 codes, uint8 `[..., K / block, block]`.
    scale_codes
        E4M3 or UE8M0 bytes, uint8 `[..., K / block]`.
    """

    codes: torch.Tensor
    scale_codes: torch.Tensor

    def packed(self) -> torch.Tensor:
        """Return the codes as `[..., K / 2]` bytes."""
        *batch, blocks, block = self.codes.shape
        return e2m1.pack(self.codes).reshape(*batch, blocks * (block // 2))


def split(tensor: torch.Tensor, block: int) -> torch.Tensor:
    """Return the float32 values of `[..., K]` as `[..., K / block, block]`."""
    *batch, columns = tensor.shape
    return tensor.reshape(*batch, columns // block, block).to(torch.float32)


def maximum_of_pairs(elements: torch.Tensor) -> torch.Tensor:
    """Return each block's largest magnitude as the kernels find it that work on pairs of elements.

    They look at elements in even places and in odd places apart, ignoring NaN, and end with
    ``even > odd ? even : odd`` (`cuda_max` in `cvt_warp_fp16_to_fp4`). So a block whose elements in
    odd places are all NaN has the maximum NaN, and one with nothing but NaN in even places has the
    largest of the odd ones.
    """
    even, odd = maximum(elements[..., 0::2]), maximum(elements[..., 1::2])
    return torch.where(even > odd, even, odd)


def maximum(elements: torch.Tensor) -> torch.Tensor:
    """Return each block's largest magnitude, ignoring NaN as the GPU's packed maximum does.

    `max.f16x2` and `max.bf16x2` return the operand that is a number; only a block of nothing but
    NaN has the maximum NaN.
    """
    is_nan = elements.isnan()
    largest = elements.abs().masked_fill(is_nan, 0.0).amax(dim=-1)
    return largest.masked_fill(is_nan.all(dim=-1), float("nan"))


def sixth(values: torch.Tensor) -> torch.Tensor:
    """Divide by 6 as the kernels do, by a product with its rounded reciprocal."""
    return scales.multiply(values, _RECIPROCAL_OF_6)


def encode(elements: torch.Tensor, output_scale: torch.Tensor) -> torch.Tensor:
    """Return the E2M1 codes of the blocks' elements times `output_scale` `[..., K / block]`."""
    # A product below the normal range rounds to a zero of its sign, flushed or not.
    return e2m1.encode(elements * output_scale.unsqueeze(-1))


def scale(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply each block of `values` `[..., K]` by its factor, `factors` `[..., K / block]`."""
    if values.numel() == 0:
        return values
    block = values.shape[-1] // factors.shape[-1]
    scaled = values.reshape(*factors.shape, block) * factors.unsqueeze(-1)
    return scaled.reshape(values.shape)
