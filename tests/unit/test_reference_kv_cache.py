"""The KV cache operators against scalar arithmetic and a scalar walk of the pages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reference_dequantize import e4m3, element
from test_reference_e2m1 import nearest_code
from test_reference_quantize import (
    SIXTH,
    decode_e4m3,
    hostile_matrix,
    invert,
    largest,
    multiply,
    unpacked,
)
from test_reference_scales import e4m3_code

from fp4aot.operators import nvfp4_kv_cache as kv_cache
from fp4aot.operators.quantize import fp4_quantize

F32 = np.float32
OUTPUTS = (torch.float16, torch.bfloat16)


def ftz(value: np.float32) -> np.float32:
    return F32(math.copysign(0.0, value)) if abs(value) < F32(2.0**-126) else value


def round_to(value: np.float32, dtype: torch.dtype) -> float:
    if dtype == torch.float16:
        return float(np.float16(value))
    if math.isnan(value):
        return math.nan
    bits = int(np.array([value], dtype=np.float32).view(np.uint32)[0])
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.array([rounded], dtype=np.uint32).view(np.float32)[0])


def dequantize_row(packed: list[int], codes: list[int], scale: float, dtype: torch.dtype):
    factor = ftz(F32(scale))
    with np.errstate(all="ignore"):
        return [
            round_to(
                ftz(F32(F32(element(packed[k // 2], k % 2) * e4m3(codes[k // 16])) * factor)), dtype
            )
            for k in range(2 * len(packed))
        ]


def assert_same(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype == expected.dtype
    assert torch.equal(result.isnan(), expected.isnan())
    number = ~expected.isnan()
    assert torch.equal(result[number].view(torch.int16), expected[number].view(torch.int16))


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("scale", [1.0, 0.37, 3e4, 1e-6, 2e-38, 1e-40, 1e36, math.inf])
def test_every_scale_code(scale, dtype):
    packed = torch.randint(0, 256, (32, 64), generator=torch.Generator().manual_seed(1)).byte()
    codes = torch.arange(256).byte().reshape(32, 8)
    global_scale = torch.tensor([scale])
    expected = torch.tensor(
        [
            dequantize_row(row, row_codes, scale, dtype)
            for row, row_codes in zip(packed.tolist(), codes.tolist(), strict=True)
        ]
    ).to(dtype)
    assert_same(kv_cache.nvfp4_kv_dequantize(packed, codes, global_scale, dtype), expected)
    as_float8 = codes.view(torch.float8_e4m3fn)
    assert_same(kv_cache.nvfp4_kv_dequantize(packed, as_float8, global_scale, dtype), expected)
    out = torch.full((32, 128), 7.0, dtype=dtype)
    assert kv_cache.nvfp4_kv_dequantize.out(packed, codes, global_scale, out=out) is None
    assert_same(out, expected)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0)])
def test_empty(shape):
    packed = torch.empty(shape, dtype=torch.uint8)
    scales = torch.empty(shape[0], shape[1] // 8, dtype=torch.uint8)
    result = kv_cache.nvfp4_kv_dequantize(packed, scales, torch.ones(1), torch.float16)
    assert result.shape == (shape[0], shape[1] * 2)


def test_other_strides():
    packed = torch.randint(0, 256, (32, 6)).byte().t()
    codes = torch.full((4, 6), 0x38).byte().t()
    one = torch.ones(())
    expected = kv_cache.nvfp4_kv_dequantize(
        packed.contiguous(), codes.contiguous(), one, torch.float16
    )
    assert torch.equal(kv_cache.nvfp4_kv_dequantize(packed, codes, one, torch.float16), expected)


PAGES, PAGE_SIZE, HEADS, K_DIM, V_DIM = 6, 4, 2, 32, 48
MAX_SEQ_LEN = 10
# The second request names pages outside the cache, the third is empty, the fourth claims more
# tokens than there is room for, the last has a negative length.
SEQ_LENS = (7, 10, 0, 99, -5)
BLOCK_TABLES = ((3, 1, 0), (-1, 2, 6), (0, 0, 0), (5, 3, 4), (1, 1, 1))


def paged_case(kv_layout: int):
    generator = torch.Generator().manual_seed(2)
    axes = (PAGES, PAGE_SIZE, HEADS) if kv_layout == 0 else (PAGES, HEADS, PAGE_SIZE)
    caches = [
        torch.randint(0, 256, (*axes, dim // 2), generator=generator).byte()
        for dim in (K_DIM, V_DIM)
    ]
    # Positive, finite and not zero, so that a misplaced scale shows; every block has its own.
    scales = [
        (torch.arange(PAGES * PAGE_SIZE * HEADS * dim // 16) % 126 + 1).byte().reshape(*axes, -1)
        for dim in (K_DIM, V_DIM)
    ]
    return caches, scales


def expected_pages(cache, scales, scale, dtype, kv_layout, background):
    expected = background.clone()
    for request, length in enumerate(SEQ_LENS):
        for position in range(min(length, MAX_SEQ_LEN)):
            page = BLOCK_TABLES[request][position // PAGE_SIZE]
            if not 0 <= page < PAGES:
                continue
            entry = position % PAGE_SIZE
            for head in range(HEADS):
                at = (page, entry, head) if kv_layout == 0 else (page, head, entry)
                row = dequantize_row(cache[at].tolist(), scales[at].tolist(), scale, dtype)
                expected[request, position, head] = torch.tensor(row).to(dtype)
    return expected


@pytest.mark.parametrize("table_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kv_layout", [0, 1])
@pytest.mark.parametrize("dtype", OUTPUTS)
def test_paged(dtype, kv_layout, table_dtype):
    (k_cache, v_cache), (k_scales, v_scales) = paged_case(kv_layout)
    tables = torch.tensor(BLOCK_TABLES, dtype=table_dtype)
    lengths = torch.tensor(SEQ_LENS, dtype=torch.int32)
    k_scale, v_scale = torch.tensor([0.5]), torch.tensor(0.03)
    arguments = (k_cache, v_cache, k_scales, v_scales, tables, lengths, k_scale, v_scale)
    k, v = kv_cache.nvfp4_kv_dequantize_paged(*arguments, MAX_SEQ_LEN, dtype, kv_layout)
    cases = (
        (k, k_cache, k_scales, 0.5, K_DIM),
        (v, v_cache, v_scales, v_scale.item(), V_DIM),
    )
    for result, cache, scales, scale, dim in cases:
        zeros = torch.zeros(len(SEQ_LENS), MAX_SEQ_LEN, HEADS, dim, dtype=dtype)
        assert result.shape == zeros.shape
        assert result.is_contiguous()
        assert_same(result, expected_pages(cache, scales, scale, dtype, kv_layout, zeros))
    outputs = [torch.full_like(result, 7.0) for result in (k, v)]
    outputs[0][0, 8] = math.nan
    backgrounds = [output.clone() for output in outputs]
    returned = kv_cache.nvfp4_kv_dequantize_paged.out(
        *arguments, kv_layout, output_k=outputs[0], output_v=outputs[1]
    )
    assert returned is None
    for output, background, (_, cache, scales, scale, _) in zip(
        outputs, backgrounds, cases, strict=True
    ):
        assert_same(output, expected_pages(cache, scales, scale, dtype, kv_layout, background))


@pytest.mark.parametrize("kv_layout", [0, 1])
def test_stacked_cache_and_float8_scales(kv_layout):
    """K and V of one tensor, as serving engines keep them: pages are not contiguous."""
    caches, scales = paged_case(kv_layout)
    k_cache, k_scales = caches[0], scales[0]
    stacked = torch.stack((k_cache, k_cache.flip(0)), dim=1)
    stacked_scales = torch.stack((k_scales, k_scales.flip(0)), dim=1).view(torch.float8_e4m3fn)
    assert not stacked[:, 0].is_contiguous()
    request = (
        torch.tensor(BLOCK_TABLES),
        torch.tensor(SEQ_LENS, dtype=torch.int32),
        torch.ones(1),
        torch.ones(1),
        MAX_SEQ_LEN,
        torch.float16,
        kv_layout,
    )
    results = kv_cache.nvfp4_kv_dequantize_paged(
        stacked[:, 0], stacked[:, 1], stacked_scales[:, 0], stacked_scales[:, 1], *request
    )
    expected = kv_cache.nvfp4_kv_dequantize_paged(
        k_cache, k_cache.flip(0), k_scales, k_scales.flip(0), *request
    )
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize(
    ("pages", "page_size", "batch", "max_seq_len", "heads"),
    [(0, 4, 2, 4, 2), (3, 4, 0, 4, 2), (3, 4, 2, 0, 2), (3, 4, 2, 4, 0), (3, 0, 2, 0, 2)],
)
def test_empty_paged(pages, page_size, batch, max_seq_len, heads):
    cache = torch.zeros(pages, page_size, heads, 16, dtype=torch.uint8)
    scales = torch.zeros(pages, page_size, heads, 2, dtype=torch.uint8)
    k, v = kv_cache.nvfp4_kv_dequantize_paged(
        cache,
        cache,
        scales,
        scales,
        torch.zeros(batch, 1, dtype=torch.int32),
        torch.full((batch,), 4, dtype=torch.int32),
        torch.ones(1),
        torch.ones(1),
        max_seq_len,
        torch.float16,
        0,
    )
    assert k.shape == v.shape == (batch, max_seq_len, heads, 32)
    assert k.count_nonzero() == 0


def quantize_block(block: list[float], scale: float):
    """Return (E2M1 codes, scale code) of one block, an operation at a time as in the kernel."""
    maximum = F32(ftz(largest([F32(value) for value in block])))
    code = e4m3_code(float(multiply(invert(scale), multiply(maximum, SIXTH))))
    output = F32(0)
    if maximum != 0:
        output = invert(multiply(decode_e4m3(code), scale))
    return [nearest_code(float(multiply(value, output))) for value in block], code


def assert_quantized(matrix: torch.Tensor, scale: float) -> None:
    values, block_scales = kv_cache.nvfp4_kv_quantize(matrix, torch.tensor([scale]))
    with np.errstate(all="ignore"):
        for row, elements in enumerate(matrix.float().tolist()):
            for block in range(matrix.shape[1] // 16):
                codes, code = quantize_block(elements[16 * block : 16 * block + 16], F32(scale))
                assert block_scales[row, block] == code
                assert unpacked(values)[row, 16 * block : 16 * block + 16].tolist() == codes


@pytest.mark.parametrize("scale", [1.0, 1 / 448, 0.37, 1e6, 1e-30, 1e-42, 0.0, -2.0, math.inf])
@pytest.mark.parametrize("dtype", OUTPUTS)
def test_quantize_hostile_values(dtype, scale):
    # What a block with a NaN becomes is not specified.
    assert_quantized(hostile_matrix(dtype).nan_to_num(nan=1.5, posinf=math.inf), scale)


@settings(max_examples=60)
@given(
    bits=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=16, max_size=16),
    scale=st.floats(2**-20, 2**20, width=32),
    dtype=st.sampled_from(OUTPUTS),
)
def test_quantize_any_block(bits, scale, dtype):
    block = torch.tensor([bits], dtype=torch.int16).view(dtype)
    assert_quantized(block.nan_to_num(nan=-3.0, posinf=math.inf, neginf=-math.inf), scale)


def test_quantize_blocks_by_hand():
    """Pin the corners to literal bytes, in case the restatement repeats a mistake."""
    rows = torch.zeros(4, 32, dtype=torch.bfloat16)
    rows[0, 0], rows[0, 1], rows[0, 16] = 12.0, -4.0, 3.0
    rows[1, 0] = -0.0
    rows[2, 0], rows[2, 1] = 2.0**-20, -(2.0**-20)
    rows[3, 0] = math.inf
    values, scales = kv_cache.nvfp4_kv_quantize(rows, torch.tensor([2.0]))
    codes = unpacked(values)
    # (12 / 6) / 2 is 1, so 12 is 6 and -4 is -2; (3 / 6) / 2 is 1 / 4, so 3 is 6.
    assert scales[0].tolist() == [0x38, 0x28]
    assert (codes[0, :3].tolist(), codes[0, 16].item()) == ([7, 12, 0], 7)
    assert (scales[1].tolist(), codes[1, :2].tolist()) == ([0, 0], [8, 0])
    # A scale that underflows: x * inf saturates, 0 * inf is NaN.
    assert (scales[2, 0].item(), codes[2, :3].tolist()) == (0, [7, 15, 7])
    assert (scales[3, 0].item(), codes[3, :2].tolist()) == (0x7E, [7, 0])
    # A global scale of zero: 0 * inf is NaN for a block of zeros, the others saturate.
    values, scales = kv_cache.nvfp4_kv_quantize(rows, torch.zeros(1))
    assert scales[0].tolist() == [0x7E, 0x7E]
    assert unpacked(values)[0, :3].tolist() == [7, 15, 7]
    assert (scales[1].tolist(), unpacked(values)[1, :2].tolist()) == ([0x7F, 0x7F], [8, 0])


def test_the_global_scale_is_the_reciprocal_of_the_quantizers():
    matrix = torch.randn(9, 2880, generator=torch.Generator().manual_seed(4)).bfloat16()
    for scale in (0.5, 4.0, 1.0):
        results = kv_cache.nvfp4_kv_quantize(matrix, torch.tensor([scale]))
        expected = fp4_quantize(matrix, torch.tensor([1 / scale]), is_sf_swizzled_layout=False)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def distinct_blocks(*shape: int) -> torch.Tensor:
    """Make blocks of 16 with a magnitude of their own each, so that a misplaced scale shows."""
    generator = torch.Generator().manual_seed(5)
    blocks = torch.rand(*shape[:-1], shape[-1] // 16, 16, generator=generator) + 0.5
    magnitudes = torch.logspace(-1, 2, blocks[..., 0].numel()).reshape(blocks.shape[:-1])
    return (blocks * magnitudes.unsqueeze(-1)).reshape(shape)


def assert_near(restored: torch.Tensor, exact: torch.Tensor) -> None:
    """Allow each block an error of half of E2M1's widest step, of its own magnitude."""
    difference = (restored.double() - exact.double()).unflatten(-1, (-1, 16))
    largest_of_block = exact.double().unflatten(-1, (-1, 16)).abs().amax(-1)
    # 1 / 6 of the maximum, and 1 / 16 for the rounding of the scale.
    assert (difference.abs().amax(-1) <= largest_of_block * (1 / 6 + 1 / 16)).all()


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_round_trip(dtype):
    matrix = distinct_blocks(24, 128).to(dtype)
    scale = (matrix.abs().max().float() / (448 * 6)).reshape(1)
    values, block_scales = kv_cache.nvfp4_kv_quantize(matrix, scale)
    restored = kv_cache.nvfp4_kv_dequantize(values, block_scales, scale, dtype)
    assert_near(restored, matrix)
    cosine = torch.nn.functional.cosine_similarity(restored.float(), matrix.float(), dim=1)
    assert cosine.min() > 0.99


