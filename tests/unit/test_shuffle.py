"""The row order of TensorRT-LLM weights against the order of FlashInfer's row maps."""

from __future__ import annotations

import pytest
import torch
from test_layouts import kernel_offset

from fp4aot import shuffle
from fp4aot._layouts import SfLayout


def destinations(epilogue_tile_m: int) -> list[int]:
    """Return where each row of a block goes, as `srcToDstBlk16RowMap` and `32RowMap` list it."""
    if epilogue_tile_m % 128 != 0:
        return [row for pair in zip(range(8), range(8, 16), strict=True) for row in pair]
    quarters = zip(range(8), range(8, 16), range(16, 24), range(24, 32), strict=True)
    return [row for quarter in quarters for row in quarter]


def test_the_maps_by_hand():
    assert destinations(64) == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert destinations(128)[:9] == [0, 8, 16, 24, 1, 9, 17, 25, 2]
    assert destinations(128)[-4:] == [7, 15, 23, 31]


def source_rows(rows: int, epilogue_tile_m: int) -> list[int]:
    """Return which row of the input each row of the result is."""
    order = destinations(epilogue_tile_m)
    sources = [0] * rows
    for row in range(rows):
        start = row // len(order) * len(order)
        sources[start + order[row - start]] = row
    return sources


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("tile", [8, 64, 96, 128, 256])
@pytest.mark.parametrize("shape", [(0, 4), (32, 0), (32, 1), (96, 5), (160, 16)])
def test_rows_go_where_the_map_says(shape, tile, dtype):
    tensor = torch.arange(shape[0] * shape[1]).remainder(251).byte().reshape(shape)
    tensor = tensor.to(dtype) if dtype == torch.bfloat16 else tensor.view(dtype)
    result = shuffle.shuffle_matrix_a(tensor, tile)
    assert (result.dtype, result.shape) == (dtype, shape)
    assert result.is_contiguous()
    expected = tensor.view(torch.uint8)[source_rows(shape[0], tile)]
    assert torch.equal(result.view(torch.uint8), expected)
    # A copy: a weight that is changed afterwards does not change it.
    assert tensor.numel() == 0 or result.data_ptr() != tensor.data_ptr()


def test_sixteen_rows_are_one_block():
    tensor = torch.arange(16).byte().reshape(16, 1)
    assert shuffle.shuffle_matrix_a(tensor, 64).flatten().tolist() == source_rows(16, 64)


def test_other_strides():
    tensor = torch.arange(64 * 8).reshape(8, 64).t()
    expected = shuffle.shuffle_matrix_a(tensor.contiguous(), 128)
    assert torch.equal(shuffle.shuffle_matrix_a(tensor, 128), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("columns", [3, 4, 90])
def test_scales_are_shuffled_and_swizzled(columns, tile, dtype):
    tensor = torch.arange(256 * columns).remainder(251).to(torch.uint8)
    tensor = tensor.reshape(256, columns).to(dtype)
    result = shuffle.shuffle_matrix_sf_a(tensor, tile)
    padded = -(-columns // 4) * 4
    expected = torch.zeros(256 * padded, dtype=dtype)
    for row, source in enumerate(source_rows(256, tile)):
        for column in range(columns):
            offset = kernel_offset(row, column, columns, SfLayout.layout_128x4)
            expected[offset] = tensor[source, column]
    assert result.dtype == dtype
    assert torch.equal(result, expected)
    assert torch.equal(shuffle.shuffle_matrix_sf_a(tensor, tile, 32), expected)


BYTES = torch.zeros(128, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("shuffle_matrix_a", (BYTES[:48], 128), r"shape \[48, 4\].*divisible by 32"),
        ("shuffle_matrix_a", (BYTES[:40], 64), r"shape \[40, 4\].*divisible by 16"),
        ("shuffle_matrix_a", (BYTES.unsqueeze(0), 128), r"shape \[1, 128, 4\]; pass a matrix"),
        ("shuffle_matrix_a", (BYTES, 0), "epilogue_tile_m=0"),
        ("shuffle_matrix_sf_a", (BYTES[:96], 128), r"shape \[96, 4\].*divisible by 128"),
        ("shuffle_matrix_sf_a", (BYTES.flatten(), 128), r"shape \[512\]; pass a matrix"),
        ("shuffle_matrix_sf_a", (BYTES.float(), 128), "dtype torch.float32; pass uint8"),
        ("shuffle_matrix_sf_a", (BYTES, 128, 8), "num_elts_per_sf=8; pass 16 or 32"),
        ("shuffle_matrix_sf_a", (BYTES, -128), "epilogue_tile_m=-128"),
    ],
)
def test_refusals(function, arguments, words):
    with pytest.raises(ValueError, match=rf"fp4aot\.{function}: .*{words}"):
        getattr(shuffle, function)(*arguments)


def test_both_trace_with_any_number_of_rows():
    def weights(values, scales):
        return shuffle.shuffle_matrix_a(values, 128), shuffle.shuffle_matrix_sf_a(scales, 128)

    torch._dynamo.reset()
    compiled = torch.compile(weights, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (128, 256, 1024):
        arguments = (torch.arange(rows * 6).byte().view(rows, 6), torch.ones(rows, 5).byte())
        for result, expected in zip(compiled(*arguments), weights(*arguments), strict=True):
            assert torch.equal(result, expected)
