"""The CPU kernel of fp4_quantize against a scalar restatement of FlashInfer's kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import kernel_offset
from test_reference_e2m1 import VALUES, nearest_code
from test_reference_scales import E4M3, e4m3_code, ue8m0_code

from fp4aot._layouts import SfLayout
from fp4aot.operators.quantize import fp4_quantize

F32 = np.float32
SIXTH = F32(1) / F32(6)
DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
LAYOUTS = {
    SfLayout.layout_128x4: {},
    SfLayout.layout_8x4: {"is_sf_8x4_layout": True},
    SfLayout.layout_linear: {"is_sf_swizzled_layout": False},
}
NVFP4 = {"sf_vec_size": 16, "sf_use_ue8m0": False}
MXFP4 = {"sf_vec_size": 32, "sf_use_ue8m0": True}
# Of calls with any number of dimensions, all but the rows.
BATCHES = {
    "batch": st.lists(st.integers(0, 3), max_size=2),
    "blocks": st.integers(0, 7),
    "recipe": st.sampled_from([NVFP4, MXFP4]),
    "layout": st.sampled_from(list(SfLayout)),
    "dtype": st.sampled_from(DTYPES),
}


def ftz(value):
    return math.copysign(F32(0), value) if abs(value) < F32(2.0**-126) else value


def multiply(left, right):
    return F32(ftz(F32(ftz(F32(left)) * ftz(F32(right)))))


def invert(value):
    return F32(ftz(F32(1) / F32(ftz(F32(value)))))


def largest(block):
    """Reduce as the GPU's maximum: an operand that is NaN gives way to one that is not."""
    result = F32(math.nan)
    for value in block:
        result = F32(np.fmax(result, abs(value)))
    return result


def largest_of_pairs(block):
    """End as `cuda_max` does, with the maxima of even and of odd places."""
    even, odd = largest(block[0::2]), largest(block[1::2])
    return even if even > odd else odd


def decode_e4m3(code):
    return (
        F32(math.nan)
        if code & 0x7F == 0x7F
        else F32((-1 if code & 0x80 else 1) * E4M3[code & 0x7F])
    )


def quantize_block(block, scale, dtype, use_ue8m0):
    """Return (E2M1 codes, scale code) of one block, an operation at a time as in the kernels."""
    if dtype == torch.float8_e4m3fn:
        widening = multiply(6, invert(scale))
        block = [F32(np.float16(multiply(value, widening))) for value in block]
        factor = multiply(scale, multiply(largest(block), SIXTH))
        if use_ue8m0:
            code = ue8m0_code(float(factor))
            narrow = F32(math.nan) if code == 255 else F32(2.0 ** (code - 127))
        else:
            code = e4m3_code(float(factor))
            narrow = decode_e4m3(code)
        output = multiply(scale, invert(narrow)) if factor != 0 else F32(0)
    elif use_ue8m0:
        factor = multiply(largest_of_pairs(block), SIXTH)
        code = ue8m0_code(float(factor))
        power = F32(1) if code == 0 else F32(ftz(F32(2.0 ** (127 - code))))
        output = power if factor != 0 else F32(0)
    else:
        maximum = F32(ftz(largest_of_pairs(block)))
        code = e4m3_code(float(multiply(scale, multiply(maximum, SIXTH))))
        output = F32(0)
        if maximum != 0:
            output = invert(multiply(decode_e4m3(code), invert(scale)))
    return [nearest_code(float(multiply(value, output))) for value in block], code


def quantize_matrix(matrix, scale_of_row, sf_vec_size, sf_use_ue8m0):
    """Return (codes [M][K], scale codes [M][K / block]) of a matrix."""
    all_codes, all_scales = [], []
    for row, values in enumerate(matrix.to(torch.float32).tolist()):
        codes, scale_codes = [], []
        for start in range(0, len(values), sf_vec_size):
            block = [F32(value) for value in values[start : start + sf_vec_size]]
            block_codes, code = quantize_block(block, scale_of_row(row), matrix.dtype, sf_use_ue8m0)
            codes += block_codes
            scale_codes.append(code)
        all_codes.append(codes)
        all_scales.append(scale_codes)
    return all_codes, all_scales


def unpacked(values):
    return torch.stack((values & 15, values >> 4), -1).flatten(-2)


