"""The public quantizing functions: what they call, what they return, and that they trace."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recipes import TheirConfig, TheirErrMode
from test_reference_quantize import hostile_matrix
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import batched_quantization, kv_cache, quantization, shuffle
from fp4aot._layouts import SfLayout
from fp4aot._recipes import NVFP44Over6Config, nvfp4_4over6_code
from fp4aot.operators import batched, per_token
from fp4aot.operators.nvfp4_kv_cache import nvfp4_kv_quantize
from fp4aot.operators.quantize import fp4_quantize

BASE = 1 / (448 * 6)
RECIPE = NVFP44Over6Config(256, "MSE", True)
THEIRS = TheirConfig(256, TheirErrMode.MSE, True)
CODE = 23
SIZES = (2, 3, 7, 16, 31, 33, 64, 129, 300, 500)


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def gaussian(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def raw(results):
    return [r.view(torch.uint8) if r.dtype == torch.float8_e4m3fn else r for r in results]


def assert_same(results, expected) -> None:
    for result, other in zip(results, expected, strict=True):
        assert (result.dtype, result.shape) == (other.dtype, other.shape)
        assert result.stride() == other.stride()
    for result, other in zip(raw(results), raw(expected), strict=True):
        torch.testing.assert_close(result, other, rtol=0, atol=0, equal_nan=True)


def assert_compiles(function, *arguments):
    """Compile from nothing; the results must be those of the uncompiled function."""
    expected = function(*arguments)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*arguments), expected)
    return expected


@pytest.mark.parametrize("recipe", [RECIPE, THEIRS, SimpleNamespace(**vars(RECIPE))])
def test_recipes_reach_the_operators(recipe):
    matrix, scale = gaussian(33, 96), torch.tensor([2.0])
    results = assert_compiles(
        lambda a, s: quantization.fp4_quantize(a, s, nvfp4_4over6=recipe), matrix, scale
    )
    assert_same(results, fp4_quantize(matrix, scale, nvfp4_4over6=CODE))
    results = assert_compiles(
        lambda a, s: quantization.nvfp4_quantize(a, s, nvfp4_4over6=recipe), matrix, scale
    )
    assert_same(results, fp4_quantize(matrix, scale, nvfp4_4over6=CODE))
    results = assert_compiles(
        lambda a, s: batched_quantization.nvfp4_batched_quantize(a, s, nvfp4_4over6=recipe),
        gaussian(2, 33, 96),
        scale,
    )
    expected = batched.nvfp4_batched_quantize(gaussian(2, 33, 96), scale, nvfp4_4over6=CODE)
    assert_same(results, expected)
    mask, scales = torch.tensor([5, 33], dtype=torch.int32), torch.tensor([1.0, 30.0])
    for name, columns in (
        ("scaled_fp4_grouped_quantize", 96),
        ("silu_and_mul_scaled_nvfp4_experts_quantize", 192),
    ):
        a = gaussian(2, 33, columns)
        results = assert_compiles(
            lambda *args, name=name: getattr(batched_quantization, name)(*args, recipe),
            a,
            mask,
            scales,
        )
        assert_same(results, getattr(batched, name)(a, mask, scales, CODE))
    results = assert_compiles(
        lambda a: quantization.nvfp4_quantize(
            a, 1 / 1536, per_token_activation=True, nvfp4_4over6=recipe
        ),
        matrix,
    )
    expected = per_token.nvfp4_quantize_per_token(matrix, 1 / 1536, nvfp4_4over6=CODE)
    assert_same(results, expected)


def test_a_recipe_can_be_an_argument_of_a_compiled_function():
    matrix, scale = gaussian(4, 64), torch.tensor([300.0])

    def quantize(a, s, recipe):
        return quantization.fp4_quantize(a, s, nvfp4_4over6=recipe)

    compiled = torch.compile(quantize, fullgraph=True, backend="aot_eager")
    for recipe in (None, NVFP44Over6Config(), RECIPE, THEIRS):
        expected = fp4_quantize(matrix, scale, nvfp4_4over6=nvfp4_4over6_code(recipe))
        assert_same(compiled(matrix, scale, recipe), expected)


def test_a_recipe_can_be_made_inside_a_compiled_function():
    def quantize(a, s):
        recipe = NVFP44Over6Config(e4m3_max=256, err_use_fast_math=True)
        return quantization.fp4_quantize(a, s, nvfp4_4over6=recipe)

    matrix, scale = gaussian(4, 64), torch.tensor([300.0])
    results = assert_compiles(quantize, matrix, scale)
    assert_same(results, fp4_quantize(matrix, scale, nvfp4_4over6=19))


def test_the_environment_does_not_change_a_result(monkeypatch):
    matrix, scale = gaussian(4, 64), torch.tensor([300.0])
    before = quantization.fp4_quantize(matrix, scale)
    monkeypatch.setenv("FLASHINFER_NVFP4_4OVER6", "1")
    assert_same(quantization.fp4_quantize(matrix, scale), before)
    assert not torch.equal(
        quantization.fp4_quantize(matrix, scale, nvfp4_4over6=NVFP44Over6Config())[1], before[1]
    )


@pytest.mark.parametrize("layout", SfLayout)
def test_per_token_with_a_number(layout):
    matrix = gaussian(33, 112)
    index = torch.tensor([*range(0, 33, 2), *[-1] * 16], dtype=torch.int32)

    def quantize(a, index):
        return quantization.nvfp4_quantize(
            a,
            BASE,
            sfLayout=layout,
            per_token_activation=True,
            expanded_idx_to_permuted_idx=index,
        )

    for rows in (None, index):
        results = assert_compiles(quantize, matrix, rows)
        expected = per_token.nvfp4_quantize_per_token(matrix, BASE, rows, int(layout))
        assert_same(results, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("base", [BASE, 1.0, 1e-38, 1e-42, 0.0, -BASE, 1e30])
def test_per_token_with_a_tensor_is_the_number_bit_for_bit(base, layout, dtype):
    """Zeros, NaN, infinities, subnormals, and scales that underflow among them."""
    matrix = hostile_matrix(dtype)
    keywords = {"sfLayout": layout, "per_token_activation": True}
    expected = quantization.nvfp4_quantize(matrix, base, **keywords)
    for scale in (torch.tensor([base]), torch.tensor(base)):
        assert_same(quantization.nvfp4_quantize(matrix, scale, **keywords), expected)
    # Column-major values are quantized along the last dimension all the same.
    transposed = matrix.t().contiguous().t()
    assert_same(quantization.nvfp4_quantize(transposed, scale, **keywords), expected)


@settings(max_examples=30)
@given(
    rows=st.integers(0, 9),
    blocks=st.integers(0, 3),
    bits=st.integers(0, 2**31 - 1),
    base=st.floats(2**-30, 2**10, width=32),
)
def test_per_token_with_a_tensor_for_any_bits(rows, blocks, bits, base):
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(-(2**15), 2**15, (rows, 16 * blocks), generator=generator)
    matrix = codes.to(torch.int16).view(torch.bfloat16)
    expected = quantization.nvfp4_quantize(matrix, base, per_token_activation=True)
    results = quantization.nvfp4_quantize(matrix, torch.tensor([base]), per_token_activation=True)
    assert_same(results, expected)


def test_a_row_of_zeros_has_the_scale_zero():
    matrix = gaussian(4, 32)
    matrix[2] = 0.0
    for base in (BASE, torch.tensor([BASE])):
        values, scales, per_token_scale = quantization.nvfp4_quantize(
            matrix, base, SfLayout.layout_linear, per_token_activation=True
        )
        assert (per_token_scale == 0.0).tolist() == [False, False, True, False]
        assert not scales[2].any()
        assert not values[2].any()


def test_per_token_with_a_tensor_reads_nothing_on_the_host():
    def quantize(a, base):
        return quantization.nvfp4_quantize(a, base, per_token_activation=True)

    assert_compiles(quantize, gaussian(33, 96), torch.tensor([BASE]))
    with FakeTensorMode():
        a, base = torch.empty(33, 96, dtype=torch.half), torch.empty(1)
        values, scales, per_token_scale = quantize(a, base)
    assert values.shape == (33, 48)
    assert scales.shape == (128, 8)
    assert per_token_scale.shape == (33,)


SCALES = torch.tensor([3.0])


@pytest.mark.parametrize("columns", [64, 720])
@pytest.mark.parametrize(
    ("keywords", "scale"),
    [
        ({}, SCALES),
        ({"nvfp4_4over6": RECIPE}, SCALES),
        ({"per_token_activation": True}, BASE),
        ({"per_token_activation": True}, torch.tensor([BASE])),
    ],
)
def test_shuffled_results(keywords, scale, columns):
    matrix = gaussian(256, columns)

    def quantize(a):
        return quantization.nvfp4_quantize(a, scale, do_shuffle=True, **keywords)

    results = assert_compiles(quantize, matrix)
    values, scales, *per_token_scale = quantization.nvfp4_quantize(
        matrix, scale, SfLayout.layout_linear, **keywords
    )
    # Row 4 * i + j of a block of 32 becomes row 8 * j + i.
    order = torch.arange(256).view(8, 8, 4).transpose(1, 2).reshape(-1)
    assert torch.equal(results[0], values[order])
    padded = torch.nn.functional.pad(scales[order], (0, -scales.shape[1] % 4))
    assert results[1].shape == padded.shape
    assert torch.equal(
        torch.ops.fp4aot.block_scale_interleave_reverse(results[1].contiguous()), padded
    )
    flat = shuffle.shuffle_matrix_sf_a(scales, 128)
    assert torch.equal(results[1].flatten(), flat)
    assert len(results) == 2 + len(per_token_scale)
    for result, unshuffled in zip(results[2:], per_token_scale, strict=True):
        assert torch.equal(result, unshuffled[order])


def test_batched_functions_compile_cold():
    a, scale = gaussian(2, 33, 96), torch.tensor([3.0])
    assert_compiles(batched_quantization.nvfp4_batched_quantize, a, scale)
    mask, scales = torch.tensor([5, 33], dtype=torch.int32), torch.tensor([1.0, 30.0])
    assert_compiles(batched_quantization.scaled_fp4_grouped_quantize, a, mask, scales)
    function = batched_quantization.silu_and_mul_scaled_nvfp4_experts_quantize
    assert_compiles(function, a, mask, scales)


def test_kv_quantize_compiles_and_round_trips():
    matrix = gaussian(33, 96)
    scale = (matrix.abs().max().float() / 2688).reshape(1)

    def round_trip(a, s):
        values, block_scales = kv_cache.nvfp4_kv_quantize(a, s)
        return values, block_scales, kv_cache.nvfp4_kv_dequantize(values, block_scales, s)

    *quantized, restored = assert_compiles(round_trip, matrix, scale)
    assert_same(quantized, nvfp4_kv_quantize(matrix, scale))
    assert (restored.float() - matrix.float()).norm() / matrix.float().norm() < 0.11


def assert_one_graph(function, calls, compilations: int = 1) -> None:
    """Run the calls compiled with dynamic shapes, against eager; all must share one graph."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for arguments in calls:
        assert_same(compiled(*arguments), function(*arguments))
        # Of the first call.
        assert counter.frame_count == compilations


