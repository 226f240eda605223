"""New rows in the pages of an NVFP4 KV cache, against scalar arithmetic and a scalar walk."""

from __future__ import annotations

import math

import numpy as np
import pytest
import test_reference_quantize as scalar
import torch
from test_reference_e2m1 import nearest_code
from test_reference_scales import e4m3_code

from fp4aot import kv_cache

F32 = np.float32
PAGE_SIZE, HEADS, POISON = 4, 3, 0xA5
# Three requests, of 7, 1 and 6 tokens; the pages are out of order, and page 4 is nobody's.
KV_INDICES, KV_INDPTR, LAST_PAGE_LEN = [5, 0, 2, 6, 1], [0, 2, 3, 5], [3, 1, 2]
# The rows are not in the order of the requests.
BATCH_INDICES, POSITIONS = [2, 0, 0, 1, 2, 2], [5, 6, 3, 0, 0, 4]


def quantize_block(block: list[float], scale: float) -> tuple[list[int], int]:
    """Do what `nvfp4_append_quantize_block` does, an operation at a time."""
    values = [F32(scalar.ftz(F32(value))) for value in block]
    maximum, factor = scalar.largest(values), F32(scalar.ftz(F32(scale)))
    used = maximum > 0 and factor > 0
    code = e4m3_code(
        float(scalar.multiply(maximum, scalar.invert(scalar.multiply(6, factor)))) if used else 0.0
    )
    narrow = scalar.decode_e4m3(code)
    output = scalar.invert(scalar.multiply(narrow, factor)) if used and narrow > 0 else F32(0)
    with np.errstate(invalid="ignore"):
        return [nearest_code(float(scalar.multiply(value, output))) for value in values], code


