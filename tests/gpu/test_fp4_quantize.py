"""`fp4_quantize`: formats, layouts, dtypes, ranks, strides, sizes, scales, recipes, odd values."""

from __future__ import annotations

import math

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import TIES, assert_equal, check_quantizer
from gpusuite.draw import BF16, FP8, FP16

import fp4aot

pytestmark = [pytest.mark.subject("fp4_quantize"), pytest.mark.needs("fp4_quantize")]

LAYOUTS = {"128x4": (True, False), "8x4": (True, True), "linear": (False, False)}
FORMATS = {"NVFP4": (16, False), "MXFP4": (32, True)}
DTYPES = (BF16, FP16, FP8)
ROWS = (1, 7, 33, 127, 128, 129, 1000)
# K / 16 odd and even, and divisible by 4 or not.
COLUMNS = {
    "NVFP4": (16, 32, 48, 80, 96, 112, 512, 1040, 2880, 7168, 16384),
    "MXFP4": (32, 96, 160, 512, 1056, 2880, 7168, 16384),
}
RECIPES = {
    f"{max_} {mode.name}{' fast' if fast else ''}": fp4aot.NVFP44Over6Config(max_, mode, fast)
    for max_ in (448, 256)
    for mode in (fp4aot.NVFP44Over6ErrMode.MAE, fp4aot.NVFP44Over6ErrMode.MSE)
    for fast in (False, True)
}

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=draw.name_of)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_format = pytest.mark.parametrize("format_", FORMATS)


def check(details, x, scale, format_="NVFP4", layout="128x4", inversed=False, pdl=None, recipe=0,
          ties=TIES):  # fmt: skip
    arguments = (x, scale, *FORMATS[format_], *LAYOUTS[layout], inversed, pdl, recipe)
    return check_quantizer(details, "fp4_quantize", arguments, neighbours=recipe == 0, ties=ties)


@every_dtype
@every_layout
@every_format
def test_sizes(details, format_, layout, dtype):
    for rows in ROWS:
        for columns in COLUMNS[format_]:
            with details.case(f"{rows} x {columns}"):
                x = draw.values(rows, columns, dtype=dtype, seed=rows + columns)
                check(details, x, draw.global_scale(x), format_, layout)


@every_dtype
@every_format
def test_many_codes(details, format_, dtype):
    x = draw.values(4096, 8192, dtype=dtype, seed=5)
    values, scales = check(details, x, draw.global_scale(x), format_)
    if dtype == FP8:
        return
    # What it is for: a small error for bell-shaped values.
    gaussian = torch.randn(1024, 4096, device="cuda").to(dtype)
    scale = draw.global_scale(gaussian)
    flags = (*FORMATS[format_], *LAYOUTS["128x4"])
    values, scales = torch.ops.fp4aot.fp4_quantize(gaussian, scale, *flags)
    if format_ == "NVFP4":
        restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, scales, 1 / scale)
    else:
        restored = fp4aot.mxfp4_dequantize(values, scales)
    error = float((restored - gaussian.float()).norm() / gaussian.float().norm())
    details.error(f"{format_} of Gaussian values, Frobenius norm", error)
    low, high = {"NVFP4": (0.09, 0.1), "MXFP4": (0.108, 0.122)}[format_]
    assert low < error < high


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
def test_float8_rows_and_columns_of_flashinfers_other_kernel(details, layout):
    """From 1024 rows and K divisible by 512 FlashInfer 0.7.2 cannot quantize fp8 in one call."""
    for rows in (1023, 1024, 1025, 1792, 1793, 2048, 3000):
        for columns in (512, 1024, 1536, 7168):
            with details.case(f"{rows} x {columns}"):
                x = draw.values(rows, columns, dtype=FP8, seed=rows)
                check(details, x, draw.global_scale(x), layout=layout)
    x = draw.values(2048, 1024, dtype=FP8)
    per_row = 448 * 6 / (1.0173 * x.float().abs().amax(dim=1))
    check(details, x, per_row, layout=layout)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
@every_layout
def test_rows_and_columns_of_the_kernel_with_bulk_copies(details, layout, dtype):
    """From 1024 rows and K divisible by 512 FlashInfer uses TMA."""
    for rows in (1023, 1024, 1025, 2048, 3001):
        for columns in (512, 1024, 1536, 7168):
            with details.case(f"{rows} x {columns}"):
                x = draw.values(rows, columns, dtype=dtype, seed=rows)
                check(details, x, draw.global_scale(x), layout=layout)