# torch makes a number that comes from outside the function symbolic, finds that the operator needs
# its value, and compiles the first call again.
@pytest.mark.parametrize(
    ("base", "compilations"), [(BASE, 2), (torch.tensor([BASE]), 1)], ids=["number", "tensor"]
)
def test_per_token_compiles_once_for_ten_sizes(base, compilations):
    def quantize(a, base):
        return quantization.nvfp4_quantize(a, base, per_token_activation=True)

    assert_one_graph(quantize, ((gaussian(rows, 96), base) for rows in SIZES), compilations)


def test_per_token_index_compiles_once_for_ten_sizes():
    def quantize(a, index):
        return torch.ops.fp4aot.nvfp4_quantize_per_token(a, 1 / 2688, index)

    calls = ((gaussian(r, 96), torch.arange(r + 5, dtype=torch.int32) % r) for r in SIZES)
    assert_one_graph(quantize, calls)


def test_recipes_compile_once_for_ten_sizes():
    def quantize(a, s):
        return quantization.fp4_quantize(a, s, nvfp4_4over6=RECIPE)

    assert_one_graph(quantize, ((gaussian(r, 96), torch.ones(1)) for r in SIZES))


def test_batched_functions_compile_once_for_ten_sizes():
    def quantize(a, mask, s):
        return (
            *batched_quantization.nvfp4_batched_quantize(a, s[:1]),
            *batched_quantization.scaled_fp4_grouped_quantize(a, mask, s),
            *batched_quantization.silu_and_mul_scaled_nvfp4_experts_quantize(a, mask, s),
        )

    mask, scales = torch.tensor([5, 1, 300], dtype=torch.int32), torch.ones(3)
    # 2 and 3 rows would be taken for other dimensions of that size.
    calls = ((gaussian(3, rows, 96), mask, scales) for rows in SIZES[2:])
    assert_one_graph(quantize, calls)


