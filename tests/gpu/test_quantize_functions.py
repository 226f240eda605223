"""`nvfp4_quantize`, `mxfp4_quantize`, the shuffles, scales for each row, and dequantization."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import EXACT, assert_equal, check_quantizer
from gpusuite.draw import BF16, FP8, FP16
from gpusuite.gpu_arithmetic import gpu_arithmetic

import fp4aot
from fp4aot.operators.arithmetic.scales import arrange
from fp4aot.operators.quantize import fp4_quantize

LAYOUTS = (
    fp4aot.SfLayout.layout_128x4,
    fp4aot.SfLayout.layout_8x4,
    fp4aot.SfLayout.layout_linear,
)
RECIPES = (None, *(fp4aot.NVFP44Over6Config(m, e, f) for m in (448, 256) for e in (0, 1)
           for f in (False, True)))  # fmt: skip
HALVES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)

quantizes = pytest.mark.needs("fp4_quantize")
per_token = [
    pytest.mark.subject("nvfp4_quantize_per_token"),
    pytest.mark.needs("nvfp4_quantize_per_token"),
]


def flags(layout):
    return layout != fp4aot.SfLayout.layout_linear, layout == fp4aot.SfLayout.layout_8x4


def shuffled_rows(rows: int) -> torch.Tensor:
    """Say where each row of a shuffled matrix comes from: in 32 rows, 4 i + j goes to 8 j + i."""
    source = torch.arange(rows)
    for row in range(rows):
        group, inner = divmod(row, 32)
        source[group * 32 + 8 * (inner % 4) + inner // 4] = row
    return source.cuda()


@quantizes
@pytest.mark.subject("nvfp4_quantize")
@pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_nvfp4_quantize_equals_the_reference(details, layout, dtype):
    for rows, columns in ((1, 16), (33, 80), (130, 2880), (1024, 512)):
        x = draw.values(rows, columns, dtype=dtype, seed=rows)
        scale = draw.global_scale(x)
        with gpu_arithmetic():
            expected = fp4_quantize(x, scale, 16, False, *flags(layout))
        assert_equal(details, EXACT, fp4aot.nvfp4_quantize(x, scale, layout), expected)


@quantizes
@pytest.mark.subject("nvfp4_quantize")
@pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
def test_nvfp4_quantize_with_shuffled_rows(details, dtype):
    for rows, columns in ((128, 64), (256, 80), (1024, 2048)):
        x = draw.values(rows, columns, dtype=dtype, seed=rows)
        scale = draw.global_scale(x)
        with gpu_arithmetic():
            values, scales = fp4_quantize(x, scale, 16, False, False)
        order = shuffled_rows(rows)
        expected = values[order], arrange(scales[order], fp4aot.SfLayout.layout_128x4)
        got = fp4aot.nvfp4_quantize(x, scale, do_shuffle=True)
        assert_equal(details, EXACT, got, expected)
        assert got[0].is_contiguous()


@quantizes
@pytest.mark.subject("mxfp4_quantize")
@pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_mxfp4_quantize_equals_the_reference(details, layout, dtype):
    for rows, columns in ((1, 32), (33, 96), (130, 2880), (1024, 512)):
        x = draw.values(rows, columns, dtype=dtype, seed=rows)
        with gpu_arithmetic():
            expected = fp4_quantize(x, None, 32, True, *flags(layout))
        for pdl in (None, False):
            got = fp4aot.mxfp4_quantize(x, enable_pdl=pdl, sfLayout=layout)
            assert_equal(details, EXACT, got, expected)


class TestPerToken:
    pytestmark = per_token

    @HALVES
    @pytest.mark.parametrize("layout", [0, 1, 2])
    def test_sizes(self, details, layout, dtype):
        for rows in (1, 7, 33, 127, 129, 1000):
            for columns in (16, 48, 96, 1040, 2880, 8192, 16384):
                with details.case(f"{rows} x {columns}"):
                    x = draw.values(rows, columns, dtype=dtype, seed=rows + columns)
                    check_quantizer(
                        details,
                        "nvfp4_quantize_per_token",
                        (x, 1 / 2688, None, layout),
                    )

    @HALVES
    @pytest.mark.parametrize("layout", [0, 1, 2])
    def test_some_rows(self, details, layout, dtype):
        for rows in (1, 9, 130, 1000):
            index = torch.randperm(rows, device="cuda").to(torch.int32)
            index[::3] = -1
            for extra in (0, 5):
                longer = torch.cat([index, torch.full_like(index[:1], -1).repeat(extra)])
                with details.case(f"{rows} rows, index of {rows + extra}"):
                    x = draw.values(rows, 320, dtype=dtype, seed=rows)
                    check_quantizer(
                        details,
                        "nvfp4_quantize_per_token",
                        (x, 1 / 2688, longer, layout),
                        whole=False,
                    )

    @HALVES
    @pytest.mark.parametrize("recipe", RECIPES[1:], ids=lambda c: str(fp4aot.nvfp4_4over6_code(c)))
    def test_four_over_six(self, details, recipe, dtype):
        code = fp4aot.nvfp4_4over6_code(recipe)
        inverse = 1 / (recipe.e4m3_max * 6)
        for rows, columns in ((1, 16), (33, 320), (129, 1040), (1025, 4096)):
            with details.case(f"{rows} x {columns}"):
                x = draw.values(rows, columns, dtype=dtype, seed=rows)
                arguments = (x, inverse, None, 0, code)
                check_quantizer(details, "nvfp4_quantize_per_token", arguments, neighbours=False)

    @HALVES
    def test_odd_values(self, details, dtype):
        x = draw.special(257, 1056, dtype)
        x[3], x[4], x[5] = 0.0, float("nan"), -0.0
        check_quantizer(details, "nvfp4_quantize_per_token", (x, 1 / 2688, None, 0), ties=None)

    @HALVES
    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
    def test_a_base_scale_on_the_device_gives_the_same(self, details, layout, dtype):
        x = draw.values(130, 2880, dtype=dtype)
        x[7] = 0.0
        inverse = torch.tensor([1 / 2688], device="cuda")
        number = fp4aot.nvfp4_quantize(x, float(inverse), layout, per_token_activation=True)
        torch.cuda.set_sync_debug_mode("error")
        try:
            tensor = fp4aot.nvfp4_quantize(x, inverse, layout, per_token_activation=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_equal(details, "bytes, base scale as a number", tensor, number)

    def test_shuffled_rows(self, details):
        x = draw.values(256, 320)
        plain = fp4aot.nvfp4_quantize(
            x, 1 / 2688, fp4aot.SfLayout.layout_linear, per_token_activation=True
        )
        got = fp4aot.nvfp4_quantize(x, 1 / 2688, do_shuffle=True, per_token_activation=True)
        order = shuffled_rows(256)
        scales = arrange(plain[1][order], fp4aot.SfLayout.layout_128x4)
        expected = plain[0][order], scales, plain[2][order]
        assert_equal(details, "bytes, rows moved one by one", got, expected)

    def test_empty(self):
        for shape in ((0, 64), (5, 0)):
            x = torch.empty(shape, dtype=BF16, device="cuda")
            for layout in (0, 1, 2):
                got = torch.ops.fp4aot.nvfp4_quantize_per_token(x, 1 / 2688, None, layout)
                expected = torch.ops.fp4aot.nvfp4_quantize_per_token(
                    x.cpu(), 1 / 2688, None, layout
                )
                for left, right in zip(got, expected, strict=True):
                    assert left.shape == right.shape
                    assert torch.equal(left.cpu(), right)


@pytest.mark.parametrize("operator", ["e2m1_and_ufp8sf_scale_to_float", "mxfp4_dequantize"])
def test_dequantization_equals_the_cpu_on_every_code(details, operator):
    codes = torch.arange(256, dtype=torch.uint8).repeat(256).reshape(256, 256)
    for layout in (0, 1, 2):
        for block in (16, 32):
            columns = 512 // block
            scales = torch.arange(256, dtype=torch.uint8).reshape(256, 1).repeat(1, columns)
            if operator == "mxfp4_dequantize":
                if block == 16:
                    continue
                arguments = (codes, scales, layout)
            else:
                scale = torch.tensor([0.37])
                swizzle = (layout != 2, layout == 1)
                arguments = (codes, scales, scale, block, 1 if block == 16 else 0, *swizzle)
            function = getattr(torch.ops.fp4aot, operator)
            got, expected = function(*draw.moved(arguments)).cpu(), function(*arguments)
            same = (got == expected) | (got.isnan() & expected.isnan())
            details.compared("values, the CPU's", expected.numel(), int((~same).sum()))
            assert bool(same.all())