@every_dtype
@every_layout
@every_format
def test_three_dimensions_strides_and_alignment(details, format_, layout, dtype):
    flat = draw.values(1, 40 * 96 + 8, dtype=dtype)[0]
    wide = draw.values(129, 512, dtype=dtype)
    inputs = {
        "3-D": draw.values(3, 43, 96, dtype=dtype),
        "4-D": draw.values(2, 3, 5, 64, dtype=dtype),
        "part of wider rows": wide[:, 32 : 32 + 96],
        "part of wider rows, misaligned": wide[:, 3 : 3 + 96],
        "every other row": wide[::2],
        "every other column": wide[:, ::2],
        "rows repeated by expand": draw.values(1, 96, dtype=dtype).expand(33, 96),
        "3-D, transposed batch": draw.values(5, 3, 96, dtype=dtype).transpose(0, 1),
        "misaligned by one element": flat[1 : 1 + 40 * 96].view(40, 96),
        "misaligned by eight elements": flat[8 : 8 + 40 * 96].view(40, 96),
        "column major": draw.values(160, 96, dtype=dtype).t(),
        "column major, odd columns": draw.values(33, 96, dtype=dtype).t(),
        "3-D, column major": draw.values(2, 160, 96, dtype=dtype).transpose(-2, -1),
    }
    for name, x in inputs.items():
        with details.case(name):
            results = check(details, x, draw.global_scale(x), format_, layout)
            if name.startswith(("column", "3-D, column")):
                assert results[0].shape == (*x.shape[:-2], x.shape[-2] // 2, x.shape[-1])


@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
@every_dtype
def test_global_scales(details, dtype, layout):
    x = draw.values(131, 1040, dtype=dtype)
    one = draw.global_scale(x)
    per_row = 448 * 6 / (1.0173 * x.float().abs().amax(dim=1))
    scattered = torch.stack([per_row, per_row], dim=1)[:, 0]
    scales = {
        "one": (one, False),
        "one, inversed": (1 / one, True),
        "scalar": (one.reshape(()), False),
        "per row": (per_row, False),
        "per row, inversed": (1 / per_row, True),
        "per row, as a column": (per_row.reshape(-1, 1), False),
        "per row, strided": (scattered, False),
        "so large that block scales saturate": (one * 1000, False),
        "so small that block scales underflow": (one * 1e-6, False),
        "tiny": (one * 1e-30, False),
        "huge": (one * 1e30, False),
    }
    for name, (scale, inversed) in scales.items():
        with details.case(name):
            odd = name in ("tiny", "huge") or name.startswith("so ")
            check(details, x, scale, layout=layout, inversed=inversed, ties=None if odd else TIES)
    # Few bits in the mantissa: many values lie on a tie.
    for value in (1.0, 2.0, 0.5, 384.0):
        with details.case(f"{value}"):
            check(details, x, torch.tensor([value], device="cuda"), layout=layout, ties=1e-2)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
def test_four_over_six(details, dtype, recipe):
    code = fp4aot.nvfp4_4over6_code(RECIPES[recipe])
    e4m3_max = fp4aot.nvfp4_e4m3_max(RECIPES[recipe])
    for rows, columns in ((1, 16), (7, 48), (33, 320), (129, 1040), (1025, 1024), (2048, 4096)):
        for layout in LAYOUTS:
            with details.case(f"{rows} x {columns} {layout}"):
                x = draw.values(rows, columns, dtype=dtype, seed=rows)
                check(details, x, draw.global_scale(x, e4m3_max), layout=layout, recipe=code)
    x = draw.values(129, 1040, dtype=dtype)
    per_row = e4m3_max * 6 / (1.0173 * x.float().abs().amax(dim=1))
    with details.case("scale per row"):
        check(details, x, per_row, recipe=code)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
def test_four_over_six_is_the_better_of_two(details, dtype):
    x = torch.randn(1024, 2048, device="cuda").to(dtype)
    errors = []
    for config in (None, *RECIPES.values()):
        scale = fp4aot.nvfp4_e4m3_max(config) * 6 / x.float().abs().max().reshape(1)
        values, scales = fp4aot.fp4_quantize(x, scale, nvfp4_4over6=config)
        restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, scales, 1 / scale)
        errors.append(float((restored - x.float()).norm() / x.float().norm()))
    details.error("4-over-6 of Gaussian values, Frobenius norm", max(errors[1:]))
    assert max(errors[1:]) < errors[0]