def test_the_number_of_experts_may_change():
    def quantize(a, mask, s):
        return batched_quantization.scaled_fp4_grouped_quantize(a, mask, s)

    calls = (
        (gaussian(experts, 33, 96), torch.ones(experts, dtype=torch.int32), torch.ones(experts))
        for experts in (4, 5, 9, 17)
    )
    assert_one_graph(quantize, calls)


def test_kv_quantize_compiles_once_for_ten_sizes():
    def quantize(a, s):
        return kv_cache.nvfp4_kv_quantize(a, s)

    assert_one_graph(quantize, ((gaussian(r, 96), torch.ones(1)) for r in SIZES))


def test_export_with_any_number_of_rows():
    """No bound may end up in the exported program: its rows are declared without one."""

    class Quantize(torch.nn.Module):
        def forward(self, a, base, batch, mask, scales):
            return (
                quantization.nvfp4_quantize(a, base, per_token_activation=True)[0],
                quantization.nvfp4_quantize(a, BASE, per_token_activation=True)[0],
                batched_quantization.nvfp4_batched_quantize(batch, base)[0],
                batched_quantization.scaled_fp4_grouped_quantize(batch, mask, scales)[0],
                kv_cache.nvfp4_kv_quantize(a, base)[0],
            )

    def arguments(rows):
        mask = torch.tensor([1, 2, 3], dtype=torch.int32)
        return gaussian(rows, 96), torch.ones(1), gaussian(3, rows, 96), mask, torch.ones(3)

    rows = torch.export.Dim("rows")
    shapes = ({0: rows}, None, {1: rows}, None, None)
    program = torch.export.export(Quantize(), arguments(5), dynamic_shapes=shapes)
    assert [tuple(r.shape) for r in program.module()(*arguments(300))] == [
        (300, 48), (300, 48), (3, 300, 48), (300, 48, 3), (300, 48),
    ]  # fmt: skip


