"""Swizzling of separate scale factors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import kernel_offset

from fp4aot._layouts import SfLayout
from fp4aot.operators import interleave


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (33, 7), (129, 8), (2, 5, 3), (3, 128, 4)])
def test_every_element_and_zero_padding(shape, dtype):
    # No value is zero, so that padding shows.
    scales = torch.randint(1, 250, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    experts = shape[0] if len(shape) == 3 else 1
    rows, columns = shape[-2:]
    size = -(-rows // 128) * 128 * (-(-columns // 4) * 4)
    expected = [0] * (experts * size)
    for expert in range(experts):
        for row in range(rows):
            for column in range(columns):
                offset = expert * size + kernel_offset(row, column, columns, SfLayout.layout_128x4)
                index = (expert, row, column) if len(shape) == 3 else (row, column)
                expected[offset] = scales[index].item()
    result = interleave.block_scale_interleave(scales)
    assert result.dtype == dtype
    assert result.dim() == 1
    assert result.tolist() == expected


@pytest.mark.parametrize(("shape", "size"), [((0, 4), 0), ((4, 0), 0), ((0, 3, 4), 0)])
def test_empty(shape, size):
    assert interleave.block_scale_interleave(torch.empty(shape, dtype=torch.uint8)).shape == (size,)


@settings(max_examples=30)
@given(experts=st.integers(0, 3), row_tiles=st.integers(0, 2), column_tiles=st.integers(0, 4))
def test_reverse_undoes_interleave(experts, row_tiles, column_tiles):
    scales = torch.randint(0, 256, (experts, row_tiles * 128, column_tiles * 4)).to(torch.uint8)
    swizzled = interleave.block_scale_interleave(scales).reshape(scales.shape)
    result = interleave.block_scale_interleave_reverse(swizzled)
    assert torch.equal(result, scales)
    assert result.is_contiguous()
    # A new tensor even where there is nothing to reorder: torch forbids aliases of arguments.
    assert result.untyped_storage()._cdata != swizzled.untyped_storage()._cdata


def test_other_strides():
    scales = torch.randint(0, 256, (8, 40)).to(torch.uint8).t()
    expected = interleave.block_scale_interleave(scales.contiguous())
    assert torch.equal(interleave.block_scale_interleave(scales), expected)
    swizzled = torch.randint(0, 256, (4, 128)).to(torch.uint8).t()
    expected = interleave.block_scale_interleave_reverse(swizzled.contiguous())
    assert torch.equal(interleave.block_scale_interleave_reverse(swizzled), expected)


def test_out_forms():
    scales = torch.randint(1, 256, (33, 7)).to(torch.uint8)
    expected = interleave.block_scale_interleave(scales)
    out = torch.full_like(expected, 0x7F)
    assert interleave.block_scale_interleave.out(scales, out=out) is None
    assert torch.equal(out, expected)
    padded = out.reshape(128, 8)
    reversed_out = torch.full_like(padded, 0x7F)
    assert interleave.block_scale_interleave_reverse.out(padded, out=reversed_out) is None
    assert torch.equal(reversed_out[:33, :7], scales)
    assert reversed_out[33:].count_nonzero() == 0
    assert reversed_out[:, 7:].count_nonzero() == 0
