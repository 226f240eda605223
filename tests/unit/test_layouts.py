"""Scale-factor layouts, element by element against the formulas of the kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4aot import _layouts
from fp4aot._layouts import SfLayout

SWIZZLED = (SfLayout.layout_128x4, SfLayout.layout_8x4)


def kernel_offset(row: int, column: int, columns: int, layout: SfLayout) -> int:
    """Return the byte a kernel writes: sums of index times stride, as the CUDA source has them."""
    column_tiles = (columns + 3) // 4
    if layout is SfLayout.layout_128x4:
        strides = (column_tiles * 512, 512, 16, 4, 1)
        index = (row // 128, column // 4, row % 32, row % 128 // 32, column % 4)
    else:
        strides = (column_tiles * 32, 32, 4, 1)
        index = (row // 8, column // 4, row % 8, column % 4)
    return sum(i * stride for i, stride in zip(index, strides, strict=True))


def test_values_are_flashinfers():
    assert [(layout.name, int(layout)) for layout in SfLayout] == [
        ("layout_128x4", 0),
        ("layout_8x4", 1),
        ("layout_linear", 2),
    ]


@pytest.mark.parametrize(
    ("flags", "layout"),
    [
        ((True, False), SfLayout.layout_128x4),
        ((True, True), SfLayout.layout_8x4),
        ((False, False), SfLayout.layout_linear),
    ],
)
def test_layout_from_flags(flags, layout):
    assert _layouts.layout_from_flags(*flags) is layout


@pytest.mark.parametrize(
    ("rows", "columns", "layout", "shape"),
    [
        # K = 2880 in blocks of 32 (gpt-oss): 92 columns swizzled, 90 linear.
        (1, 90, SfLayout.layout_128x4, (128, 92)),
        (1, 90, SfLayout.layout_8x4, (8, 92)),
        (1, 90, SfLayout.layout_linear, (1, 90)),
        (0, 90, SfLayout.layout_128x4, (0, 92)),
        (7, 0, SfLayout.layout_8x4, (8, 0)),
        (128, 4, SfLayout.layout_128x4, (128, 4)),
        (129, 5, SfLayout.layout_128x4, (256, 8)),
        (8, 4, SfLayout.layout_8x4, (8, 4)),
        (9, 1, SfLayout.layout_8x4, (16, 4)),
    ],
)
def test_scale_shape(rows, columns, layout, shape):
    assert _layouts.scale_shape(rows, columns, layout) == shape


@pytest.mark.parametrize("layout", SWIZZLED)
@settings(max_examples=60)
@given(rows=st.integers(0, 300), columns=st.integers(0, 21))
def test_swizzle_puts_every_element_where_the_kernel_does(layout, rows, columns):
    padded_rows, padded_columns = _layouts.scale_shape(rows, columns, layout)
    count = padded_rows * padded_columns
    matrix = torch.arange(count).reshape(padded_rows, padded_columns)
    flat = _layouts.swizzle(matrix, layout).reshape(-1).tolist()
    expected = [-1] * count
    for row in range(padded_rows):
        for column in range(padded_columns):
            offset = kernel_offset(row, column, columns, layout)
            expected[offset] = row * padded_columns + column
            assert _layouts.swizzled_offset(row, column, padded_columns, layout) == offset
    assert flat == expected


@pytest.mark.parametrize("layout", SfLayout)
@settings(max_examples=40)
@given(batch=st.integers(0, 3), row_tiles=st.integers(0, 3), column_tiles=st.integers(0, 5))
def test_unswizzle_undoes_swizzle(layout, batch, row_tiles, column_tiles):
    shape = (batch, row_tiles * _layouts.row_tile(layout), column_tiles * 4)
    matrix = torch.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    swizzled = _layouts.swizzle(matrix, layout)
    assert swizzled.is_contiguous()
    assert torch.equal(_layouts.unswizzle(swizzled, layout), matrix)


def test_linear_offset():
    assert _layouts.swizzled_offset(3, 2, 5, SfLayout.layout_linear) == 17


@given(st.lists(st.integers(0, 4), max_size=4))
def test_contiguous_strides_are_torchs(shape):
    assert _layouts.contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


def test_column_major():
    contiguous = torch.empty(3, 64, 32)
    assert not _layouts.is_column_major(contiguous)
    assert _layouts.is_column_major(contiguous.transpose(-2, -1))
    # Contiguous although its rows are next to each other.
    assert not _layouts.is_column_major(torch.empty(16, 1))
    # Transposing does not help: neither order is contiguous.
    assert not _layouts.is_column_major(torch.empty(64, 64)[:, :32].t())
    assert not _layouts.is_column_major(torch.empty(64, 3, 32).permute(1, 2, 0)[:2])
    assert not _layouts.is_column_major(torch.empty(5))


def test_rows_are_all_leading_dimensions():
    assert _layouts.flattened_rows((2, 3, 5, 64)) == 30
    assert _layouts.flattened_rows((0, 5, 64)) == 0
