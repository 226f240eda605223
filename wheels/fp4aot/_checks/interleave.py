"""Arguments of `block_scale_interleave` and its reverse."""

from __future__ import annotations

import torch

from fp4aot import _layouts
from fp4aot._checks import common


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> None:
    """Refuse what `block_scale_interleave` cannot reorder."""
    name = "block_scale_interleave"
    common.check_dtype(name, "unswizzled_sf", unswizzled_sf, (torch.uint8, torch.bfloat16))
    common.check_rank(name, "unswizzled_sf", unswizzled_sf, (2, 3))
    count = interleaved_numel(unswizzled_sf)
    common.check_int32(name, "unswizzled_sf", count, "a padded number of scales of")


def block_scale_interleave_out(unswizzled_sf: torch.Tensor, out: torch.Tensor) -> None:
    """Check the argument and the buffer of the `out` form."""
    block_scale_interleave(unswizzled_sf)
    shape = (interleaved_numel(unswizzled_sf),)
    name = "block_scale_interleave"
    common.check_output(
        name, "out", out, shape, unswizzled_sf.dtype, "unswizzled_sf", unswizzled_sf
    )


def interleaved_numel(unswizzled_sf: torch.Tensor) -> int:
    """Return the elements of the padded 128x4 buffer for `[rows, columns]` or a batch of them."""
    rows, columns = _layouts.scale_shape(
        unswizzled_sf.shape[-2], unswizzled_sf.shape[-1], _layouts.SfLayout.layout_128x4
    )
    experts = unswizzled_sf.shape[0] if unswizzled_sf.dim() == 3 else 1
    return experts * rows * columns


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> None:
    """Refuse what `block_scale_interleave_reverse` cannot reorder."""
    name = "block_scale_interleave_reverse"
    common.check_dtype(name, "interleaved_sf", interleaved_sf, (torch.uint8,))
    common.check_rank(name, "interleaved_sf", interleaved_sf, (2, 3))
    if interleaved_sf.shape[-2] % 128 != 0 or interleaved_sf.shape[-1] % 4 != 0:
        common.fail(
            name,
            "interleaved_sf",
            f"shape {common.shape_text(interleaved_sf)}",
            "rows divisible by 128 and columns divisible by 4",
            "pass the padded shape that block_scale_interleave produced",
        )
    common.check_int32(name, "interleaved_sf", interleaved_sf.numel(), "a number of scales of")


def block_scale_interleave_reverse_out(interleaved_sf: torch.Tensor, out: torch.Tensor) -> None:
    """Check the argument and the buffer of the `out` form."""
    block_scale_interleave_reverse(interleaved_sf)
    name = "block_scale_interleave_reverse"
    shape = interleaved_sf.shape
    common.check_output(name, "out", out, shape, torch.uint8, "interleaved_sf", interleaved_sf)
