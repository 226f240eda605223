"""NVFP4 KV cache dequantization: the one module that also runs on a Hopper GPU, as it is."""

from __future__ import annotations

import pytest
import torch
from gpusuite.compare import assert_equal
from gpusuite.memory import Guarded

import fp4aot
from fp4aot.operators import nvfp4_kv_cache as reference
from fp4aot.operators import quantize

pytestmark = [
    pytest.mark.subject("nvfp4_kv_dequantize"),
    pytest.mark.needs("nvfp4_kv_dequantize", "nvfp4_kv_dequantize_paged"),
]
AGAINST = "values, reference on the CPU"

plain = torch.ops.fp4aot.nvfp4_kv_dequantize
paged = torch.ops.fp4aot.nvfp4_kv_dequantize_paged


def draw(rows: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed values, block scales and global scale on the CPU; every block another magnitude."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    exponents = torch.randint(-6, 7, (rows, columns // 16), generator=generator)
    values = values * torch.exp2(exponents).repeat_interleave(16, dim=1)
    scale = (448 * 6 / values.abs().max()).reshape(1) if rows else torch.ones(1)
    packed, scales = quantize.fp4_quantize(
        values.to(torch.bfloat16), scale, 16, False, is_sf_swizzled_layout=False
    )
    return packed, scales, 1 / scale


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [16, 48, 2048, 7168])
@pytest.mark.parametrize("rows", [0, 1, 7, 33, 129, 4096])
def test_plain_equals_the_reference(details, rows, columns, dtype):
    arguments = draw(rows, columns)
    expected = reference.nvfp4_kv_dequantize(*arguments, dtype)
    on_gpu = [tensor.cuda() for tensor in arguments]
    out = Guarded.like(expected.cuda())
    plain.out(*on_gpu, out=out.tensor)
    out.check()
    assert_equal(details, AGAINST, out.tensor.cpu(), expected)
    assert_equal(details, AGAINST, fp4aot.nvfp4_kv_dequantize(*on_gpu, dtype).cpu(), expected)


