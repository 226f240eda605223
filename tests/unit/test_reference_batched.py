"""Quantization of batches against `fp4_quantize` matrix by matrix, and where the bytes lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import kernel_offset
from test_reference_nvfp4 import CONFIGS
from test_reference_quantize import hostile_matrix

from fp4aot._layouts import SfLayout
from fp4aot._recipes import nvfp4_4over6_code
from fp4aot.operators import batched
from fp4aot.operators.quantize import fp4_quantize

CODES = [nvfp4_4over6_code(config) for config in (None, *CONFIGS)]
HALVES = (torch.float16, torch.bfloat16)
POISON = 0x5A


def gaussian(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def quantize(matrix, scale, code):
    return fp4_quantize(matrix, scale, is_sf_swizzled_layout=False, nvfp4_4over6=code)


@settings(max_examples=40)
@given(
    batch=st.integers(0, 3),
    rows=st.integers(0, 140),
    blocks=st.integers(0, 6),
    dtype=st.sampled_from([*HALVES, torch.float8_e4m3fn]),
    code=st.sampled_from(CODES),
    scale_for_each_row=st.booleans(),
)
def test_batched_is_each_matrix_by_itself(batch, rows, blocks, dtype, code, scale_for_each_row):
    a = gaussian(batch, rows, 16 * blocks, dtype=dtype)
    code = 0 if dtype == torch.float8_e4m3fn else code
    scale = torch.logspace(-1, 2, rows) if scale_for_each_row else torch.tensor([30.0])
    values, scales = batched.nvfp4_batched_quantize(a, scale, nvfp4_4over6=code)
    padded = -(-rows // 128) * 128 * (-(-blocks // 4) * 4)
    assert values.shape == (batch, rows, 8 * blocks)
    assert scales.shape == (batch, padded)
    for matrix in range(batch):
        # In the 128x4 layout, padding included.
        expected = fp4_quantize(a[matrix], scale, nvfp4_4over6=code)
        assert torch.equal(values[matrix], expected[0])
        assert torch.equal(scales[matrix], expected[1].reshape(-1))


@pytest.mark.parametrize("rows", [1, 33, 129])
def test_batched_padding_is_zero_and_buffers_do_not_matter(rows):
    a, scale = gaussian(2, rows, 112), torch.tensor([7.0])
    expected = batched.nvfp4_batched_quantize(a, scale)
    buffers = [torch.full_like(result, POISON) for result in expected]
    returned = batched.nvfp4_batched_quantize.out(
        a, scale, values=buffers[0], block_scales=buffers[1]
    )
    assert returned is None
    assert all(torch.equal(a, b) for a, b in zip(buffers, expected, strict=True))
    offsets = {
        kernel_offset(row, column, 7, SfLayout.layout_128x4)
        for row in range(rows)
        for column in range(7)
    }
    for scales in expected[1].tolist():
        assert not any(scales[i] for i in range(len(scales)) if i not in offsets)
        assert all(scales[i] for i in offsets)


def experts(a, mask, scale, code=0, fused=False):
    name = "silu_and_mul_scaled_nvfp4_experts_quantize" if fused else "scaled_fp4_grouped_quantize"
    return getattr(batched, name)(a, torch.tensor(mask, dtype=torch.int32), scale, code)


def written_rows(mask, rows):
    return [min(max(count, 0), rows) for count in mask]


MASKS = ((3, 0, 40), (-2, 99, 33), (1, 33, 2**31 - 1))


@pytest.mark.parametrize("columns", [16, 112, 2880])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", HALVES)
def test_experts_are_the_first_rows_of_each_matrix(dtype, mask, columns):
    rows, blocks = 33, columns // 16
    a, scale = gaussian(3, rows, columns, dtype=dtype), torch.tensor([1.0, 30.0, 448.0])
    values, scales = experts(a, mask, scale)
    row_tiles, column_tiles = 1, -(-blocks // 4)
    assert values.shape == (rows, columns // 2, 3)
    assert values.permute(2, 0, 1).is_contiguous()
    assert scales.shape == (32, 4, row_tiles, 4, column_tiles, 3)
    assert scales.permute(5, 2, 4, 0, 1, 3).is_contiguous()
    assert (values.dtype, scales.dtype) == (torch.uint8, torch.float8_e4m3fn)
    logical = scales.view(torch.uint8)
    total = 0
    for expert, count in enumerate(written_rows(mask, rows)):
        expected = quantize(a[expert, :count], scale[expert : expert + 1], 0)
        assert torch.equal(values[:count, :, expert], expected[0])
        assert not values[count:, :, expert].any()
        for row in range(count):
            for column in range(blocks):
                at = (row % 32, row % 128 // 32, row // 128, column % 4, column // 4, expert)
                assert logical[at] == expected[1][row, column]
        total += int(expected[1].sum())
    # And nothing anywhere else.
    assert int(logical.sum()) == total


def test_experts_of_more_rows_than_a_tile():
    a, scale = gaussian(2, 300, 64), torch.tensor([3.0, 5.0])
    _, scales = experts(a, (300, 200), scale)
    memory = scales.view(torch.uint8).permute(5, 2, 4, 0, 1, 3).reshape(2, -1)
    for expert, count in enumerate((300, 200)):
        expected = quantize(a[expert, :count], scale[expert : expert + 1], 0)[1]
        for row in range(count):
            for column in range(4):
                offset = kernel_offset(row, column, 4, SfLayout.layout_128x4)
                assert memory[expert, offset] == expected[row, column]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", HALVES)
def test_experts_of_hostile_values(dtype, code):
    a = torch.stack((hostile_matrix(dtype), hostile_matrix(dtype).flip(0)))
    for scale in (1.0, 448.0, 1e-42, 0.0, -2.0, math.inf):
        scales_of_experts = torch.tensor([scale, 3.0])
        values, scales = experts(a, (14, 14), scales_of_experts, code)
        for expert in range(2):
            expected = quantize(a[expert], scales_of_experts[expert : expert + 1], code)
            assert torch.equal(values[..., expert], expected[0])
            codes = scales.view(torch.uint8)[:14, 0, 0, :, 0, expert]
            assert torch.equal(codes, expected[1])


@pytest.mark.parametrize("blocks", [7, 8])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_rows_that_do_not_count_keep_what_the_buffers_held(mask, fused, blocks):
    """All but their scales where those have padding columns, which must be zero."""
    a, scale = gaussian(3, 33, 16 * blocks * (2 if fused else 1)), torch.ones(3)
    values, scales = experts(a, mask, scale, fused=fused)
    # Something else in each place, so that a byte that moves shows.
    held = [
        torch.empty_like(r.view(torch.uint8)).copy_((torch.arange(r.numel()) % 251).view(r.shape))
        for r in (values, scales)
    ]
    buffers = [held[0].clone(), held[1].clone().view(torch.float8_e4m3fn)]
    assert [buffer.stride() for buffer in buffers] == [values.stride(), scales.stride()]
    name = "silu_and_mul_scaled_nvfp4_experts_quantize" if fused else "scaled_fp4_grouped_quantize"
    counts = torch.tensor(mask, dtype=torch.int32)
    returned = getattr(batched, name).out(
        a, counts, scale, values=buffers[0], block_scales=buffers[1]
    )
    assert returned is None
    row = torch.arange(33).view(33, 1, 1)
    expected = torch.where(row < counts, values, held[0])
    assert torch.equal(buffers[0], expected)
    rows, columns = torch.arange(128).view(4, 32).t(), torch.arange(8).view(2, 4).t()
    row = rows.view(32, 4, 1, 1, 1, 1)
    column = columns.view(1, 1, 1, 4, 2, 1)
    count = torch.tensor(written_rows(mask, 33)).view(1, 1, 1, 1, 1, 3)
    background = held[1] if blocks % 4 == 0 else torch.zeros_like(held[1])
    counts = (row < count) & (column < blocks)
    expected = torch.where(counts, scales.view(torch.uint8), background)
    assert torch.equal(buffers[1].view(torch.uint8), expected)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Number the values of a half-precision dtype in their order; both zeros are 0."""
    codes = tensor.view(torch.int16).int()
    return torch.where(codes < 0, -(codes & 0x7FFF), codes)


