"""The public functions of the grouped GEMMs, their operators under tracing, and their fakes."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import group_gemm
from fp4aot.operators import grouped_matmul as reference

N, K = 16, 128
NVFP4, MXFP4 = group_gemm.group_gemm_nvfp4_nt_groupwise, group_gemm.group_gemm_mxfp4_nt_groupwise


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def factors(nvfp4: bool, rows: int = 12, groups: int = 3, seed: int = 1):
    """Make random factors, all rows but four in the last group."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(torch.uint8)

    # Numbers near 1 in either format of scales.
    low, high = (48, 64) if nvfp4 else (125, 130)
    columns = K // (16 if nvfp4 else 32)
    a = draw(rows, K // 2)
    if not nvfp4:
        a = torch.randn(rows, K, generator=generator).to(torch.float8_e4m3fn)
    padded = (rows + 127 * groups) // 128 * 128
    m_indptr = torch.full((groups + 1,), min(rows, 4), dtype=torch.int32)
    m_indptr[0], m_indptr[-1] = 0, rows
    return (
        a,
        draw(groups, N, K // 2),
        draw(padded, columns, low=low, high=high),
        draw(groups, 128, columns, low=low, high=high),
        m_indptr,
    )


def test_the_signatures_are_flashinfers():
    shared, tail = "a b a_scale b_scale m_indptr", "tile_m tile_n tile_k swap_ab out out_dtype"
    assert list(inspect.signature(NVFP4).parameters) == f"{shared} alpha {tail}".split()
    assert list(inspect.signature(MXFP4).parameters) == f"{shared} mma_sm {tail}".split()
    assert MXFP4 is group_gemm.group_gemm_mxfp8_mxfp4_nt_groupwise


def test_nvfp4():
    arguments, alpha = factors(nvfp4=True), torch.tensor([0.5, 3.0, 1.25])
    expected = reference.group_gemm_nvfp4_nt_groupwise(*arguments, alpha, torch.bfloat16)
    assert torch.equal(NVFP4(*arguments, alpha), expected)
    assert torch.equal(NVFP4(*arguments, alpha, 128, 32, 256, False), expected)
    plain = reference.group_gemm_nvfp4_nt_groupwise(*arguments, None, torch.float16)
    assert not torch.equal(plain, expected.half())
    assert torch.equal(NVFP4(*arguments, out_dtype=torch.float16), plain)
    out = torch.full((12, N), 7.0, dtype=torch.float16)
    assert NVFP4(*arguments, out=out, out_dtype=torch.float16) is out
    assert torch.equal(out, plain)
    with pytest.raises(RuntimeError, match=r"argument 'tile_n': got 96"):
        NVFP4(*arguments, tile_n=96)
    with pytest.raises(RuntimeError, match=r"argument 'tile_n': got 96"):
        NVFP4(*arguments, tile_n=96, out=out)


def test_mxfp4():
    arguments = factors(nvfp4=False)
    expected = reference.group_gemm_mxfp8_mxfp4_nt_groupwise(*arguments, torch.bfloat16)
    assert torch.equal(MXFP4(*arguments), expected)
    assert torch.equal(MXFP4(*arguments, 2, 128, 256, 256, False), expected)
    half = MXFP4(*arguments, out_dtype=torch.float16)
    assert half.dtype == torch.float16
    out = torch.full((12, N), 7.0, dtype=torch.float16)
    assert MXFP4(*arguments, out=out) is out
    assert torch.equal(out, half)
    with pytest.raises(RuntimeError, match=r"argument 'mma_sm': got 3, expected 1 or 2"):
        MXFP4(*arguments, mma_sm=3)


@pytest.mark.parametrize("function", [NVFP4, MXFP4])
def test_an_output_dtype_that_is_not_the_buffers(function):
    arguments = factors(nvfp4=function is NVFP4)
    out = torch.full((12, N), 7.0, dtype=torch.float16)
    words = rf"fp4aot\.{function.__name__}: out_dtype=torch\.bfloat16 with an out of torch\.float16"
    with pytest.raises(ValueError, match=words):
        function(*arguments, out=out, out_dtype=torch.bfloat16)
    assert (out == 7).all()


def describe(result):
    return result.dtype, tuple(result.shape), result.stride(), result.device


@settings(max_examples=30)
@given(
    rows=st.integers(0, 140),
    groups=st.integers(1, 4),
    nvfp4=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_fake_returns_what_the_kernel_does(rows, groups, nvfp4, dtype):
    name = f"group_gemm_{'nvfp4' if nvfp4 else 'mxfp8_mxfp4'}_nt_groupwise"
    arguments = factors(nvfp4, rows, groups)
    alpha = (None,) if nvfp4 else ()
    real = getattr(reference, name)(*arguments, *alpha, dtype)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in arguments]
        fake = getattr(reference, name).default.fake(*fakes, *alpha, dtype)
    assert describe(fake) == describe(real)


@pytest.mark.parametrize("function", [NVFP4, MXFP4])
def test_one_graph_for_every_number_of_rows(function):
    nvfp4 = function is NVFP4
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for rows in (20, 36, 60, 132, 256):
        arguments = factors(nvfp4, rows, seed=rows)
        assert torch.equal(compiled(*arguments), function(*arguments))
    assert counter.frame_count == 1


@pytest.mark.parametrize("function", [NVFP4, MXFP4])
def test_out_form_traces(function):
    arguments = factors(nvfp4=function is NVFP4)
    out = torch.full((12, N), 7.0, dtype=torch.bfloat16)

    def multiply(out):
        function(*arguments, out=out)
        return out + 1

    result = torch.compile(multiply, fullgraph=True, backend="aot_eager")(out)
    assert torch.equal(out, function(*arguments))
    assert torch.equal(result, out + 1)


def test_export_with_any_number_of_rows():
    """The bound on the number of scales may not become a condition on the exported program."""

    class Multiply(torch.nn.Module):
        def forward(self, a, b, a_scale, b_scale, m_indptr):
            return NVFP4(a, b, a_scale, b_scale, m_indptr)

    dims = ({0: torch.export.Dim("rows")}, None, {0: torch.export.Dim("scale_rows")}, None, None)
    program = torch.export.export(Multiply(), factors(nvfp4=True, rows=20), dynamic_shapes=dims)
    arguments = factors(nvfp4=True, rows=300, seed=2)
    assert torch.equal(program.module()(*arguments), NVFP4(*arguments))
    few = (arguments[0], arguments[1], arguments[2][:128], *arguments[3:])
    with pytest.raises(RuntimeError, match=r"argument 'a_scale': got 1024 scales, expected at"):
        program.module()(*few)
