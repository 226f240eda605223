"""FP4 back to float32, against scalar arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_layouts import kernel_offset
from test_reference_e2m1 import VALUES
from test_reference_scales import E4M3

from fp4aot._layouts import SfLayout
from fp4aot.operators import dequantize
from fp4aot.operators.quantize import fp4_quantize

F32 = np.float32
LAYOUTS = {
    SfLayout.layout_128x4: {},
    SfLayout.layout_8x4: {"is_sf_8x4_layout": True},
    SfLayout.layout_linear: {"is_sf_swizzled_layout": False},
}


def element(byte: int, odd: int) -> np.float32:
    code = byte >> 4 if odd else byte & 15
    return F32(-VALUES[code & 7] if code & 8 else VALUES[code])


def e4m3(code: int) -> np.float32:
    if code & 0x7F == 0x7F:
        return F32(math.nan)
    return F32(-E4M3[code & 0x7F] if code & 0x80 else E4M3[code])


def ue8m0_by_shift(code: int) -> np.float32:
    return np.array([code << 23], dtype=np.uint32).view(np.float32)[0]


def assert_same(result: torch.Tensor, expected: list[list[np.float32]]) -> None:
    """Compare bit for bit, except that every NaN is the same."""
    array = torch.tensor(np.array(expected, dtype=np.float32).reshape(result.shape))
    assert result.dtype == torch.float32
    assert torch.equal(result.isnan(), array.isnan())
    number = ~array.isnan()
    assert torch.equal(result[number].view(torch.int32), array[number].view(torch.int32))


def random_case(rows: int, blocks: int, block: int, layout: SfLayout):
    generator = torch.Generator().manual_seed(rows + 31 * blocks)
    packed = torch.randint(0, 256, (rows, blocks * block // 2), generator=generator).byte()
    tile = {SfLayout.layout_128x4: 128, SfLayout.layout_8x4: 8}.get(layout, 1)
    size = -(-rows // tile) * tile * (blocks if tile == 1 else -(-blocks // 4) * 4)
    # All 256 codes, in an order with no period that the layout has.
    scales = (torch.arange(size) * 167 + 13).byte()

    def code(row: int, column: int) -> int:
        if layout is SfLayout.layout_linear:
            return scales[row * blocks + column].item()
        return scales[kernel_offset(row, column, blocks, layout)].item()

    return packed, scales, code


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("rows", [1, 7, 33, 129])
@pytest.mark.parametrize("ufp8_type", [0, 1])
def test_against_scalar_arithmetic(ufp8_type, rows, layout):
    block = 32 if ufp8_type == 0 else 16
    packed, scales, code = random_case(rows, 5, block, layout)
    global_scale = F32(0.3)
    with np.errstate(all="ignore"):
        expected = [
            [
                element(packed[row, k // 2].item(), k % 2)
                * (
                    ue8m0_by_shift(code(row, k // block))
                    if ufp8_type == 0
                    else e4m3(code(row, k // block)) * global_scale
                )
                for k in range(5 * block)
            ]
            for row in range(rows)
        ]
    scale = torch.tensor([float(global_scale)]) if ufp8_type == 1 else None
    arguments = (packed, scales, scale, block, ufp8_type)
    assert_same(dequantize.e2m1_and_ufp8sf_scale_to_float(*arguments, **LAYOUTS[layout]), expected)
    out = torch.full((rows, 5 * block), 7.0)
    dequantize.e2m1_and_ufp8sf_scale_to_float.out(*arguments, **LAYOUTS[layout], out=out)
    assert_same(out, expected)
    if ufp8_type == 0:
        assert_same(dequantize.mxfp4_dequantize(packed, scales, int(layout)), expected)
        out.fill_(7.0)
        dequantize.mxfp4_dequantize.out(packed, scales, int(layout), out=out)
        assert_same(out, expected)


def test_ue8m0_ignores_the_global_scale():
    packed, scales, _ = random_case(3, 2, 32, SfLayout.layout_linear)
    plain = dequantize.e2m1_and_ufp8sf_scale_to_float(
        packed, scales, None, 32, 0, is_sf_swizzled_layout=False
    )
    scaled = dequantize.e2m1_and_ufp8sf_scale_to_float(
        packed, scales, torch.tensor([5.0]), 32, 0, is_sf_swizzled_layout=False
    )
    assert torch.equal(plain.nan_to_num(), scaled.nan_to_num())


def test_host_function_reads_codes_as_cuda_does():
    packed, _, _ = random_case(8, 2, 32, SfLayout.layout_linear)
    scales = torch.tensor([[0, 1], [127, 128], [254, 255], [100, 120]] * 2).byte()

    def power(code: int) -> np.float32:
        return F32(math.nan) if code == 255 else F32(2.0 ** (code - 127))

    with np.errstate(all="ignore"):
        expected = [
            [
                # Adding zero: the host's table has +0 for code 8.
                (element(packed[row, k // 2].item(), k % 2) + F32(0))
                * power(scales[row, k // 32].item())
                for k in range(64)
            ]
            for row in range(8)
        ]
    assert_same(dequantize.mxfp4_dequantize_host(packed, scales), expected)


@pytest.mark.parametrize("layout", SfLayout)
def test_empty(layout):
    packed = torch.empty(0, 32, dtype=torch.uint8)
    scales = torch.empty(0, 4, dtype=torch.uint8)
    one = torch.ones(1)
    result = dequantize.e2m1_and_ufp8sf_scale_to_float(packed, scales, one, **LAYOUTS[layout])
    assert result.shape == (0, 64)
    assert dequantize.mxfp4_dequantize(packed, scales, int(layout)).shape == (0, 64)
    no_columns = torch.empty(3, 0, dtype=torch.uint8)
    assert dequantize.mxfp4_dequantize(no_columns, no_columns, int(layout)).shape == (3, 0)


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_round_trip_of_distinct_block_magnitudes(dtype, layout):
    """Every block has its own magnitude: a scale in another block's place is off by a factor."""
    rows, blocks = 33, 7
    magnitudes = torch.exp2((torch.arange(rows * blocks) % 13).float()).reshape(rows, blocks, 1)
    values = torch.rand(rows, blocks, 16, generator=torch.Generator().manual_seed(1)) + 0.5
    matrix = (values * magnitudes).reshape(rows, blocks * 16).to(dtype)
    global_scale = (448 * 6 / matrix.abs().max().float()).reshape(1)
    quantized = fp4_quantize(matrix, global_scale, **LAYOUTS[layout])
    result = dequantize.e2m1_and_ufp8sf_scale_to_float(
        *quantized, 1 / global_scale, **LAYOUTS[layout]
    )
    relative = (result - matrix.float()).abs() / matrix.float()
    assert relative.max() < 0.35
    cosine = torch.nn.functional.cosine_similarity(result.flatten(), matrix.float().flatten(), 0)
    assert cosine > 0.99
