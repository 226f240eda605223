"""Per-token quantization against a scalar restatement of FlashInfer's kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import kernel_offset
from test_reference_nvfp4 import CONFIGS, four_over_six, restored
from test_reference_quantize import (
    F32,
    NVFP4,
    ftz,
    hostile_matrix,
    invert,
    multiply,
    quantize_matrix,
    unpacked,
)

from fp4aot._layouts import SfLayout
from fp4aot._recipes import nvfp4_4over6_code
from fp4aot.operators.per_token import nvfp4_quantize_per_token

DTYPES = (torch.float16, torch.bfloat16)
BASE = 1 / (448 * 6)
LINEAR = {"sf_layout": int(SfLayout.layout_linear)}
POISON = 0x5A


def row_maximum(values):
    """Reduce as the kernel: from zero, NaN gives way, a subnormal is zero."""
    result = F32(0)
    for value in values:
        result = F32(np.fmax(result, abs(F32(ftz(F32(value))))))
    return result


def quantize_rows(matrix, scale_inv, config=None):
    """Return (codes, scale codes, per-token scales), an operation at a time as in the kernel."""
    maxima = [row_maximum(row) for row in matrix.to(torch.float32).tolist()]
    per_token = [multiply(maximum, F32(scale_inv)) for maximum in maxima]
    factors = [invert(scale) if scale != 0 else F32(0) for scale in per_token]
    if config is None:
        codes, scale_codes = quantize_matrix(matrix, lambda row: factors[row], **NVFP4)
    else:
        codes, scale_codes = four_over_six(matrix, lambda row: factors[row], config, maxima)
    return codes, scale_codes, [float(scale) for scale in per_token]


def assert_rows(results, expected):
    codes, scale_codes, per_token = expected
    assert results[2].dtype == torch.float32
    # NaN, which is infinity times a zero base scale, equals NaN here.
    np.testing.assert_array_equal(results[2].numpy(), np.array(per_token, dtype=F32))
    assert results[1].tolist() == scale_codes
    assert unpacked(results[0]).tolist() == codes


def offset_of(row, column, columns, layout):
    if layout is SfLayout.layout_linear:
        return row * columns + column
    return kernel_offset(row, column, columns, layout)


def gaussian(rows: int, columns: int, dtype=torch.bfloat16) -> torch.Tensor:
    """Make rows of very different magnitudes."""
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns))
    return (matrix * torch.logspace(-2, 2, rows).unsqueeze(1)).to(dtype)


@pytest.mark.parametrize("scale_inv", [BASE, 1.0, 1 / 1536, 1e-38, 1e-42, 0.0, -BASE, 1e30])
@pytest.mark.parametrize("config", [None, *CONFIGS], ids=nvfp4_4over6_code)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_values_match_the_scalar_kernel(dtype, config, scale_inv):
    matrix = hostile_matrix(dtype)
    code = nvfp4_4over6_code(config)
    results = nvfp4_quantize_per_token(matrix, scale_inv, **LINEAR, nvfp4_4over6=code)
    with np.errstate(all="ignore"):
        assert_rows(results, quantize_rows(matrix, scale_inv, config))


@pytest.mark.parametrize("config", CONFIGS, ids=nvfp4_4over6_code)
def test_four_over_six_of_gaussian_rows_matches_the_scalar_kernel(config):
    matrix, base = gaussian(24, 128), 1 / (6 * config.e4m3_max)
    code = nvfp4_4over6_code(config)
    results = nvfp4_quantize_per_token(matrix, base, **LINEAR, nvfp4_4over6=code)
    assert_rows(results, quantize_rows(matrix, base, config))


@settings(max_examples=40)
@given(
    rows=st.integers(0, 12),
    blocks=st.integers(0, 5),
    layout=st.sampled_from(list(SfLayout)),
    dtype=st.sampled_from(DTYPES),
    config=st.sampled_from([None, *CONFIGS]),
)
def test_any_shape(rows, blocks, layout, dtype, config):
    matrix = gaussian(rows, 16 * blocks, dtype)
    code = nvfp4_4over6_code(config)
    values, scales, per_token = nvfp4_quantize_per_token(
        matrix, BASE, sf_layout=int(layout), nvfp4_4over6=code
    )
    codes, scale_codes, expected = quantize_rows(matrix, BASE, config)
    assert per_token.tolist() == expected
    assert unpacked(values).tolist() == codes
    memory = scales.reshape(-1).tolist()
    for row in range(rows):
        for column in range(blocks):
            offset = offset_of(row, column, blocks, layout)
            assert memory[offset] == scale_codes[row][column]
    assert sum(memory) == sum(map(sum, scale_codes))


def test_special_rows_by_hand():
    """Pin the corners to literal bytes, in case the restatement repeats a mistake."""
    rows = torch.zeros(6, 32, dtype=torch.bfloat16)
    rows[1, 0] = -0.0
    rows[2, 0], rows[2, 31] = 2688.0, 6.0
    rows[3, :16] = math.nan
    rows[4, 0], rows[4, 1] = math.nan, 2688.0
    rows[5, 0], rows[5, 1] = math.inf, 1.0
    values, scales, per_token = nvfp4_quantize_per_token(rows, BASE, **LINEAR)
    assert per_token.tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, math.inf]
    # Nothing but zeros, whose signs stay.
    assert (scales[:2].any().item(), values[0].any().item()) == (False, False)
    assert unpacked(values)[1, :2].tolist() == [8, 0]
    # The row's maximum uses the whole range: 448 * 6.
    assert scales[2].tolist() == [0x7E, 0x38]
    assert (unpacked(values)[2, 0].item(), unpacked(values)[2, 31].item()) == (7, 7)
    # NaN does not count for the row: its maximum is zero, and the block of NaN has a NaN scale.
    assert (scales[3].tolist(), set(unpacked(values)[3].tolist())) == ([0x7F, 0], {7, 0})
    assert (scales[4].tolist(), unpacked(values)[4, :3].tolist()) == ([0x7E, 0], [7, 7, 0])
    # An infinite maximum leaves no factor but zero, and zero times infinity is NaN.
    assert (scales[5].tolist(), set(unpacked(values)[5, :16].tolist())) == ([0x7F, 0], {7})


def test_gaussian_error_does_not_depend_on_the_rows_magnitude():
    matrix = gaussian(64, 512)
    values, scales, per_token = nvfp4_quantize_per_token(matrix, BASE, **LINEAR)
    exact = matrix.double().view(64, 32, 16)
    difference = restored(values, scales, torch.ones(1)) * per_token.view(-1, 1, 1) - exact
    errors = difference.flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    assert errors.min() > 0.08
    assert errors.max() < 0.11


INDEX = (3, -1, 0, 3, -7, 5, 0, -1)
NAMED = (0, 3, 5)


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("columns", [112, 2880])
def test_only_the_rows_that_the_index_names(columns, layout):
    matrix = gaussian(8, columns)
    # More entries than rows: the kernel reads the first M.
    index = torch.tensor([*INDEX, 1, 2, 99], dtype=torch.int32)
    flags = {"sf_layout": int(layout)}
    results = nvfp4_quantize_per_token(matrix, BASE, index, **flags)
    every = nvfp4_quantize_per_token(matrix, BASE, **flags)
    # Something else in each place, so that a byte that moves shows.
    held = [(torch.arange(r.numel()) % 251).view(r.shape).to(r.dtype) + 1 for r in every]
    buffers = [buffer.clone() for buffer in held]
    returned = nvfp4_quantize_per_token.out(
        matrix, BASE, index, **flags,
        values=buffers[0], block_scales=buffers[1], per_token_scale=buffers[2],
    )  # fmt: skip
    assert returned is None
    for row in range(8):
        for i in (0, 2):
            if row in NAMED:
                assert torch.equal(results[i][row], every[i][row])
                assert torch.equal(buffers[i][row], every[i][row])
            else:
                assert not results[i][row].any()
                assert torch.equal(buffers[i][row], held[i][row])
    blocks = columns // 16
    functional, buffer, expected, before = (
        tensors[1].reshape(-1).tolist() for tensors in (results, buffers, every, held)
    )
    of_rows = set()
    for row in range(8):
        for column in range(blocks):
            offset = offset_of(row, column, blocks, layout)
            of_rows.add(offset)
            assert functional[offset] == (expected[offset] if row in NAMED else 0)
            assert buffer[offset] == (expected[offset] if row in NAMED else before[offset])
    # Padding, too, is zero in new results and stays in the caller's buffer.
    for offset in set(range(len(buffer))) - of_rows:
        assert (functional[offset], buffer[offset]) == (0, before[offset])


@pytest.mark.parametrize("layout", SfLayout)
def test_what_the_buffers_held_does_not_matter_without_an_index(layout):
    matrix, flags = gaussian(33, 112), {"sf_layout": int(layout), "nvfp4_4over6": 1}
    expected = nvfp4_quantize_per_token(matrix, BASE, **flags)
    buffers = [torch.full_like(result, POISON) for result in expected]
    nvfp4_quantize_per_token.out(
        matrix, BASE, **flags,
        values=buffers[0], block_scales=buffers[1], per_token_scale=buffers[2],
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(buffers, expected, strict=True))


@pytest.mark.parametrize("number", [8, 2**31 - 1])
def test_a_row_that_does_not_exist_is_named(number):
    """On a GPU it would be written to, past the end of the results."""
    index = torch.tensor([0, 1, number, 3, 4, 5, 6, 7], dtype=torch.int32)
    words = f"'expanded_idx_to_permuted_idx': got row number {number}, expected .* below 8"
    with pytest.raises(RuntimeError, match=words):
        nvfp4_quantize_per_token(gaussian(8, 32), BASE, index)


@pytest.mark.parametrize(
    "view", [lambda m: m[:, :64], lambda m: m[::2], lambda m: m[:, ::2], lambda m: m[:32, :32].t()]
)
def test_other_strides_are_copied_first(view):
    matrix = view(gaussian(64, 128))
    assert not matrix.is_contiguous()
    results = nvfp4_quantize_per_token(matrix, BASE)
    expected = nvfp4_quantize_per_token(matrix.contiguous(), BASE)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert all(result.is_contiguous() for result in results)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 0)])
@pytest.mark.parametrize("layout", SfLayout)
def test_empty(layout, shape):
    values, scales, per_token = nvfp4_quantize_per_token(
        torch.zeros(shape).half(), BASE, sf_layout=int(layout)
    )
    padded = {SfLayout.layout_128x4: 128, SfLayout.layout_8x4: 8, SfLayout.layout_linear: 3}
    columns = shape[1] // 16
    if layout is not SfLayout.layout_linear:
        columns = -(-columns // 4) * 4
    assert values.shape == (shape[0], shape[1] // 2)
    assert scales.shape == (padded[layout] if shape[0] else 0, columns)
    assert per_token.tolist() == [0.0] * shape[0]