@settings(max_examples=60)
@given(
    batch=st.integers(0, 3),
    rows=st.integers(0, 140),
    blocks=st.integers(0, 7),
    layout=st.sampled_from(list(SfLayout)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_fakes_return_what_the_kernels_do(batch, rows, blocks, layout, dtype):
    def call(form):
        a = torch.zeros(batch, rows, 32 * blocks, dtype=dtype)
        matrix, one = torch.zeros(rows, 16 * blocks, dtype=dtype), torch.ones(1)
        mask, scales = torch.zeros(batch, dtype=torch.int32), torch.ones(batch)
        results = (
            *form(batched.nvfp4_batched_quantize)(a, one),
            *form(batched.scaled_fp4_grouped_quantize)(a, mask, scales),
            *form(batched.silu_and_mul_scaled_nvfp4_experts_quantize)(a, mask, scales),
            *form(per_token.nvfp4_quantize_per_token)(matrix, BASE, None, int(layout)),
            *form(nvfp4_kv_quantize)(matrix, one),
        )
        return [(r.dtype, tuple(r.shape), r.stride(), r.device) for r in results]

    real = call(lambda operator: operator)
    with FakeTensorMode():
        assert call(lambda operator: operator.default.fake) == real


def test_a_nan_base_is_a_nan_scale():
    matrix = gaussian(2, 32)
    for base in (math.nan, torch.tensor([math.nan])):
        *_, per_token_scale = quantization.nvfp4_quantize(matrix, base, per_token_activation=True)
        assert per_token_scale.isnan().all()