@pytest.mark.parametrize("dtype", HALVES)
def test_silu_and_mul_is_within_one_value(dtype):
    a = gaussian(40, 256, dtype=torch.float32)
    a[:, :128] *= torch.logspace(-3, 1.9, 40).view(40, 1)
    a = a.to(dtype)
    gate, up = a.double().chunk(2, dim=-1)
    exact = (gate / (1 + (-gate).exp()) * up).to(dtype)
    result = batched._silu_and_mul(a)
    assert result.dtype == dtype
    distance = (bits(result) - bits(exact)).abs()
    # Beside what the kernel flushes to zero, because 1 + exp(-gate) has no normal reciprocal.
    distance[gate < -87.3] = 0
    assert distance.max() <= 1
    assert (distance == 0).float().mean() > 0.99


def test_silu_and_mul_by_hand():
    inf, nan = math.inf, math.nan
    cases = [
        (0.0, 3.0, 0.0),
        (1.0, 1.0, 0.73105858),
        (-1.0, 2.0, -0.53788284),
        (20.0, -2.0, -40.0),
        (inf, 2.0, inf),
        (-inf, 2.0, nan),
        (nan, 1.0, nan),
        (1.0, nan, nan),
        # 1 + exp(88) is above 2^126, where `__fdividef` is zero.
        (-88.0, 1e30, -0.0),
        (-87.0, 1e30, -87.0 / (1 + math.exp(87.0)) * 1e30),
        (-200.0, 1.0, -0.0),
        # Subnormal operands and products are flushed.
        (1e-39, 1e30, 0.0),
        (1e-20, 1e-20, 0.0),
    ]
    a = torch.tensor([[gate, up] for gate, up, _ in cases]).bfloat16()
    expected = torch.tensor([[product] for *_, product in cases]).bfloat16()
    result = batched._silu_and_mul(a)
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(result[8]), torch.tensor([True]))


