"""The 4-over-6 recipe against a scalar restatement of FlashInfer's kernel."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reference_e2m1 import VALUES, nearest_code
from test_reference_quantize import (
    F32,
    LAYOUTS,
    NVFP4,
    SIXTH,
    decode_e4m3,
    ftz,
    hostile_matrix,
    invert,
    largest_of_pairs,
    multiply,
    unpacked,
)
from test_reference_scales import e4m3_code

from fp4aot._layouts import SfLayout
from fp4aot._recipes import NVFP44Over6Config, NVFP44Over6ErrMode, nvfp4_4over6_code
from fp4aot.operators.quantize import fp4_quantize

CONFIGS = [
    NVFP44Over6Config(e4m3_max, mode, fast)
    for e4m3_max, mode, fast in product((448, 256), NVFP44Over6ErrMode, (False, True))
]
TABLE = [*VALUES, *(-value for value in VALUES)]
DTYPES = (torch.float16, torch.bfloat16)


def candidate(block, scale, decode):
    code = e4m3_code(float(scale))
    output = invert(multiply(decode_e4m3(code), decode))
    return [nearest_code(float(multiply(value, output))) for value in block], code


def error(block, codes, code, scale, decode, config, row_maximum):
    total = F32(0)
    for value, e2m1 in zip(block, codes, strict=True):
        scaled = multiply(TABLE[e2m1], decode_e4m3(code))
        if config.err_use_fast_math:
            difference = F32(ftz(F32(scaled - multiply(value, scale))))
        else:
            if row_maximum > 0:
                product = multiply(scaled, row_maximum)
                restored = F32(ftz(F32(product / F32(6 * config.e4m3_max))))
            else:
                restored = multiply(scaled, decode)
            difference = F32(ftz(F32(restored - value)))
        squared = config.err_mode == NVFP44Over6ErrMode.MSE
        term = multiply(difference, difference) if squared else abs(difference)
        total = F32(total + term)
    return total


def four_over_six_block(block, scale, config, row_maximum=0.0):
    """Return (E2M1 codes, scale code) of one block, an operation at a time as in the kernel."""
    block = [F32(ftz(value)) for value in block]
    maximum = largest_of_pairs(block)
    if maximum == 0:
        return [0] * len(block), 0
    decode = invert(scale)
    scale_for_6 = multiply(scale, multiply(maximum, SIXTH))
    six = candidate(block, scale_for_6, decode)
    four = candidate(block, multiply(scale_for_6, 1.5), decode)
    error_of_six, error_of_four = (
        error(block, *found, scale, decode, config, row_maximum) for found in (six, four)
    )
    return four if error_of_four < error_of_six else six


def four_over_six(matrix, scale_of_row, config, row_maxima=None):
    """Return (codes [M][K], scale codes [M][K / 16]) of a matrix."""
    all_codes, all_scales = [], []
    for row, values in enumerate(matrix.to(torch.float32).tolist()):
        codes, scale_codes = [], []
        for start in range(0, len(values), 16):
            block = [F32(value) for value in values[start : start + 16]]
            row_maximum = row_maxima[row] if row_maxima is not None else 0.0
            found = four_over_six_block(block, scale_of_row(row), config, row_maximum)
            codes += found[0]
            scale_codes.append(found[1])
        all_codes.append(codes)
        all_scales.append(scale_codes)
    return all_codes, all_scales


def quantize(matrix, scale, config, **flags):
    code = nvfp4_4over6_code(config)
    flags = {"is_sf_swizzled_layout": False, **flags}
    return fp4_quantize(matrix, scale, **flags, nvfp4_4over6=code)


def restored(values, block_scales, scale):
    """Return the blocks `[M, K / 16, 16]` that the results stand for, in float64."""
    factors = block_scales.view(torch.float8_e4m3fn).double() / scale.double()
    table = torch.tensor(TABLE, dtype=torch.float64)
    rows, blocks = block_scales.shape
    return table[unpacked(values).long()].view(rows, blocks, 16) * factors.unsqueeze(-1)


@pytest.mark.parametrize("scale", [1.0, 448.0, 0.37, 1e-6, 1e30, 1e-42, 0.0, -2.0, math.inf])
@pytest.mark.parametrize("config", CONFIGS, ids=nvfp4_4over6_code)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_values_match_the_scalar_kernel(dtype, config, scale):
    matrix = hostile_matrix(dtype)
    values, block_scales = quantize(matrix, torch.tensor([scale]), config)
    with np.errstate(all="ignore"):
        codes, scale_codes = four_over_six(matrix, lambda row: F32(scale), config)
    assert block_scales.tolist() == scale_codes
    assert unpacked(values).tolist() == codes


@pytest.mark.parametrize("config", CONFIGS, ids=nvfp4_4over6_code)
def test_gaussian_blocks_match_the_scalar_kernel(config):
    matrix = torch.randn(24, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    scale = config.e4m3_max * 6 / matrix.abs().amax(dim=1).float()
    for inversed in (False, True):
        given_scale = 1 / scale if inversed else scale
        values, block_scales = quantize(
            matrix, given_scale, config, is_global_scale_inversed=inversed
        )
        factors = [invert(s) if inversed else F32(s) for s in given_scale.tolist()]
        codes, scale_codes = four_over_six(matrix, lambda row: factors[row], config)  # noqa: B023
        assert block_scales.tolist() == scale_codes
        assert unpacked(values).tolist() == codes


@settings(max_examples=60)
@given(
    bits=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=16, max_size=16),
    scale=st.floats(2**-20, 2**20, width=32),
    config=st.sampled_from(CONFIGS),
    dtype=st.sampled_from(DTYPES),
)
def test_any_block_matches_the_scalar_kernel(bits, scale, config, dtype):
    matrix = torch.tensor([bits], dtype=torch.int16).view(dtype)
    packed, block_scales = quantize(matrix, torch.tensor([scale]), config)
    with np.errstate(all="ignore"):
        codes, scale_codes = four_over_six(matrix, lambda row: F32(scale), config)
    assert block_scales.tolist() == scale_codes
    assert unpacked(packed).tolist() == codes


def test_blocks_by_hand():
    """Pin the choice to literal bytes, in case the restatement repeats a mistake."""
    blocks = torch.zeros(6, 16, dtype=torch.bfloat16)
    blocks[0, :8] = torch.tensor([4.0, 3.0, 2.0, 1.5, 1.0, 0.5, -0.5, -4.0])
    blocks[1, :8] = torch.tensor([6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, -6.0])
    # Both scales restore a block of one magnitude exactly: 6 wins.
    blocks[2, 0] = 6.0
    blocks[3] = -0.0
    blocks[4, 0] = math.nan
    blocks[5, 0], blocks[5, 1] = math.inf, 1.0
    for config in CONFIGS:
        values, scales = quantize(blocks, torch.ones(1), config)
        # A largest magnitude of 4 at 4: the scale is 1, where the standard recipe needs 2 / 3.
        assert scales[0].tolist() == [0x38]
        assert unpacked(values)[0].tolist() == [6, 5, 4, 3, 2, 1, 9, 14, *[0] * 8]
        assert scales[1].tolist() == [0x38]
        assert unpacked(values)[1].tolist() == [7, 6, 5, 4, 3, 2, 1, 15, *[0] * 8]
        assert scales[2].tolist() == [0x38]
        assert unpacked(values)[2].tolist() == [7, *[0] * 15]
        # A maximum of zero: zero bytes, without the sign of -0 and the 6 of NaN.
        assert (scales[3:5].tolist(), values[3:5].any().item()) == ([[0], [0]], False)
        assert (scales[5].tolist(), unpacked(values)[5, :2].tolist()) == ([0x7E], [7, 0])
    _, standard = fp4_quantize(blocks, torch.ones(1), is_sf_swizzled_layout=False)
    assert standard[0].tolist() == [0x33]


def test_error_modes_choose_differently_and_each_chooses_its_own_smaller_error():
    matrix = torch.randn(64, 512, generator=torch.Generator().manual_seed(2)).half()
    scale = (256 * 6 / matrix.abs().max().float()).reshape(1)
    exact = matrix.double().view(64, 32, 16)
    standard = restored(*fp4_quantize(matrix, scale, is_sf_swizzled_layout=False), scale) - exact
    chosen = {}
    for mode in NVFP44Over6ErrMode:
        results = quantize(matrix, scale, NVFP44Over6Config(256, mode))
        difference = restored(*results, scale) - exact
        power = 1 if mode == NVFP44Over6ErrMode.MAE else 2
        error = difference.abs().pow(power).sum(-1)
        before = standard.abs().pow(power).sum(-1)
        assert (error <= before * (1 + 1e-5)).all()
        assert (error < before * 0.999).double().mean() > 0.3
        chosen[mode] = results[1]
    assert not torch.equal(*chosen.values())


TIES = (
    (NVFP44Over6Config(), 672.0, [
        -1.625, 2.5, 0.75, -2.0, -3.0, -1.875, 1.25, -1.75,
        -2.5, -0.75, 0.5, -2.125, 1.0, 1.625, 1.75, 2.625,
    ]),
    (NVFP44Over6Config(err_use_fast_math=True), 672.0 * 1.02, [
        -2.625, -2.25, 3.125, 3.25, -3.625, -1.875, -0.375, -0.625,
        -3.125, 1.5, -3.25, -2.625, 1.5, -0.125, -2.625, 2.0,
    ]),
)  # fmt: skip


@pytest.mark.parametrize(("config", "scale", "block"), TIES, ids=["exact", "fast"])
def test_errors_are_summed_in_the_order_of_the_elements(config, scale, block):
    """The two errors of these blocks differ by roundings of their sums alone."""
    forward = torch.tensor([block], dtype=torch.bfloat16)
    found = []
    for matrix in (forward, forward.flip(1)):
        values, block_scales = quantize(matrix, torch.tensor([scale]), config)
        codes, scale_codes = four_over_six(matrix, lambda row: F32(scale), config)
        assert block_scales.tolist() == scale_codes
        assert unpacked(values).tolist() == codes
        found.append(block_scales.item())
    assert found[0] != found[1]


@pytest.mark.parametrize("config", CONFIGS, ids=nvfp4_4over6_code)
def test_gaussian_error_is_below_that_of_the_standard_recipe(config):
    matrix = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3)).bfloat16()
    scale = (config.e4m3_max * 6 / matrix.abs().max().float()).reshape(1)
    exact = matrix.double().view(64, 64, 16)
    error = (restored(*quantize(matrix, scale, config), scale) - exact).norm() / exact.norm()
    assert 0.08 < error.item() < 0.09


def test_the_scale_for_4_saturates_at_448():
    """With 448, the block of the tensor's maximum cannot have the scale 672; with 256 it fits."""
    block = torch.tensor([[4.0, 3.0, 2.0, 1.5] * 4], dtype=torch.bfloat16)
    for e4m3_max, code in ((448, 0x7E), (256, 0x7C)):
        config = NVFP44Over6Config(e4m3_max)
        _, block_scales = quantize(block, torch.tensor([e4m3_max * 6 / 4.0]), config)
        assert block_scales.tolist() == [[code]]


