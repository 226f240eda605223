"""Fakes, registration and tracing, with the operators defined in a namespace of the test's own."""

from __future__ import annotations

import re

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_namespace import form, operators, schemas
from test_reference_quantize import BATCHES, LAYOUTS, MXFP4, NVFP4
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import kv_cache, quantization
from fp4aot._layouts import SfLayout
from fp4aot.operators import register
from fp4aot.operators.quantize import fp4_quantize
from fp4aot.operators.structured import OPERATORS

NAMESPACE = "fp4aot_test_fakes"
ROWS = (2, 3, 4, 7, 16, 33, 64, 129, 1000, 4096)


@pytest.fixture(scope="module")
def ops():
    with operators(NAMESPACE) as defined:
        yield defined


def overload(ops, name: str):
    operator, _, kind = name.partition(".")
    return getattr(getattr(ops, operator), kind or "default")


def describe(result):
    if result is None:
        return None
    results = result if isinstance(result, tuple) else (result,)
    return [(r.dtype, tuple(r.shape), r.stride(), r.device) for r in results]


def test_every_overload_is_registered(ops):
    names = {re.match(r"[\w.]+", schema).group() for schema in schemas()}
    registered = {form.name for made in OPERATORS.values() for form in made.overloads(NAMESPACE)}
    assert names == registered, "declare the operator in wheels/fp4aot/operators"


def test_registering_twice_is_refused(ops):
    with pytest.raises(RuntimeError):
        register(NAMESPACE)


@pytest.mark.parametrize(("name", "build"), ACCEPTED)
def test_opcheck(ops, name, build):
    args, kwargs = build("cpu")
    torch.library.opcheck(overload(ops, name), args, kwargs, test_utils=utilities(args, kwargs))


def utilities(args, kwargs) -> list[str]:
    """Name opcheck's tests: that of the schema compares arguments, which float8 cannot do."""
    names = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    small = (
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
        torch.float4_e2m1fn_x2,
    )
    incomparable = any(tensor.dtype in small for tensor in tensors)
    return names if incomparable else ["test_schema", *names]


@pytest.mark.parametrize("order", ["row major", "column major"])
@pytest.mark.parametrize("shape", [(33, 96), (2, 33, 96)])
@pytest.mark.parametrize("recipe", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize("layout", SfLayout)
def test_opcheck_fp4_quantize(ops, layout, recipe, shape, order):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    if order == "column major":
        tensor = tensor.transpose(-2, -1)
    arguments = (tensor, torch.ones(1))
    flags = {**recipe, **LAYOUTS[layout]}
    torch.library.opcheck(ops.fp4_quantize.default, arguments, flags)
    values, block_scales = ops.fp4_quantize(*arguments, **flags)
    buffers = {
        "values": torch.empty_strided(values.shape, values.stride(), dtype=torch.uint8),
        "block_scales": torch.empty_strided(
            block_scales.shape, block_scales.stride(), dtype=torch.uint8
        ),
    }
    torch.library.opcheck(ops.fp4_quantize.out, arguments, {**flags, **buffers})


def test_opcheck_host_function(ops):
    weight, scale = torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.uint8)
    torch.library.opcheck(ops.mxfp4_dequantize_host.default, (weight, scale))


@settings(max_examples=60)
@given(**BATCHES, rows=st.integers(0, 140), column_major=st.booleans())
def test_fake_fp4_quantize_returns_what_the_kernel_does(
    batch, rows, blocks, recipe, layout, dtype, column_major
):
    def call(function):
        tensor = torch.zeros(*batch, rows, blocks * recipe["sf_vec_size"], dtype=dtype)
        if column_major:
            tensor = tensor.transpose(-2, -1)
        # An empty tensor is contiguous in any order, and then its last dimension counts.
        if tensor.shape[-1] % recipe["sf_vec_size"] != 0 and tensor.is_contiguous():
            return None
        return describe(function(tensor, torch.ones(1), **recipe, **LAYOUTS[layout]))

    real = call(fp4_quantize)
    with FakeTensorMode():
        assert call(fp4_quantize.default.fake) == real