@pytest.mark.parametrize("code", [0, 5])
@pytest.mark.parametrize("dtype", HALVES)
def test_fused_quantizes_the_rounded_product(dtype, code):
    a = gaussian(2, 33, 224, dtype=dtype)
    a[0, 3, 5], a[1, 2, 200] = math.nan, math.inf
    scale = torch.tensor([30.0, 7.0])
    results = experts(a, (33, 20), scale, code, fused=True)
    gate, up = a.float().chunk(2, dim=-1)
    # Rounding happens before quantization: the rounded product is what grouped quantization sees.
    product = torch.nn.functional.silu(gate) * up
    rounded = batched._silu_and_mul(a)
    assert torch.isclose(rounded.float(), product, rtol=2**-7, equal_nan=True).all()
    expected = experts(rounded, (33, 20), scale, code)
    assert torch.equal(results[0], expected[0])
    assert torch.equal(results[1].view(torch.uint8), expected[1].view(torch.uint8))


@pytest.mark.parametrize("shape", [(0, 4, 32), (2, 0, 32), (2, 4, 0), (0, 0, 0)])
def test_empty(shape):
    batch, rows, columns = shape
    for fused in (False, True):
        values, scales = experts(
            torch.zeros(batch, rows, columns * 2 if fused else columns).half(),
            [4] * batch,
            torch.ones(batch),
            fused=fused,
        )
        assert values.shape == (rows, columns // 2, batch)
        tiles = (min(rows, 1), 4, min(columns, 1), batch)
        assert scales.shape == (32, 4, *tiles)
    values, scales = batched.nvfp4_batched_quantize(torch.zeros(shape).half(), torch.ones(1))
    assert values.shape == (batch, rows, columns // 2)
    assert scales.shape == (batch, 512 if rows and columns else 0)


@pytest.mark.parametrize(
    "view", [lambda a: a[:, :, :64], lambda a: a[:, ::2], lambda a: a.transpose(0, 1)]
)
def test_other_strides_are_copied_first(view):
    a = view(gaussian(4, 4, 128))
    assert not a.is_contiguous()
    mask, scale = torch.full((4,), 4, dtype=torch.int32), torch.ones(8)[::2]
    for function, arguments in (
        (batched.nvfp4_batched_quantize, (torch.ones(1),)),
        (batched.scaled_fp4_grouped_quantize, (mask, scale)),
        (batched.silu_and_mul_scaled_nvfp4_experts_quantize, (mask, scale)),
    ):
        results, expected = function(a, *arguments), function(a.contiguous(), *arguments)
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.view(torch.uint8), other.view(torch.uint8))
            assert result.stride() == other.stride()


def test_arguments_are_not_changed():
    """Opcheck's test of the schema does not take float8, so this is for it."""
    a = gaussian(2, 4, 32, dtype=torch.float8_e4m3fn)
    before = a.view(torch.uint8).clone()
    values, scales = batched.nvfp4_batched_quantize(a, torch.ones(1))
    values.zero_()
    scales.zero_()
    assert torch.equal(a.view(torch.uint8), before)