def pages(values: int, layout: str, scale_dtype: torch.dtype = torch.uint8):
    """Make poisoned pages and block scales for heads of `values` values."""
    page = (PAGE_SIZE, HEADS) if layout == "NHD" else (HEADS, PAGE_SIZE)
    cache = torch.full((7, *page, values // 2), POISON, dtype=torch.uint8)
    return cache, torch.full((7, *page, values // 16), POISON, dtype=torch.uint8).view(scale_dtype)


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def append(key, value, k, v, scales, layout):
    """Append to two pairs of pages and block scales."""
    kv_cache.nvfp4_quantize_append_paged_kv_cache(
        *(key, value, int32(BATCH_INDICES), int32(POSITIONS), (k[0], v[0]), (k[1], v[1])),
        *(int32(KV_INDICES), int32(KV_INDPTR), int32(LAST_PAGE_LEN), *scales, layout),
    )


def expected_pages(rows, scale, layout):
    """Walk the rows, and return the pages and the block scales that they leave."""
    cache, block_scales = pages(rows.shape[2], layout)
    with np.errstate(all="ignore"):
        for row, (request, position) in enumerate(zip(BATCH_INDICES, POSITIONS, strict=True)):
            page = KV_INDICES[KV_INDPTR[request] + position // PAGE_SIZE]
            for head in range(HEADS):
                entry = position % PAGE_SIZE
                place = (page, entry, head) if layout == "NHD" else (page, head, entry)
                values = rows[row, head].float().tolist()
                for block in range(len(values) // 16):
                    codes, code = quantize_block(values[16 * block : 16 * block + 16], scale)
                    block_scales[(*place, block)] = code
                    for pair in range(8):
                        low, high = codes[2 * pair : 2 * pair + 2]
                        cache[(*place, 8 * block + pair)] = low | high << 4
    return cache, block_scales


def rows_of(dtype: torch.dtype) -> torch.Tensor:
    """Make `[6, heads, 64]`, the corners among them. A block with a NaN has no specified result."""
    return (
        scalar.hostile_matrix(dtype)
        .nan_to_num(nan=-1.5, posinf=math.inf, neginf=-math.inf)[torch.arange(18) % 14]
        .reshape(6, HEADS, 64)
    )


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.0371, 3e4, 1e-6, 2e-38, 1e36])
def test_every_byte_of_the_pages(scale, dtype, layout):
    key = rows_of(dtype)
    value = key.flip(0)
    k, v = pages(64, layout), pages(64, layout, torch.float8_e4m3fn)
    append(key, value, k, v, (scale, 2 * scale), layout)
    for written, rows, factor in ((k, key, scale), (v, value, 2 * scale)):
        for got, expected in zip(written, expected_pages(rows, factor, layout), strict=True):
            assert torch.equal(got.view(torch.uint8), expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_what_was_appended_is_read_back(head_dim, layout):
    """The dequantizer finds the rows, in their places, with the scales that they were given."""
    generator = torch.Generator().manual_seed(head_dim)
    key, value = (
        torch.randn(6, HEADS, head_dim, generator=generator).to(torch.bfloat16) for _ in range(2)
    )
    scales = [float(rows.abs().max()) / (448 * 6) for rows in (key, value)]
    k, v = pages(head_dim, layout), pages(head_dim, layout)
    append(key, value, k, v, scales, layout)
    tables = int32([[5, 0], [2, -1], [6, 1]])
    as_tensors = [torch.tensor([scale]) for scale in scales]
    read = kv_cache.nvfp4_kv_dequantize_paged(
        *((k[0], v[0]), (k[1], v[1]), tables, int32([7, 1, 6]), *as_tensors),
        kv_layout=layout,
        max_seq_len=8,
    )
    for found, rows in zip(read, (key, value), strict=True):
        error = found[BATCH_INDICES, POSITIONS].float() - rows.float()
        assert float(error.norm() / rows.float().norm()) < 0.12


def test_values_are_those_of_the_other_quantizer():
    """`nvfp4_kv_quantize` divides by the same scales, but for rounding at ties."""
    key = torch.randn(6, HEADS, 128, generator=torch.Generator().manual_seed(3)).half()
    scale = float(key.abs().max()) / (448 * 6)
    k = pages(128, "NHD")
    append(key, key, k, pages(128, "NHD"), (scale, scale), "NHD")
    packed, codes = kv_cache.nvfp4_kv_quantize(key.reshape(-1, 128), torch.tensor([scale]))
    places = [
        (KV_INDICES[KV_INDPTR[request] + position // PAGE_SIZE], position % PAGE_SIZE)
        for request, position in zip(BATCH_INDICES, POSITIONS, strict=True)
    ]
    written = torch.stack([k[0][place] for place in places]).reshape(-1, 64)
    scale_codes = torch.stack([k[1][place] for place in places]).reshape(-1, 8)
    assert (scalar.unpacked(written) != scalar.unpacked(packed)).float().mean() < 0.01
    assert (scale_codes != codes).float().mean() < 0.01


def test_halves_of_a_stacked_cache_and_of_a_wide_projection():
    """The caches are the halves of one tensor, and the rows have strides."""
    generator = torch.Generator().manual_seed(5)
    projection = torch.randn(6, 2, HEADS, 64, generator=generator).half()
    key, value = projection[:, 0], projection[:, 1]
    stacked = torch.full((7, 2, PAGE_SIZE, HEADS, 32), POISON, dtype=torch.uint8)
    scales = torch.full((7, 2, PAGE_SIZE, HEADS, 4), POISON, dtype=torch.uint8)
    kv_cache.nvfp4_quantize_append_paged_kv_cache(
        *(key, value, int32(BATCH_INDICES), int32(POSITIONS), stacked, scales),
        *(int32(KV_INDICES), int32(KV_INDPTR), int32(LAST_PAGE_LEN), 0.01, 0.02),
    )
    for half, (rows, scale) in enumerate(((key, 0.01), (value, 0.02))):
        cache, block_scales = expected_pages(rows, scale, "NHD")
        assert torch.equal(stacked[:, half], cache)
        assert torch.equal(scales[:, half], block_scales)


def test_no_rows_change_nothing():
    none = torch.empty(0, HEADS, 64, dtype=torch.float16)
    (k, k_scales), (v, v_scales) = pages(64, "NHD"), pages(64, "NHD")
    kv_cache.nvfp4_quantize_append_paged_kv_cache(
        *(none, none, int32([]), int32([]), (k, v), (k_scales, v_scales)),
        *(int32(KV_INDICES), int32(KV_INDPTR), int32(LAST_PAGE_LEN), 1.0, 1.0),
    )
    for tensor in (k, v, k_scales, v_scales):
        assert bool((tensor == POISON).all())