@pytest.mark.parametrize("kv_layout", [0, 1])
def test_round_trip_through_pages(kv_layout):
    """Quantized, put in pages of either layout, and gathered: each block gets its own scale."""
    axes = (PAGES, PAGE_SIZE, HEADS) if kv_layout == 0 else (PAGES, HEADS, PAGE_SIZE)
    caches, quantized, scale_pages, global_scales = [], [], [], []
    for dim in (K_DIM, V_DIM):
        cache = distinct_blocks(*axes, dim).bfloat16()
        scale = (cache.abs().max().float() / (448 * 6)).reshape(1)
        values, block_scales = kv_cache.nvfp4_kv_quantize(cache.view(-1, dim), scale)
        caches.append(cache)
        quantized.append(values.view(*axes, dim // 2))
        scale_pages.append(block_scales.view(*axes, dim // 16))
        global_scales.append(scale)
    tables = torch.tensor([[2, 5, 0], [4, 1, 3]], dtype=torch.int32)
    lengths = torch.tensor([12, 9], dtype=torch.int32)
    results = kv_cache.nvfp4_kv_dequantize_paged(
        *quantized, *scale_pages, tables, lengths, *global_scales, 12, torch.bfloat16, kv_layout
    )
    for result, cache in zip(results, caches, strict=True):
        for request, length in enumerate(lengths.tolist()):
            for position in range(length):
                page, entry = tables[request, position // PAGE_SIZE], position % PAGE_SIZE
                exact = cache[page, entry] if kv_layout == 0 else cache[page, :, entry]
                assert_near(result[request, position], exact)
            assert not result[request, length:].any()


@pytest.mark.parametrize("shape", [(0, 32), (3, 0)])
def test_quantize_empty(shape):
    values, block_scales = kv_cache.nvfp4_kv_quantize(torch.zeros(shape).half(), torch.ones(1))
    assert values.shape == (shape[0], shape[1] // 2)
    assert block_scales.shape == (shape[0], shape[1] // 16)


def test_quantize_other_strides_and_buffers():
    matrix = distinct_blocks(8, 64).bfloat16()
    scale = torch.ones(())
    expected = kv_cache.nvfp4_kv_quantize(matrix, scale)
    strided = matrix.t().contiguous().t()
    results = kv_cache.nvfp4_kv_quantize(strided, scale)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    buffers = [torch.full_like(result, 0x7F) for result in expected]
    returned = kv_cache.nvfp4_kv_quantize.out(
        matrix, scale, fp4_output=buffers[0], block_scales=buffers[1]
    )
    assert returned is None
    assert all(torch.equal(a, b) for a, b in zip(buffers, expected, strict=True))
