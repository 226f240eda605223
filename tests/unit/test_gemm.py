"""`mm_fp4` and `fp4_linear` on the CPU, against products computed number by number."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import gemm
from fp4aot.operators.matmul import mm_fp4
from fp4aot.operators.quantize import fp4_quantize

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 += [-value for value in E2M1]
SIZES = (2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)
# Rows and columns on both sides of a tile of 128, K whose scales fill their tiles of 4 and not.
SHAPES = [(1, 32, 32), (3, 64, 96), (128, 128, 128), (130, 96, 160), (257, 160, 416)]


def random_bytes(*shape: int, high: int = 256, low: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 7)
    return torch.randint(low, high, shape, generator=generator).to(torch.uint8)


def swizzle(codes: torch.Tensor, padding: int = 0) -> torch.Tensor:
    """Put scale bytes `[rows, columns]` into the 128x4 layout, one by one."""
    rows, columns = codes.shape
    padded_rows, padded_columns = -(-rows // 128) * 128, -(-columns // 4) * 4
    buffer = torch.full((padded_rows * padded_columns,), padding, dtype=torch.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * (padded_columns // 4) + column // 4
            inside = row % 32 * 16 + row % 128 // 32 * 4 + column % 4
            buffer[tile * 512 + inside] = codes[row, column]
    return buffer.view(padded_rows, padded_columns)


class Factor:
    """A random packed matrix `[rows, K]` with another scale for each block."""

    def __init__(self, rows: int, k: int, padding: int = 0) -> None:
        self.packed = random_bytes(rows, k // 2)
        # 1 .. 126 are the positive E4M3 numbers.
        self.codes = random_bytes(rows, k // 16, low=1, high=127)
        self.scales = swizzle(self.codes, padding)

    def values(self) -> torch.Tensor:
        table = torch.tensor(E2M1, dtype=torch.float64)
        nibbles = torch.stack((self.packed % 16, self.packed // 16), -1).flatten(1).long()
        scales = self.codes.view(torch.float8_e4m3fn).to(torch.float64)
        return table[nibbles] * scales.repeat_interleave(16, dim=1)


def factors(m: int, k: int, n: int, padding: int = 0):
    a, b = Factor(m, k, padding), Factor(n, k, padding)
    return a, b, (a.packed, b.packed.T, a.scales, b.scales.T, torch.tensor([0.0037]))


def batch(count: int, m: int, k: int, n: int):
    """Make a batch of factors and the same ones by themselves."""
    single = [factors(m + i, k, n)[2] for i in range(count)]
    single = [(a[:m].clone(), b, sa[: -(-m // 128) * 128], sb, s) for a, b, sa, sb, s in single]
    a, b, a_scales, b_scales = (torch.stack([call[i] for call in single]) for i in range(4))
    weight = b.transpose(-2, -1).contiguous()
    scales = b_scales.transpose(-2, -1).contiguous()
    return single, (a, weight.transpose(-2, -1), a_scales, scales, single[0][4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_product_of_dequantized_factors(m, k, n, dtype):
    a, b, arguments = factors(m, k, n)
    exact = (a.values() @ b.values().T).float() * arguments[4]
    result = mm_fp4(*arguments, dtype)
    assert torch.equal(result, exact.to(dtype))
    assert result.is_contiguous()


def test_the_sum_is_exact():
    """Small products between large ones that cancel: float32 loses them in any order."""
    a, b = torch.full((1, 512), 0x77).byte(), torch.full((32, 512), 0x77).byte()
    b[:, 256:] |= 0x88
    a[:, 255] = b[:, 255] = a[:, 511] = b[:, 511] = 0x01
    codes = torch.full((32, 64), 0x7E).byte()  # 448
    codes[:, 31] = codes[:, 63] = 0x01  # 2^-9: the blocks that hold the small products
    a[:, 248:255] = a[:, 504:511] = 0
    scales = swizzle(codes)
    result = mm_fp4(a, b.T, scales, scales, torch.tensor([2.0**20]), torch.bfloat16)
    assert torch.equal(result, torch.full((1, 32), 2.0).bfloat16())


def test_the_result_is_rounded_once():
    """1 + 2^-8 is a tie between two bfloat16 numbers; what decides it lies far below."""
    a = torch.zeros(1, 16).byte()
    a[0, 0], a[0, 8] = 0x02, 0x01  # 1 in the first block, 0.5 in the second
    b = torch.zeros(32, 16).byte()
    b[:, 0], b[:, 8] = 0x02, 0x01
    codes = torch.tensor([[0x38, 0x20]], dtype=torch.uint8).expand(32, 2)
    assert codes.view(torch.float8_e4m3fn)[0].tolist() == [1, 2.0**-3]
    arguments = (a, b.T, swizzle(codes[:1]), swizzle(codes))
    result = mm_fp4(*arguments, torch.ones(1), torch.bfloat16)
    assert torch.equal(result, torch.ones(1, 32).bfloat16())  # to even
    result = mm_fp4(*arguments, torch.tensor([1 + 2.0**-20]), torch.bfloat16)
    assert torch.equal(result, torch.full((1, 32), 1 + 2.0**-7).bfloat16())


def test_rows_do_not_depend_on_each_other():
    a, _, (packed, b, _, b_scales, alpha) = factors(130, 2080, 64)
    result = mm_fp4(packed, b, a.scales, b_scales, alpha, torch.bfloat16)
    for row in (0, 127, 128):
        scales = swizzle(a.codes[row : row + 1])
        alone = mm_fp4(packed[row : row + 1], b, scales, b_scales, alpha, torch.bfloat16)
        assert torch.equal(alone[0], result[row])


def test_padding_of_the_scales_is_not_read():
    plain = mm_fp4(*factors(130, 96, 160)[2], torch.bfloat16)
    assert torch.equal(mm_fp4(*factors(130, 96, 160, padding=0x7F)[2], torch.bfloat16), plain)


@pytest.mark.parametrize(("m", "k", "n"), [(3, 64, 96), (130, 96, 160)])
def test_a_batch_is_its_matrices(m, k, n):
    single, arguments = batch(3, m, k, n)
    expected = torch.stack([mm_fp4(*call, torch.float16) for call in single])
    assert not torch.equal(expected[0], expected[1])
    a, b, a_scales, b_scales, alpha = arguments
    assert torch.equal(mm_fp4(*arguments, torch.float16), expected)
    transposed = b_scales.transpose(-2, -1)
    assert torch.equal(mm_fp4(a, b, a_scales, transposed, alpha, torch.float16), expected)


def test_every_form_of_the_arguments():
    a, b, arguments = factors(130, 96, 160)
    expected = mm_fp4(*arguments, torch.bfloat16)
    alpha = arguments[4]
    float8 = (a.scales.view(torch.float8_e4m3fn), b.scales.view(torch.float8_e4m3fn))
    float4 = torch.float4_e2m1fn_x2
    strided = torch.stack((a.packed, a.packed), -1)[..., 0]
    assert not strided.is_contiguous()
    for call in (
        (a.packed, b.packed.T, a.scales, b.scales, alpha),
        (a.packed, b.packed.T, a.scales.flatten(), b.scales.flatten(), alpha.reshape(())),
        (a.packed, b.packed.T, a.scales.reshape(2, 8, 128), b.scales, alpha.reshape(1, 1)),
        (a.packed, b.packed.T, *float8, alpha),
        (a.packed, b.packed.T, float8[0], float8[1].T, alpha),
        (a.packed.view(float4), b.packed.T.view(float4), *float8, alpha),
        (a.packed.view(float4), b.packed.T, a.scales, b.scales, alpha),
        (strided, b.packed.T, a.scales, b.scales, alpha),
    ):
        assert torch.equal(mm_fp4(*call, torch.bfloat16), expected)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert mm_fp4.default.fake(*call, torch.bfloat16).shape == expected.shape


def test_nan_and_overflow():
    a, _, (packed, b, _, b_scales, _) = factors(3, 64, 96)
    codes = a.codes.clone()
    codes[1, 2] = 0x7F
    scales = swizzle(codes)
    result = mm_fp4(packed, b, scales, b_scales, torch.tensor([1e30]), torch.float16)
    assert result[1].isnan().all()
    assert result[[0, 2]].isinf().any()
    assert not result[[0, 2]].isnan().any()


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 4)])
def test_nothing_to_multiply(shape):
    *lead, m = shape
    a = torch.zeros(*shape, 32).byte()
    b = torch.zeros(*lead, 96, 32).byte().transpose(-2, -1)
    padded = -(-m // 128) * 128
    scales = torch.zeros(*lead, padded, 4).byte(), torch.zeros(*lead, 128, 4).byte()
    result = mm_fp4(a, b, *scales, torch.ones(1), torch.bfloat16)
    assert result.shape == (*shape, 96)
    assert result.dtype == torch.bfloat16


def test_out_form():
    arguments = factors(130, 96, 160)[2]
    for dtype in (torch.bfloat16, torch.float16):
        out = torch.full((130, 160), 7.0, dtype=dtype)
        assert mm_fp4.out(*arguments, out=out) is None
        assert torch.equal(out, mm_fp4(*arguments, dtype))


def test_quantized_gaussians_have_the_error_of_nvfp4():
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(size, 512, generator=generator) for size in (130, 160))
    scales = [448 * 6 / x.abs().max().reshape(1) for x in (a, b)]
    (a_packed, a_scales), (b_packed, b_scales) = (
        fp4_quantize(x.bfloat16(), scale) for x, scale in zip((a, b), scales, strict=True)
    )
    alpha = 1 / (scales[0] * scales[1])
    result = mm_fp4(a_packed, b_packed.T, a_scales, b_scales, alpha, torch.bfloat16)
    exact = a @ b.T
    # Each factor is off by 0.095; the errors are independent.
    assert 0.12 < (result.float() - exact).norm() / exact.norm() < 0.145


def describe(result):
    return result.dtype, tuple(result.shape), result.stride(), result.device


@settings(max_examples=40)
@given(
    lead=st.lists(st.integers(0, 3), max_size=1),
    m=st.integers(0, 140),
    k=st.integers(1, 5),
    n=st.integers(1, 5),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_fake_returns_what_the_kernel_does(lead, m, k, n, dtype):
    def call(function):
        a = torch.zeros(*lead, m, k * 16, dtype=torch.uint8)
        b = torch.zeros(*lead, n * 32, k * 16, dtype=torch.uint8).transpose(-2, -1)
        columns = -(-k * 2 // 4) * 4
        a_scales = torch.zeros(*lead, -(-m // 128) * 128, columns, dtype=torch.uint8)
        b_scales = torch.zeros(*lead, -(-n * 32 // 128) * 128, columns, dtype=torch.uint8)
        return describe(function(a, b, a_scales, b_scales, torch.ones(1), dtype))

    real = call(mm_fp4)
    with FakeTensorMode():
        assert call(mm_fp4.default.fake) == real


# The public functions


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def test_the_signature_is_flashinfers_with_one_more_argument():
    names = (
        "a b a_descale b_descale alpha out_dtype out block_size use_8x4_sf_layout backend "
        "use_nvfp4 enable_pdl tactic"
    )
    assert list(inspect.signature(gemm.mm_fp4).parameters) == names.split()


def test_public_function():
    arguments = factors(130, 96, 160)[2]
    expected = mm_fp4(*arguments, torch.bfloat16)
    assert torch.equal(gemm.mm_fp4(*arguments), expected)
    assert torch.equal(gemm.mm_fp4(*arguments, backend="cutlass", tactic=2), expected)
    half = gemm.mm_fp4(*arguments, torch.float16)
    assert half.dtype == torch.float16
    out = torch.empty(130, 160, dtype=torch.float16)
    assert gemm.mm_fp4(*arguments, out=out) is out
    assert torch.equal(out, half)
    with pytest.raises(RuntimeError, match="argument 'alpha': got None"):
        gemm.mm_fp4(*arguments[:4])
    for keywords in ({}, {"out": out}):
        with pytest.raises(RuntimeError, match="argument 'tactic': got -2"):
            gemm.mm_fp4(*arguments, **keywords, tactic=-2)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"backend": "cudnn"}, ValueError, r"backend='cudnn'.*backend='cutlass'.*flashinfer"),
        ({"use_nvfp4": False, "block_size": 32}, NotImplementedError, r"MXFP4.*nvfp4_quantize"),
        ({"block_size": 32}, ValueError, r"block_size=32.*block_size=16"),
        ({"use_8x4_sf_layout": True}, NotImplementedError, r"use_8x4_sf_layout.*layout_128x4"),
    ],
)
def test_public_function_names_what_is_missing(keywords, error, words):
    with pytest.raises(error, match=words):
        gemm.mm_fp4(*factors(3, 64, 96)[2], **keywords)


class Linear:
    """The arguments of `fp4_linear` for a random weight `[96, 64]`."""

    def __init__(self, n: int = 96, k: int = 64) -> None:
        generator = torch.Generator().manual_seed(5)
        self.exact = torch.randn(n, k, generator=generator)
        scale = 448 * 6 / self.exact.abs().max().reshape(1)
        self.weight, self.weight_scale = fp4_quantize(self.exact.bfloat16(), scale)
        self.input_global_scale = torch.tensor([448 * 6 / 4.0])
        self.alpha = 1 / (self.input_global_scale * scale)
        self.bias = torch.randn(n, generator=generator).bfloat16()

    def arguments(self, **changes):
        names = ("weight", "weight_scale", "alpha", "input_global_scale", "bias")
        return {**{name: getattr(self, name) for name in names}, **changes}


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).clamp(-4, 4).bfloat16()


def test_linear_is_quantize_multiply_add():
    linear, x = Linear(), draw(130, 64)
    values, scales = fp4_quantize(x, linear.input_global_scale)
    product = mm_fp4(
        values, linear.weight.T, scales, linear.weight_scale, linear.alpha, torch.bfloat16
    )
    arguments = linear.arguments()
    assert torch.equal(gemm.fp4_linear(x, **arguments), product + linear.bias)
    arguments["bias"] = None
    assert torch.equal(gemm.fp4_linear(x, **arguments), product)
    exact = x.float() @ linear.exact.T
    assert (product.float() - exact).norm() / exact.norm() < 0.15


def test_linear_takes_any_leading_dimensions():
    linear, x = Linear(), draw(30, 64)
    expected = gemm.fp4_linear(x, **linear.arguments())
    assert torch.equal(
        gemm.fp4_linear(x.view(2, 3, 5, 64), **linear.arguments()).view(30, 96), expected
    )
    assert torch.equal(gemm.fp4_linear(x[7], **linear.arguments()), expected[7])
    for shape in ((0, 64), (3, 0, 64)):
        result = gemm.fp4_linear(torch.zeros(shape).bfloat16(), **linear.arguments())
        assert result.shape == (*shape[:-1], 96)


def test_linear_quantizes_rows_of_a_column_major_input():
    """fp4_quantize alone would quantize such an input along its other dimension."""
    linear, x = Linear(), draw(64, 64)
    column_major = x.T.contiguous().T
    expected = gemm.fp4_linear(x, **linear.arguments())
    assert torch.equal(gemm.fp4_linear(column_major, **linear.arguments()), expected)


def test_linear_output_dtype():
    linear = Linear()
    arguments = linear.arguments(bias=None)
    assert gemm.fp4_linear(draw(3, 64).half(), **arguments).dtype == torch.float16
    result = gemm.fp4_linear(draw(3, 64), **arguments, out_dtype=torch.float16)
    assert result.dtype == torch.float16


BAD_LINEAR = {
    "dtype of x": ({"x": torch.zeros(3, 64)}, "'x': got dtype torch.float32"),
    "no dimension": ({"x": torch.zeros(()).half()}, r"'x': got shape \[\], expected \[..., K\]"),
    "dtype of weight": ({"weight": torch.zeros(96, 32)}, "'weight': got dtype torch.float32"),
    "rank of weight": ({"weight": torch.zeros(1, 96, 32).byte()}, r"'weight'.* 2 dimensions"),
    "K": (
        {"weight": torch.zeros(96, 64).byte()},
        r"'weight': got shape \[96, 64\] \(128 values a row\), expected 64 values a row, for x",
    ),
    "K of 48": (
        {"x": torch.zeros(3, 48).half(), "weight": torch.zeros(96, 24).byte()},
        r"'weight'.*\(48 values a row\), expected a positive multiple of 32 values a row",
    ),
    "N": (
        {"weight": torch.zeros(40, 32).byte()},
        r"'weight'.*\(40 rows\), expected a positive multiple of 32 rows",
    ),
    "strides": (
        {"weight": torch.zeros(32, 96).byte().T},
        r"'weight'.*strides \[1, 96\], expected strides \[32, 1\]",
    ),
    "linear scales": (
        {"weight_scale": torch.zeros(96, 4).byte()},
        "'weight_scale': got 384 scales, as many as layout_linear has, expected 512",
    ),
    "transposed scales": (
        {"weight_scale": torch.zeros(4, 128).byte().T},
        r"'weight_scale'.*strides \[1, 128\], expected contiguous scales",
    ),
    "alpha": ({"alpha": torch.ones(3)}, r"'alpha': got shape \[3\]"),
    "a scale for each row": (
        {"input_global_scale": torch.ones(3)},
        r"'input_global_scale': got shape \[3\]",
    ),
    "output dtype": ({"out_dtype": torch.float32}, "'out_dtype': got torch.float32"),
    "dtype of bias": ({"bias": torch.zeros(96)}, "'bias': got dtype torch.float32, expected"),
    "bias": ({"bias": torch.zeros(95).bfloat16()}, r"'bias': got shape \[95\], expected \[96\]"),
    "bias elsewhere": (
        {"bias": torch.zeros(96, device="meta").bfloat16()},
        "'bias': got device meta, expected cpu",
    ),
    "weight elsewhere": (
        {"weight": torch.zeros(96, 32, device="meta").byte()},
        "'weight': got device meta, expected cpu",
    ),
}


@pytest.mark.parametrize("case", BAD_LINEAR)
def test_linear_refuses(case):
    changes, words = BAD_LINEAR[case]
    arguments = Linear().arguments(**{"x": draw(3, 64), **changes})
    with pytest.raises(RuntimeError, match=f"fp4aot::fp4_linear: argument {words}"):
        gemm.fp4_linear(**arguments)


# Tracing


def assert_one_graph(function, calls) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for arguments in calls:
        expected, result = function(*arguments), compiled(*arguments)
        assert describe(result) == describe(expected)
        assert torch.equal(result, expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("form", ["functional", "out"])
def test_multiplication_compiles_once_for_ten_sizes(form):
    # 160 columns: torch takes equal sizes for one, here the padded rows of both factors.
    _, (_, weight, _, scales, alpha) = factors(3, 64, 160)[1:]

    def multiply(packed, block_scales):
        if form == "functional":
            return gemm.mm_fp4(packed, weight, block_scales, scales, alpha)
        out = torch.empty(packed.shape[0], 160, dtype=torch.bfloat16)
        return gemm.mm_fp4(packed, weight, block_scales, scales, alpha, out=out)

    def calls():
        for rows in SIZES:
            yield random_bytes(rows, 32), random_bytes(-(-rows // 128) * 128, 4, low=1, high=127)

    assert_one_graph(multiply, calls())


def test_a_batch_compiles_once():
    _, (_, b, _, scales, alpha) = batch(3, 3, 64, 160)

    def multiply(packed, block_scales):
        return gemm.mm_fp4(packed, b, block_scales, scales, alpha)

    def calls():
        for rows in SIZES:
            yield (
                random_bytes(3, rows, 32),
                random_bytes(3, -(-rows // 128) * 128, 4, low=1, high=127),
            )

    assert_one_graph(multiply, calls())


@pytest.mark.parametrize("rank", [2, 3])
def test_linear_compiles_once_for_ten_sizes(rank):
    arguments = Linear().arguments()

    def linear(x):
        return gemm.fp4_linear(x, **arguments)

    assert_one_graph(linear, ((draw(*(5,) * (rank - 2), rows, 64),) for rows in SIZES))


def test_linear_with_rows_known_only_from_data():
    """Rows selected by a mask, as tokens routed to an expert."""
    arguments = Linear().arguments()

    def linear(x, mask):
        return gemm.fp4_linear(x[mask.nonzero().squeeze(1)], **arguments)

    x = draw(9, 64)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
        for count in (2, 5, 9):
            mask = torch.arange(9) < count
            assert torch.equal(compiled(x, mask), linear(x, mask))


def test_a_refused_call_says_so_through_dynamo():
    arguments = Linear().arguments(bias=torch.zeros(96))
    compiled = torch.compile(
        lambda x: gemm.fp4_linear(x, **arguments), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"argument 'bias': got dtype torch\.float32"):
        compiled(draw(3, 64))