@every_dtype
@every_layout
@every_format
def test_nan_infinity_huge_and_subnormal_values(details, format_, layout, dtype):
    for rows, columns in ((33, 320), (129, 1056), (1025, 512), (1025, 1056)):
        with details.case(f"{rows} x {columns}"):
            x = draw.special(rows, columns, dtype, seed=rows + columns)
            scale = draw.global_scale(draw.values(rows, columns))
            check(details, x, scale, format_, layout, ties=None)
    for name, value in {
        "NaN": math.nan,
        "zero": 0.0,
        "minus zero": -0.0,
        "largest": torch.finfo(dtype).max,
        "smallest normal": torch.finfo(dtype).smallest_normal,
        "smallest": torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps,
        **({} if dtype == FP8 else {"infinity": math.inf}),
    }.items():
        with details.case(f"nothing but {name}"):
            x = torch.full((130, 96), value, device="cuda").to(dtype)
            check(details, x, torch.tensor([37.3], device="cuda"), format_, layout, ties=None)


@pytest.mark.parametrize("recipe", RECIPES)
def test_odd_values_under_four_over_six(details, recipe):
    code = fp4aot.nvfp4_4over6_code(RECIPES[recipe])
    for dtype in (BF16, FP16):
        with details.case(draw.name_of(dtype)):
            x = draw.special(129, 1056, dtype, seed=3)
            scale = draw.global_scale(draw.values(129, 1056))
            check(details, x, scale, recipe=code, ties=None)


@every_dtype
@every_layout
@every_format
def test_empty_input(format_, layout, dtype):
    scale = torch.ones(1, device="cuda")
    for shape in ((0, 64), (3, 0, 64), (0, 5, 64), (5, 0)):
        x = torch.empty(shape, dtype=dtype, device="cuda")
        arguments = (x, scale, *FORMATS[format_], *LAYOUTS[layout])
        results = torch.ops.fp4aot.fp4_quantize(*arguments)
        on_cpu = torch.ops.fp4aot.fp4_quantize(*draw.moved(arguments, "cpu"))
        for got, expected in zip(results, on_cpu, strict=True):
            assert got.shape == expected.shape
            assert got.stride() == expected.stride()
            assert torch.equal(got.cpu(), expected)


@every_dtype
@every_layout
@every_format
def test_programmatic_dependent_launch_changes_nothing(details, format_, layout, dtype):
    x = draw.values(257, 1056, dtype=dtype)
    scale = draw.global_scale(x)
    plain = fp4aot.fp4_quantize(x, scale, *FORMATS[format_], *LAYOUTS[layout], enable_pdl=False)
    for pdl in (True, None):
        flagged = fp4aot.fp4_quantize(x, scale, *FORMATS[format_], *LAYOUTS[layout], enable_pdl=pdl)
        assert_equal(details, "bytes, without programmatic dependent launch", flagged, plain)


@pytest.mark.parametrize("rows", [1, 7, 31, 33, 129])
@every_format
@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_padding_is_zero_and_rows_do_not_depend_on_it(layout, format_, rows):
    """Rows padded to 128 or 8, and five columns of scales to eight, in memory full of NaN."""
    block, _ = FORMATS[format_]
    x = draw.values(rows, 5 * block)
    arguments = (x, draw.global_scale(x), *FORMATS[format_])
    values, scales = check_padding(arguments, layout)
    linear_values, linear = torch.ops.fp4aot.fp4_quantize(*arguments, *LAYOUTS["linear"])
    assert torch.equal(values, linear_values)
    assert int(scales.long().sum()) == int(linear.long().sum())
    nonzero = scales.flatten()[scales.flatten() != 0].sort()[0]
    assert torch.equal(nonzero, linear.flatten()[linear.flatten() != 0].sort()[0])


def check_padding(arguments, layout):
    from gpusuite import memory

    memory.poison()
    return torch.ops.fp4aot.fp4_quantize(*arguments, *LAYOUTS[layout])