@pytest.mark.parametrize("layout", SfLayout)
def test_every_layout_holds_the_same_scales(layout):
    matrix = torch.randn(33, 112, generator=torch.Generator().manual_seed(4)).bfloat16()
    flags = LAYOUTS[layout]
    values, block_scales = fp4_quantize(matrix, torch.ones(1), **flags, nvfp4_4over6=1)
    linear_values, linear = quantize(matrix, torch.ones(1), NVFP44Over6Config())
    assert torch.equal(values, linear_values)
    assert block_scales.sum() == linear.sum()
    tile = {SfLayout.layout_128x4: 128, SfLayout.layout_8x4: 40, SfLayout.layout_linear: 33}
    assert block_scales.shape == (tile[layout], 7 if layout is SfLayout.layout_linear else 8)


def test_column_major_and_empty_inputs():
    matrix = torch.randn(32, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    scale = torch.ones(1)
    values, block_scales = fp4_quantize(matrix, scale, **NVFP4, nvfp4_4over6=5)
    results = fp4_quantize(matrix.t(), scale, **NVFP4, nvfp4_4over6=5)
    assert torch.equal(results[0], values.t())
    assert torch.equal(results[1], block_scales.t())
    for shape in ((0, 32), (3, 0), (2, 0, 48)):
        values, _ = fp4_quantize(torch.zeros(shape).half(), scale, **NVFP4, nvfp4_4over6=1)
        assert values.shape == (*shape[:-1], shape[-1] // 2)
