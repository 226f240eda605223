"""One graph, no break, no recompile (1, 24). Layers, export and AOTInductor are in test_nn.py."""

from __future__ import annotations

import torch
from torch._dynamo.testing import CompileCounterWithBackend

import fp4aot

SIZES = (2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def test_the_first_call_of_a_process_traces(python):
    """Case 1: bf16 [32, 4096], fp32 scale [1]; operator, eager and compiled agree bit for bit."""
    python(
        "import torch, fp4aot\n"
        "x = torch.randn(32, 4096, dtype=torch.bfloat16)\n"
        "scale = (448 * 6 / x.float().abs().max()).reshape(1)\n"
        "compiled = torch.compile(fp4aot.fp4_quantize, fullgraph=True)(x, scale)\n"
        "eager = fp4aot.fp4_quantize(x, scale)\n"
        "operator = torch.ops.fp4aot.fp4_quantize(x, scale)\n"
        "for a, b, c in zip(compiled, eager, operator):\n"
        "    assert torch.equal(a, b) and torch.equal(b, c)\n"
    )


class Batched(torch.nn.Module):
    """Quantizes a 3-D input and dequantizes its rows."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        values, scales = fp4aot.fp4_quantize(x, scale)
        flat = values.reshape(-1, values.shape[-1])
        restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(flat, scales, 1 / scale)
        return restored.reshape(x.shape)


def test_a_new_rank_compiles_once_and_new_sizes_do_not():
    counter = CompileCounterWithBackend("aot_eager")
    module = Batched()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    scale = torch.tensor([300.0])
    for rows in SIZES:
        x = draw(rows, 64)
        assert torch.equal(compiled(x, scale), module(x, scale))
    assert counter.frame_count == 1
    for batch, rows in zip((5, 2, 3, 9), SIZES[2:], strict=False):
        x = draw(batch, rows, 64)
        assert torch.equal(compiled(x, scale), module(x, scale))
    assert counter.frame_count == 2


def test_every_layout_and_format_traces_in_one_graph():
    layouts = tuple(fp4aot.SfLayout)  # Dynamo cannot iterate over the class itself on Python 3.12

    def everything(x, scale):
        results = []
        for layout in layouts:
            results += fp4aot.nvfp4_quantize(x, scale, layout)
            values, scales = fp4aot.mxfp4_quantize(x, sfLayout=layout)
            results += [values, scales, fp4aot.mxfp4_dequantize(values, scales, layout)]
        linear = fp4aot.nvfp4_quantize(x, scale, fp4aot.SfLayout.layout_linear)[1]
        results.append(fp4aot.block_scale_interleave(linear))
        return results

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=counter)
    for rows in SIZES[:4]:
        x, scale = draw(rows, 128), torch.tensor([300.0])
        for left, right in zip(compiled(x, scale), everything(x, scale), strict=True):
            assert torch.equal(left, right)
    assert counter.frame_count == 1


def test_an_out_buffer_in_a_graph_is_written():
    def fill(x, scale, values, scales):
        torch.ops.fp4aot.fp4_quantize.out(x, scale, values=values, block_scales=scales)
        return values.sum(dtype=torch.int64) + scales.sum(dtype=torch.int64)

    x, scale = draw(33, 64), torch.tensor([300.0])
    expected = fp4aot.fp4_quantize(x, scale)
    buffers = [torch.full_like(tensor, 0x7F) for tensor in expected]
    total = torch.compile(fill, fullgraph=True, backend="inductor")(x, scale, *buffers)
    for buffer, want in zip(buffers, expected, strict=True):
        assert torch.equal(buffer, want)
    assert total == sum(tensor.sum(dtype=torch.int64) for tensor in expected)
