"""How block scale factors lie in memory: padding, sizes, and the order of the swizzled layouts.

The formulas restate `get_sf_out_offset_128x4` and `get_sf_out_offset_8x4` of FlashInfer 0.7.2
(`quantization_utils.cuh`). Sizes may be symbolic while torch traces, so everything here is
arithmetic that a `torch.SymInt` can follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import torch

COLUMN_TILE = 4
"""Both swizzled layouts group four scale factors along a row."""


class SfLayout(IntEnum):
    """Layout of the scale factors, with FlashInfer's names and values.

    Attributes
    ----------
    layout_128x4
        Swizzled, rows padded to 128 and columns to 4. What the FP4 GEMMs read.
    layout_8x4
        Swizzled, rows padded to 8 and columns to 4. For GEMMs with few rows.
    layout_linear
        Row-major, no padding.
    """

    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return (value + multiple - 1) // multiple * multiple


def layout_from_flags(is_sf_swizzled_layout: bool, is_sf_8x4_layout: bool) -> SfLayout:
    """Translate the two flags of `fp4_quantize` into the layout they select."""
    if not is_sf_swizzled_layout:
        return SfLayout.layout_linear
    return SfLayout.layout_8x4 if is_sf_8x4_layout else SfLayout.layout_128x4


def row_tile(layout: SfLayout) -> int:
    """Return the number of rows that the layout pads to."""
    if layout is SfLayout.layout_128x4:
        return 128
    return 8 if layout is SfLayout.layout_8x4 else 1


def scale_shape(rows: int, columns: int, layout: SfLayout) -> tuple[int, int]:
    """Return the shape of the buffer that holds `rows` x `columns` scale factors."""
    if layout is SfLayout.layout_linear:
        return rows, columns
    return round_up(rows, row_tile(layout)), round_up(columns, COLUMN_TILE)


def swizzled_offset(row: int, column: int, padded_columns: int, layout: SfLayout) -> int:
    """Return where the scale factor of (`row`, `column`) lies in the flat buffer.

    Parameters
    ----------
    row, column
        Position in the matrix of scale factors.
    padded_columns
        Columns of the buffer, as `scale_shape` gives them.
    layout
        Any layout; for the linear one this is the row-major offset.
    """
    if layout is SfLayout.layout_linear:
        return row * padded_columns + column
    tile_rows = row_tile(layout)
    tile_size = tile_rows * COLUMN_TILE
    tile = row // tile_rows * (padded_columns // COLUMN_TILE) + column // COLUMN_TILE
    inner_row = row % tile_rows
    if layout is SfLayout.layout_128x4:
        # Inside a tile, rows r, r + 32, r + 64 and r + 96 are neighbours.
        inner_row = inner_row % 32 * 4 + inner_row // 32
    return tile * tile_size + inner_row * COLUMN_TILE + column % COLUMN_TILE


def swizzle(padded: torch.Tensor, layout: SfLayout) -> torch.Tensor:
    """Reorder a row-major matrix of scale factors into the layout's order.

    Parameters
    ----------
    padded
        `[..., rows, columns]`, already padded to the layout's tile.
    layout
        The order to produce.

    Returns
    -------
    torch.Tensor
        Same shape and dtype, contiguous; its memory holds the factors in the layout's order.
    """
    *batch, rows, columns = padded.shape
    column_tiles = columns // COLUMN_TILE
    if layout is SfLayout.layout_128x4:
        tiles = padded.reshape(*batch, rows // 128, 4, 32, column_tiles, COLUMN_TILE)
        ordered = tiles.transpose(-4, -2)
    elif layout is SfLayout.layout_8x4:
        tiles = padded.reshape(*batch, rows // 8, 8, column_tiles, COLUMN_TILE)
        ordered = tiles.transpose(-3, -2)
    else:
        ordered = padded
    return ordered.reshape(*batch, rows, columns).contiguous()


def unswizzle(buffer: torch.Tensor, layout: SfLayout) -> torch.Tensor:
    """Undo `swizzle`: return the scale factors in row-major order, padding included.

    Parameters
    ----------
    buffer
        `[..., rows, columns]` with the padded sizes; its memory is in the layout's order.
    layout
        The order that the memory is in.
    """
    *batch, rows, columns = buffer.shape
    column_tiles = columns // COLUMN_TILE
    if layout is SfLayout.layout_128x4:
        tiles = buffer.reshape(*batch, rows // 128, column_tiles, 32, 4, COLUMN_TILE)
        ordered = tiles.transpose(-4, -2)
    elif layout is SfLayout.layout_8x4:
        tiles = buffer.reshape(*batch, rows // 8, column_tiles, 8, COLUMN_TILE)
        ordered = tiles.transpose(-3, -2)
    else:
        ordered = buffer
    return ordered.reshape(*batch, rows, columns).contiguous()


def flattened_rows(shape: Sequence[int]) -> int:
    """Return the rows of the matrix that quantization sees: all leading dimensions together."""
    return math.prod(shape[:-1])


def is_column_major(tensor: torch.Tensor) -> bool:
    """Say whether the tensor is the transpose of a contiguous one, and not contiguous itself.

    FlashInfer quantizes such an input along its other dimension, the one with stride 1. A tensor
    with one column has stride 1 in both dimensions and is contiguous: that is not column major.
    """
    return (
        tensor.dim() >= 2
        and tensor.stride(-2) == 1
        and not tensor.is_contiguous()
        and tensor.transpose(-2, -1).is_contiguous()
    )


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides torch gives a new tensor of this shape."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        # An empty dimension counts as one, as in torch.
        step = step * (size if size > 1 else 1)
    return tuple(strides)