def test_all_codes_and_all_scales(details):
    """Every pair of e2m1 codes under every finite E4M3 scale."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(254).reshape(254, 256)
    finite = torch.tensor([c for c in range(256) if c not in (0x7F, 0xFF)], dtype=torch.uint8)
    scales = finite.reshape(254, 1).repeat(1, 32)
    scale = torch.tensor([0.37])
    expected = reference.nvfp4_kv_dequantize(codes, scales, scale, torch.bfloat16)
    got = plain(codes.cuda(), scales.cuda(), scale.cuda(), torch.bfloat16)
    assert_equal(details, AGAINST, got.cpu(), expected)


def test_float8_scales_strided_and_misaligned_input():
    packed, scales, scale = (tensor.cuda() for tensor in draw(64, 256))
    expected = plain(packed, scales, scale, torch.bfloat16)
    assert torch.equal(
        plain(packed, scales.view(torch.float8_e4m3fn), scale, torch.bfloat16), expected
    )
    strided = torch.zeros(64, 300, dtype=torch.uint8, device="cuda")
    strided[:, 3:131] = packed
    assert torch.equal(plain(strided[:, 3:131], scales, scale, torch.bfloat16), expected)
    flat = torch.zeros(packed.numel() + 1, dtype=torch.uint8, device="cuda")
    flat[1:] = packed.flatten()
    assert torch.equal(plain(flat[1:].view_as(packed), scales, scale, torch.bfloat16), expected)


def draw_pages(order, k_dim=128, v_dim=64, pages=64, page_size=16, heads=4):
    result = []
    for seed, dim in enumerate((k_dim, v_dim)):
        packed, scales, scale = draw(pages * page_size * heads, dim, seed)
        for part in (packed, scales):
            result.append(part.reshape(pages, page_size, heads, -1).permute(order).contiguous())
        result.append(scale)
    k_cache, k_scales, k_scale, v_cache, v_scales, v_scale = result
    return k_cache, v_cache, k_scales, v_scales, k_scale, v_scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("layout", "order"), [(0, (0, 1, 2, 3)), (1, (0, 2, 1, 3))])
@pytest.mark.subject("nvfp4_kv_dequantize_paged")
def test_paged_equals_the_reference(details, layout, order, index_dtype, dtype):
    k_cache, v_cache, k_scales, v_scales, k_scale, v_scale = draw_pages(order)
    tables = torch.randperm(64)[:60].reshape(5, 12).to(index_dtype)
    tables[3, 1] = -1  # an unmapped page is skipped
    tables[3, 2] = 64
    lengths = torch.tensor([0, 1, 190, 64, 17], dtype=torch.int32)
    arguments = (k_cache, v_cache, k_scales, v_scales, tables, lengths, k_scale, v_scale)
    expected = reference.nvfp4_kv_dequantize_paged(*arguments, 190, dtype, layout)
    on_gpu = [tensor.cuda() for tensor in arguments]
    for got, want in zip(paged(*on_gpu, 190, dtype, layout), expected, strict=True):
        assert_equal(details, AGAINST, got.cpu(), want)
    # Positions that are not written keep what they held.
    buffers = [torch.full_like(tensor, -123.0, device="cuda") for tensor in expected]
    paged.out(*on_gpu, layout, output_k=buffers[0], output_v=buffers[1])
    for buffer, want in zip(buffers, expected, strict=True):
        kept = torch.full_like(want, -123.0)
        for batch, length in enumerate(lengths.tolist()):
            for position in range(length):
                page = int(tables[batch, position // 16])
                if 0 <= page < 64:
                    kept[batch, position] = want[batch, position]
        assert_equal(details, AGAINST, buffer.cpu(), kept)


@pytest.mark.subject("nvfp4_kv_dequantize_paged")
def test_paged_cache_views_of_one_stacked_tensor():
    """Serving stacks keep K and V in one tensor: the views are strided."""
    k_cache, v_cache, k_scales, v_scales, k_scale, v_scale = draw_pages((0, 1, 2, 3), v_dim=128)
    stacked = torch.stack([k_cache, v_cache], dim=1).cuda()
    stacked_scales = torch.stack([k_scales, v_scales], dim=1).cuda()
    tables = torch.randperm(64)[:20].reshape(2, 10).int()
    lengths = torch.tensor([150, 33], dtype=torch.int32)
    expected = reference.nvfp4_kv_dequantize_paged(
        *(k_cache, v_cache, k_scales, v_scales, tables, lengths, k_scale, v_scale),
        *(150, torch.bfloat16, 0),
    )
    got = fp4aot.nvfp4_kv_dequantize_paged(
        *(stacked, stacked_scales, tables.cuda(), lengths.cuda(), k_scale.cuda(), v_scale.cuda()),
        max_seq_len=150,
    )
    for left, right in zip(got, expected, strict=True):
        assert torch.equal(left.cpu(), right)


def test_fullgraph_equals_eager_with_one_graph_for_all_sizes():
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")

    def layer(packed, scales, scale, weight):
        return fp4aot.nvfp4_kv_dequantize(packed, scales, scale) @ weight

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    weight = torch.randn(256, 32, device="cuda", dtype=torch.bfloat16)
    for rows in (2, 3, 7, 16, 31, 33, 64, 129, 500, 1000):
        arguments = [tensor.cuda() for tensor in draw(rows, 256, rows)]
        assert torch.equal(compiled(*arguments, weight), layer(*arguments, weight))
    assert counter.frame_count == 1


def test_graph_replay_equals_eager_on_new_data():
    packed, scales, scale = (tensor.cuda() for tensor in draw(256, 512))
    out = poisoned(256, 512, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain.out(packed, scales, scale, out=out)
        functional = plain(packed, scales, scale, torch.float16)
    for seed in range(1, 6):
        fresh = draw(256, 512, seed)
        for target, source in zip((packed, scales, scale), fresh, strict=True):
            target.copy_(source)
        out.fill_(float("nan"))
        functional.fill_(float("nan"))
        graph.replay()
        expected = reference.nvfp4_kv_dequantize(*fresh, torch.bfloat16)
        assert torch.equal(out.cpu(), expected)
        assert torch.equal(functional.cpu(), reference.nvfp4_kv_dequantize(*fresh, torch.float16))


@pytest.mark.subject("nvfp4_kv_dequantize_paged")
def test_paged_graph_replay_equals_eager_on_new_lengths():
    k_cache, v_cache, k_scales, v_scales, k_scale, v_scale = draw_pages((0, 1, 2, 3))
    tables = torch.randperm(64)[:40].reshape(4, 10).int()
    lengths = torch.tensor([150, 33, 1, 80], dtype=torch.int32)
    cpu = [k_cache, v_cache, k_scales, v_scales, tables, lengths, k_scale, v_scale]
    gpu = [tensor.cuda() for tensor in cpu]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = paged(*gpu, 150, torch.bfloat16, 0)
    for seed in range(3):
        torch.manual_seed(seed)
        cpu[4] = torch.randperm(64)[:40].reshape(4, 10).int()
        cpu[5] = torch.randint(0, 151, (4,), dtype=torch.int32)
        gpu[4].copy_(cpu[4])
        gpu[5].copy_(cpu[5])
        graph.replay()
        expected = reference.nvfp4_kv_dequantize_paged(*cpu, 150, torch.bfloat16, 0)
        for got, want in zip(captured, expected, strict=True):
            assert torch.equal(got.cpu(), want)


def test_reduce_overhead_equals_eager():
    def layer(packed, scales, scale):
        return fp4aot.nvfp4_kv_dequantize(packed, scales, scale) * 2

    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        arguments = [tensor.cuda() for tensor in draw(64, 256, seed)]
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(*arguments).clone(), layer(*arguments))


def test_export_equals_eager():
    class Layer(torch.nn.Module):
        def forward(self, packed, scales, scale):
            return fp4aot.nvfp4_kv_dequantize(packed, scales, scale)

    arguments = tuple(tensor.cuda() for tensor in draw(8, 256))
    rows = torch.export.Dim("rows")
    program = torch.export.export(Layer(), arguments, dynamic_shapes=({0: rows}, {0: rows}, None))
    for count in (3, 77):
        arguments = tuple(tensor.cuda() for tensor in draw(count, 256))
        assert torch.equal(program.module()(*arguments), Layer()(*arguments))


@pytest.mark.subject("e2m1_and_ufp8sf_scale_to_float")
def test_plain_pytorch_operators_do_not_synchronise_and_can_be_captured():
    """Two operators have no device kernel in FlashInfer: PyTorch runs them, and must not wait."""
    values = torch.randn(33, 320).to(torch.bfloat16)
    scale = (448 * 6 / values.float().abs().max()).reshape(1)
    arguments = [t.cuda() for t in (*quantize.fp4_quantize(values, scale), 1 / scale)]
    mx_arguments = [t.cuda() for t in quantize.fp4_quantize(values, None, 32, True)]
    expected = fp4aot.e2m1_and_ufp8sf_scale_to_float(*arguments)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fp4aot.e2m1_and_ufp8sf_scale_to_float(*arguments)
        fp4aot.mxfp4_dequantize(*mx_arguments)
        fp4aot.nvfp4_kv_dequantize(arguments[0][:, :160], arguments[1][:33], arguments[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fp4aot.e2m1_and_ufp8sf_scale_to_float(*arguments)
    result.zero_()
    graph.replay()
    assert torch.equal(result, expected)