def hostile_matrix(dtype: torch.dtype) -> torch.Tensor:
    """Make rows of 64 that visit the corners: NaN, infinity, zeros, tiny and huge blocks, ties."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(14, 64, generator=generator)
    matrix[1] = 0.0
    matrix[2, ::3] = -0.0
    matrix[3, 5] = math.nan
    matrix[3, 16:32:2] = math.nan  # all even places of a block, then all odd ones
    matrix[3, 33:48:2] = math.nan
    matrix[4] = math.nan
    matrix[5, 40] = math.inf
    matrix[6, 40] = -math.inf
    matrix[7] *= 1e-6
    matrix[8] *= 3e-39
    matrix[9] *= 100.0
    matrix[10] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]).repeat(8)
    matrix[11] = -matrix[10]
    matrix[12] *= 60000.0
    matrix[13, 16:] = 1e-30
    if dtype == torch.float8_e4m3fn:
        return (
            matrix.nan_to_num(nan=math.nan, posinf=448.0, neginf=-448.0).clamp(-448, 448).to(dtype)
        )
    return matrix.to(dtype)


@pytest.mark.parametrize("inversed", [False, True])
@pytest.mark.parametrize("scale", [1.0, 448.0, 0.37, 1e-6, 1e30, 1e-42, 0.0, -2.0, math.inf])
@pytest.mark.parametrize("recipe", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_values_match_the_scalar_kernel(dtype, recipe, scale, inversed):
    matrix = hostile_matrix(dtype)
    values, block_scales = fp4_quantize(
        matrix,
        torch.tensor([scale]),
        **recipe,
        is_sf_swizzled_layout=False,
        is_global_scale_inversed=inversed,
    )
    with np.errstate(all="ignore"):
        factor = invert(scale) if inversed else F32(scale)
        codes, scale_codes = quantize_matrix(matrix, lambda row: factor, **recipe)
    assert block_scales.tolist() == scale_codes
    assert unpacked(values).tolist() == codes


@pytest.mark.parametrize("inversed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_global_scale_for_each_row(dtype, inversed):
    matrix = torch.randn(5, 32, generator=torch.Generator().manual_seed(2)).to(dtype)
    scale = torch.tensor([1.0, 30.0, 0.01, 448.0, 7.0])
    values, block_scales = fp4_quantize(
        matrix, scale, is_sf_swizzled_layout=False, is_global_scale_inversed=inversed
    )
    factors = [invert(s) if inversed else F32(s) for s in scale.tolist()]
    with np.errstate(all="ignore"):
        codes, scale_codes = quantize_matrix(matrix, lambda row: factors[row], **NVFP4)
    assert block_scales.tolist() == scale_codes
    assert unpacked(values).tolist() == codes


def test_every_bfloat16_magnitude_as_a_block():
    """Each block is one magnitude, so that its scale sweeps the whole range of both formats."""
    magnitudes = torch.arange(0, 2**15, 37).to(torch.int16).view(torch.bfloat16)
    matrix = magnitudes.unsqueeze(1).expand(-1, 32).contiguous()
    for recipe in (NVFP4, MXFP4):
        values, block_scales = fp4_quantize(
            matrix, torch.ones(1), **recipe, is_sf_swizzled_layout=False
        )
        with np.errstate(all="ignore"):
            codes, scale_codes = quantize_matrix(matrix, lambda row: F32(1), **recipe)
        assert block_scales.tolist() == scale_codes
        assert unpacked(values).tolist() == codes


def test_special_blocks_by_hand():
    """Pin the corners to literal bytes, in case the restatement repeats a mistake."""
    nan, inf = math.nan, math.inf
    rows = torch.zeros(5, 32, dtype=torch.bfloat16)
    rows[0, 0], rows[0, 1] = nan, 6.0
    rows[1] = nan
    rows[2, 0], rows[2, 1] = inf, -inf
    rows[3, :] = -0.0
    rows[4, 0], rows[4, 1] = 2.0**-20, -(2.0**-20)
    arguments = {"is_sf_swizzled_layout": False}
    values, scales = fp4_quantize(rows, torch.ones(1), **NVFP4, **arguments)
    # NaN is +6 and does not enter the maximum, which is 6: the scale is 1.
    assert (scales[0, 0].item(), values[0, 0].item()) == (0x38, 0x77)
    # Nothing but NaN.
    assert (scales[1].tolist(), set(values[1].tolist())) == ([0x7F, 0x7F], {0x77})
    # The largest finite scale; the other elements of the block are 0 / finite.
    assert (scales[2, 0].item(), values[2, 0].item(), values[2, 1].item()) == (0x7E, 0xF7, 0)
    assert (scales[3].tolist(), set(values[3].tolist())) == ([0, 0], {0x88})
    # A scale that underflows to zero while the block is not zero: 1 / 0 saturates, 0 / 0 is NaN.
    assert (scales[4, 0].item(), values[4, 0].item(), values[4, 1].item()) == (0, 0xF7, 0x77)

    values, scales = fp4_quantize(rows, **MXFP4, **arguments)
    assert (scales[0].tolist(), values[0, 0].item()) == ([127], 0x77)
    assert (scales[1].tolist(), set(values[1].tolist())) == ([255], {0x77})
    # 2^(127 - 254) is subnormal, flushed to zero, and inf * 0 is NaN.
    assert (scales[2].tolist(), values[2, 0].item(), values[2, 1].item()) == ([254], 0x77, 0)
    assert (scales[3].tolist(), set(values[3].tolist())) == ([0], {0x88})
    assert (scales[4].tolist(), values[4, 0].item()) == ([127 - 22], 0xE6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gaussian_nvfp4_error(dtype):
    matrix = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3)).to(dtype)
    scale = 448 * 6 / matrix.abs().max().float()
    values, block_scales = fp4_quantize(matrix, scale.reshape(1), is_sf_swizzled_layout=False)
    table = torch.tensor([*VALUES, *(-value for value in VALUES)])
    factors = block_scales.view(torch.float8_e4m3fn).float() / scale
    decoded = table[unpacked(values).long()].view(64, 64, 16) * factors.unsqueeze(-1)
    exact = matrix.double()
    error = ((decoded.reshape(64, 1024) - exact).norm() / exact.norm()).item()
    assert 0.09 < error < 0.1


def test_gaussian_mxfp4_error():
    matrix = torch.randn(64, 1024, generator=torch.Generator().manual_seed(4)).bfloat16()
    values, block_scales = fp4_quantize(matrix, **MXFP4, is_sf_swizzled_layout=False)
    table = torch.tensor([*VALUES, *(-value for value in VALUES)])
    factors = torch.exp2(block_scales.float() - 127)
    decoded = table[unpacked(values).long()].view(64, 32, 32) * factors.unsqueeze(-1)
    exact = matrix.double()
    error = ((decoded.reshape(64, 1024) - exact).norm() / exact.norm()).item()
    assert 0.11 < error < 0.12


def test_mxfp4_ignores_the_global_scale_except_from_fp8():
    matrix = torch.randn(4, 64, generator=torch.Generator().manual_seed(5))
    for dtype in (torch.float16, torch.bfloat16):
        plain = fp4_quantize(matrix.to(dtype), **MXFP4)
        scaled = fp4_quantize(matrix.to(dtype), torch.tensor([100.0]), **MXFP4)
        assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))
    fp8 = matrix.to(torch.float8_e4m3fn)
    one = fp4_quantize(fp8, torch.tensor([1.0]), **MXFP4)
    # The widening to float16 divides by the scale, the block scale multiplies by it again: a power
    # of two cancels, another factor rounds differently.
    other = fp4_quantize(fp8, torch.tensor([0.3]), **MXFP4)
    absent = fp4_quantize(fp8, None, **MXFP4)
    assert all(torch.equal(a, b) for a, b in zip(one, absent, strict=True))
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("recipe", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize("rows", [0, 1, 7, 31, 33, 129])
def test_scales_lie_where_the_kernel_puts_them_and_padding_is_zero(rows, recipe, layout):
    # Seven and three blocks a row: not divisible by four.
    columns = 112 if recipe is NVFP4 else 96
    blocks = columns // recipe["sf_vec_size"]
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(6)).bfloat16()
    scale = torch.ones(1)
    values, swizzled = fp4_quantize(matrix, scale, **recipe, **LAYOUTS[layout])
    linear_values, linear = fp4_quantize(matrix, scale, **recipe, is_sf_swizzled_layout=False)
    assert torch.equal(values, linear_values)
    assert linear.shape == (rows, blocks)
    if layout is SfLayout.layout_linear:
        return
    tile = 128 if layout is SfLayout.layout_128x4 else 8
    padded = (-(-rows // tile) * tile, -(-blocks // 4) * 4)
    assert swizzled.shape == padded
    expected = [0] * (padded[0] * padded[1])
    for row in range(rows):
        for column in range(blocks):
            expected[kernel_offset(row, column, blocks, layout)] = linear[row, column].item()
    assert swizzled.reshape(-1).tolist() == expected


@pytest.mark.parametrize("layout", SfLayout)
def test_gpt_oss_columns(layout):
    matrix = torch.ones(3, 2880, dtype=torch.bfloat16)
    _, block_scales = fp4_quantize(matrix, **MXFP4, **LAYOUTS[layout])
    rows = {SfLayout.layout_128x4: 128, SfLayout.layout_8x4: 8, SfLayout.layout_linear: 3}
    columns = 90 if layout is SfLayout.layout_linear else 92
    assert block_scales.shape == (rows[layout], columns)


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("rows", [1, 33, 129])
def test_what_the_buffers_held_does_not_matter(rows, layout):
    matrix = torch.randn(rows, 112, generator=torch.Generator().manual_seed(7)).half()
    scale = torch.tensor([3.0])
    expected = fp4_quantize(matrix, scale, **LAYOUTS[layout])
    for poison in (0x7F, 0xFF):
        buffers = [torch.full_like(result, poison) for result in expected]
        returned = fp4_quantize.out(
            matrix, scale, **LAYOUTS[layout], values=buffers[0], block_scales=buffers[1]
        )
        assert returned is None
        assert all(torch.equal(a, b) for a, b in zip(buffers, expected, strict=True))


@settings(max_examples=40)
@given(**BATCHES, rows=st.integers(0, 40))
def test_leading_dimensions_are_rows(batch, rows, blocks, recipe, layout, dtype):
    columns = blocks * recipe["sf_vec_size"]
    tensor = torch.randn(*batch, rows, columns).to(dtype)
    total = math.prod([*batch, rows])
    values, block_scales = fp4_quantize(tensor, torch.ones(1), **recipe, **LAYOUTS[layout])
    flat = fp4_quantize(tensor.reshape(total, columns), torch.ones(1), **recipe, **LAYOUTS[layout])
    assert values.shape == (*batch, rows, columns // 2)
    assert torch.equal(values.reshape(total, columns // 2), flat[0])
    assert torch.equal(block_scales, flat[1])


@pytest.mark.parametrize("shape", [(32, 64), (3, 32, 64)])
@pytest.mark.parametrize("layout", SfLayout)
def test_column_major_input(shape, layout):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(8)).bfloat16()
    scale = torch.ones(1)
    values, block_scales = fp4_quantize(tensor, scale, **LAYOUTS[layout])
    results = fp4_quantize(tensor.transpose(-2, -1), scale, **LAYOUTS[layout])
    assert torch.equal(results[0], values.transpose(-2, -1))
    assert torch.equal(results[1], block_scales.transpose(-2, -1))
    assert results[0].stride() == values.transpose(-2, -1).stride()
    assert results[1].stride() == block_scales.transpose(-2, -1).stride()
    buffers = [
        torch.full_like(result.transpose(-2, -1), 0x7F).transpose(-2, -1) for result in results
    ]
    fp4_quantize.out(
        tensor.transpose(-2, -1),
        scale,
        **LAYOUTS[layout],
        values=buffers[0],
        block_scales=buffers[1],
    )
    assert all(torch.equal(a, b) for a, b in zip(buffers, results, strict=True))


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor[:, :64],
        lambda tensor: tensor[::2],
        lambda tensor: tensor[:, ::2],
        # Stride 1 in the second-to-last dimension, but not the transpose of a contiguous tensor.
        lambda tensor: tensor[:, :64].t(),
    ],
)
def test_other_strides_are_copied_first(view):
    tensor = view(torch.randn(32, 128, generator=torch.Generator().manual_seed(9)).bfloat16())
    assert not tensor.is_contiguous()
    results = fp4_quantize(tensor, torch.ones(1))
    expected = fp4_quantize(tensor.contiguous(), torch.ones(1))
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert all(result.is_contiguous() for result in results)


def test_input_and_scale_are_not_changed():
    tensor = hostile_matrix(torch.bfloat16)
    scale = torch.tensor([1e-42])
    before = tensor.view(torch.int16).clone(), scale.clone()
    fp4_quantize(tensor, scale)
    assert torch.equal(tensor.view(torch.int16), before[0])
    assert torch.equal(scale, before[1])
