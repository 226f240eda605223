"""Swizzling of separate scale factors: `block_scale_interleave` and its reverse.

Layout and padding are those of `BlockScaleInterleave` and `BlockScaleInterleaveReverse` in
FlashInfer 0.7.2's `fp4Op.cpp`.
"""

from __future__ import annotations

import math

import torch

from fp4aot import _layouts
from fp4aot.operators.argument_checks import check_dtype, check_int32, check_rank, fail_shape
from fp4aot.operators.arithmetic import scales
from fp4aot.operators.structured import Layout, operator

_LAYOUT = _layouts.SfLayout.layout_128x4


@operator
def block_scale_interleave(unswizzled_sf: torch.Tensor) -> Layout:
    """Refuse what cannot be reordered; return the layout of the flat, padded buffer."""
    name, argument = "block_scale_interleave", "unswizzled_sf"
    check_dtype(name, argument, unswizzled_sf, (torch.uint8, torch.bfloat16))
    check_rank(name, argument, unswizzled_sf, (2, 3))
    *batch, rows, columns = unswizzled_sf.shape
    count = math.prod((*batch, *_layouts.scale_shape(rows, columns, _LAYOUT)))
    check_int32(name, argument, count, "a padded number of scales of")
    return Layout((count,), unswizzled_sf.dtype)


@block_scale_interleave.reference
def _(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    return scales.arrange(unswizzled_sf, _LAYOUT).reshape(-1)


@operator
def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> Layout:
    """Refuse what cannot be reordered; the result keeps the padding."""
    name, argument = "block_scale_interleave_reverse", "interleaved_sf"
    check_dtype(name, argument, interleaved_sf, (torch.uint8,))
    check_rank(name, argument, interleaved_sf, (2, 3))
    if interleaved_sf.shape[-2] % 128 != 0 or interleaved_sf.shape[-1] % 4 != 0:
        expected = "rows divisible by 128 and columns divisible by 4"
        what_to_do = "pass the padded shape that block_scale_interleave produced"
        fail_shape(name, argument, interleaved_sf, expected, what_to_do)
    check_int32(name, argument, interleaved_sf.numel(), "a number of scales of")
    return Layout(tuple(interleaved_sf.shape), torch.uint8)


@block_scale_interleave_reverse.reference
def _(interleaved_sf: torch.Tensor) -> torch.Tensor:
    linear = _layouts.unswizzle(interleaved_sf, _LAYOUT)
    # An empty buffer has nothing to reorder, and what comes back may be the argument itself.
    return linear.clone() if linear.numel() == 0 else linear