@pytest.mark.parametrize(("name", "build"), ACCEPTED)
def test_fake_returns_what_the_kernel_does(ops, name, build):
    args, kwargs = build("cpu")
    real = describe(overload(ops, name)(*args, **kwargs))
    with FakeTensorMode():
        args, kwargs = build("cpu")
        assert describe(overload(ops, name)(*args, **kwargs)) == real


@pytest.mark.parametrize(("name", "build"), ACCEPTED)
def test_fake_results_are_on_the_device_of_the_arguments(name, build):
    with FakeTensorMode():
        args, kwargs = build("cuda:1")
        result = form(name).fake(*args, **kwargs)
        devices = {device for *_, device in describe(result) or []}
    assert devices <= {torch.device("cuda:1")}


def test_operators_refuse_through_the_dispatcher(ops):
    for bad in EVERY_DEVICE + HOST:
        args, kwargs = bad.build("cpu")
        if bad.operator == "mxfp4_dequantize_host":
            continue
        with pytest.raises(RuntimeError, match=f"fp4aot::{bad.operator.removesuffix('.out')}: "):
            overload(ops, bad.operator)(*args, **kwargs)


def test_a_refused_call_says_so_through_dynamo(ops):
    def quantize(tensor, scale):
        return ops.fp4_quantize(tensor, scale)

    compiled = torch.compile(quantize, fullgraph=True, backend="aot_eager")
    tensor = torch.zeros(4, 64, dtype=torch.bfloat16)
    with pytest.raises(Exception, match=r"argument 'global_scale': got dtype torch\.bfloat16"):
        compiled(tensor, torch.ones(1, dtype=torch.bfloat16))


def assert_one_graph(function, calls) -> None:
    """Run the calls compiled with dynamic shapes, against eager; all must share one graph."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for arguments in calls:
        expected, results = function(*arguments), compiled(*arguments)
        assert describe(results) == describe(expected)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert counter.frame_count == 1


@pytest.mark.parametrize("layout", SfLayout)
@pytest.mark.parametrize("recipe", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize("rank", [2, 3])
def test_quantize_and_dequantize_compile_once_for_ten_sizes(ops, rank, recipe, layout):
    flags = LAYOUTS[layout]
    ufp8_type = int(not recipe["sf_use_ue8m0"])

    def round_trip(tensor, scale):
        values, block_scales = ops.fp4_quantize(tensor, scale, **recipe, **flags)
        restored = ops.e2m1_and_ufp8sf_scale_to_float(
            values.flatten(0, -2), block_scales, scale, recipe["sf_vec_size"], ufp8_type, **flags
        )
        return values, block_scales, restored

    def sizes():
        for rows in ROWS:
            shape = (rows, 96) if rank == 2 else (3, rows, 96)
            yield torch.ones(shape, dtype=torch.bfloat16), torch.ones(1)

    assert_one_graph(round_trip, sizes())


def test_one_scale_for_each_row_compiles_once(ops):
    def quantize(tensor, scale):
        return ops.fp4_quantize(tensor, scale)

    calls = ((torch.ones(rows, 64, dtype=torch.half), torch.ones(rows)) for rows in ROWS)
    assert_one_graph(quantize, calls)


def test_column_major_compiles_once(ops):
    def quantize(tensor, scale):
        return ops.fp4_quantize(tensor, scale)

    calls = ((torch.ones(rows, 64, dtype=torch.half).t(), torch.ones(1)) for rows in ROWS)
    assert_one_graph(quantize, calls)


def test_out_form_compiles_once(ops):
    def quantize(tensor, scale):
        values = torch.empty(tensor.shape[0], 32, dtype=torch.uint8)
        block_scales = torch.empty((tensor.shape[0] + 127) // 128 * 128, 4, dtype=torch.uint8)
        ops.fp4_quantize.out(tensor, scale, values=values, block_scales=block_scales)
        return values, block_scales

    calls = ((torch.ones(rows, 64, dtype=torch.half), torch.ones(1)) for rows in ROWS)
    assert_one_graph(quantize, calls)


def test_interleave_compiles_once(ops):
    def there_and_back(scales):
        swizzled = ops.block_scale_interleave(scales)
        return swizzled, ops.block_scale_interleave_reverse(swizzled.view(-1, 8))

    assert_one_graph(there_and_back, ((torch.ones(rows, 6).byte(),) for rows in ROWS))


def test_kv_dequantize_compiles_once(ops):
    def plain(packed, scales, scale):
        return (ops.nvfp4_kv_dequantize(packed, scales, scale, torch.bfloat16),)

    calls = (
        (torch.ones(rows, 32).byte(), torch.ones(rows, 4).byte(), torch.ones(1)) for rows in ROWS
    )
    assert_one_graph(plain, calls)


def test_paged_kv_dequantize_compiles_once(ops):
    cache, scales = torch.ones(9, 4, 2, 16).byte(), torch.ones(9, 4, 2, 2).byte()
    one = torch.ones(1)

    def paged(tables, lengths):
        return ops.nvfp4_kv_dequantize_paged(
            cache, cache, scales, scales, tables, lengths, one, one, 8, torch.float16, 0
        )

    calls = (
        (torch.ones(batch, 2, dtype=torch.int32), torch.full((batch,), 5, dtype=torch.int32))
        # The first size is that of no other dimension: torch takes equal sizes for one.
        for batch in range(5, 15)
    )
    assert_one_graph(paged, calls)


def test_export_with_any_number_of_rows(ops):
    """No bound may end up in the exported program: its rows are declared without one."""

    class Quantize(torch.nn.Module):
        def forward(self, tensor, scale):
            return ops.fp4_quantize(tensor, scale)

    tensor = torch.ones(5, 64, dtype=torch.bfloat16)
    program = torch.export.export(
        Quantize(), (tensor, torch.ones(1)), dynamic_shapes=({0: torch.export.Dim("rows")}, None)
    )
    values, block_scales = program.module()(torch.ones(300, 64).bfloat16(), torch.ones(1))
    assert values.shape == (300, 32)
    assert block_scales.shape == (384, 4)


def test_rows_known_only_from_data(ops):
    """Rows selected by a mask have a size that no trace knows, as tokens routed to an expert."""

    def quantize(tensor, mask, scale):
        rows = tensor[mask.nonzero().squeeze(1)]
        return ops.fp4_quantize(rows, scale)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(quantize, fullgraph=True, backend="aot_eager")
        tensor = torch.ones(9, 64, dtype=torch.bfloat16)
        for count in (2, 5, 9):
            mask = torch.arange(9) < count
            values, block_scales = compiled(tensor, mask, torch.ones(1))
            assert values.shape == (count, 32)
            assert block_scales.shape == (128, 4)


@pytest.fixture
def public():
    torch._dynamo.reset()


def assert_compiles(function, *arguments):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results, expected = compiled(*arguments), function(*arguments)
    assert describe(results) == describe(expected)
    if isinstance(results, torch.Tensor):
        results, expected = (results,), (expected,)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    return results


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize("layout", SfLayout)
def test_public_quantization_functions_trace(layout):
    tensor = torch.randn(33, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    scale = torch.tensor([2.0])
    flags = LAYOUTS[layout]
    nvfp4 = assert_compiles(
        lambda a, s: quantization.nvfp4_quantize(a, s, sfLayout=layout), tensor, scale
    )
    expected = fp4_quantize(tensor, scale, **NVFP4, **flags)
    assert all(torch.equal(a, b) for a, b in zip(nvfp4, expected, strict=True))
    mxfp4 = assert_compiles(lambda a: quantization.mxfp4_quantize(a, sfLayout=layout), tensor)
    expected = fp4_quantize(tensor, None, **MXFP4, **flags)
    assert all(torch.equal(a, b) for a, b in zip(mxfp4, expected, strict=True))
    (restored,) = assert_compiles(lambda a, s: quantization.mxfp4_dequantize(a, s, layout), *mxfp4)
    assert (restored - tensor.float()).norm() / tensor.float().norm() < 0.13
    (restored,) = assert_compiles(
        lambda a, s, g: quantization.e2m1_and_ufp8sf_scale_to_float(a, s, g, **flags),
        *nvfp4,
        1 / scale,
    )
    assert (restored - tensor.float()).norm() / tensor.float().norm() < 0.11


@pytest.mark.usefixtures("public")
def test_public_interleave_functions_trace():
    scales = torch.randint(0, 256, (128, 8)).to(torch.uint8)

    def there_and_back(tensor):
        swizzled = quantization.block_scale_interleave(tensor)
        return quantization.block_scale_interleave_reverse(swizzled.view(128, 8))

    (result,) = assert_compiles(there_and_back, scales)
    assert torch.equal(result, scales)
    assert quantization.nvfp4_block_scale_interleave is quantization.block_scale_interleave


@pytest.mark.usefixtures("public")
def test_public_host_function_traces():
    weight, scale = torch.full((4, 32), 0x22).byte(), torch.full((4, 2), 128).byte()
    (result,) = assert_compiles(quantization.mxfp4_dequantize_host, weight, scale)
    assert torch.equal(result, torch.full((4, 64), 2.0))


@pytest.mark.usefixtures("public")
def test_public_kv_dequantize_traces():
    packed, scales = torch.full((4, 32), 0x22).byte(), torch.full((4, 4), 0x38).byte()
    (result,) = assert_compiles(kv_cache.nvfp4_kv_dequantize, packed, scales, torch.tensor([3.0]))
    assert torch.equal(result, torch.full((4, 64), 3.0, dtype=torch.bfloat16))


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("form", ["stacked", "tuple"])
def test_public_paged_kv_dequantize_traces(form, page_size, kv_layout):
    generator = torch.Generator().manual_seed(3)
    axes = (page_size, 3) if kv_layout == "NHD" else (3, page_size)
    cache = torch.randint(0, 256, (9, 2, *axes, 16), generator=generator).byte()
    scales = torch.randint(1, 127, (9, 2, *axes, 2), generator=generator).byte()
    tables = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    lengths, one = torch.tensor([4, 2], dtype=torch.int32), torch.ones(1)
    expected = torch.ops.fp4aot.nvfp4_kv_dequantize_paged(
        cache[:, 0], cache[:, 1], scales[:, 0], scales[:, 1], tables, lengths, one, one,
        4, torch.float16, int(kv_layout == "HND"),
    )  # fmt: skip
    if page_size == 1:
        # As in FlashInfer, pages of one token may lack their dimension.
        squeezed = 2 if kv_layout == "NHD" else 3
        cache, scales = cache.squeeze(squeezed), scales.squeeze(squeezed)
    if form == "tuple":
        cache, scales = (cache[:, 0], cache[:, 1]), (scales[:, 0], scales[:, 1])

    def gather(tables, lengths):
        return kv_cache.nvfp4_kv_dequantize_paged(
            cache, scales, tables, lengths, one, one,
            kv_layout=kv_layout, max_seq_len=4, output_dtype=torch.float16,
        )  # fmt: skip

    def gather_into(tables, lengths, output_k, output_v):
        return kv_cache.nvfp4_kv_dequantize_paged(
            cache, scales, tables, lengths, one, one, output_k, output_v, kv_layout
        )

    results = assert_compiles(gather, tables, lengths)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    outputs = [torch.zeros_like(result) for result in expected]
    compiled = torch.compile(gather_into, fullgraph=True, backend="aot_eager")
    assert compiled(tables, lengths, *outputs) is None
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
