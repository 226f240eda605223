"""Grouped GEMMs against float64 over the dequantized factors, group by group."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw, grouped, memory, records
from gpusuite.compare import assert_equal
from gpusuite.concurrency import after_running_work, check_threads
from gpusuite.draw import BF16, FP16
from gpusuite.grouped import MXFP4, NVFP4, OPERATORS

import fp4aot

pytestmark = [pytest.mark.needs]
EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS)
EVERY_DTYPE = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)

# FlashInfer wants every segment to begin at a multiple of four.
ROWS = (
    (0,),
    (4,),
    (128,),
    (4, 8),
    (0, 4, 0),
    (0, 0, 0, 132),
    (128, 256, 4, 124),
    (20, 0, 300, 4, 4, 1000, 0, 8),
    tuple(4 * (index % 5) for index in range(32)),
    (1024, 1024),
)
NVFP4_TILES = [(128, n, k) for n in (32, 64, 128) for k in (128, 256)]
MXFP4_TILES = {10: [(128, n, k) for n in (64, 128, 192, 256) for k in (128, 256)],
               12: [(128, n, 128) for n in (32, 64, 128)]}  # fmt: skip


def written_for() -> int:
    """Major capability that the device's kernels are written for, also where they are lowered."""
    major = torch.cuda.get_device_capability(0)[0]
    return 12 if fp4aot._MANIFEST.is_lowered else major


def tiles_of(operator):
    return NVFP4_TILES if operator == NVFP4 else MXFP4_TILES[written_for()]


def multiply(details, call, **options) -> torch.Tensor:
    """Run both forms in poisoned memory and hold them against float64."""
    memory.poison()
    product = call.run(**options)
    call.check(details, product)
    buffer = memory.Guarded.like(product)
    call.run_into(buffer.tensor, **options)
    buffer.check()
    assert_equal(details, "products of groups, both forms", buffer.tensor, product)
    return product


@EVERY_OPERATOR
@EVERY_DTYPE
@pytest.mark.parametrize("swap_ab", [True, False], ids=["swapped", "as it is"])
def test_groups(details, operator, dtype, swap_ab):
    for rows in ROWS:
        for n, k in ((8, 128), (136, 256), (512, 1024)):
            with details.case(f"{list(rows)} rows, {n} x {k}"):
                call = grouped.draw(operator, rows, n, k, dtype=dtype)
                multiply(details, call, swap_ab=swap_ab)


@EVERY_OPERATOR
@EVERY_DTYPE
def test_every_tile(details, operator, dtype):
    sizes = [1, 2] if operator == MXFP4 and written_for() == 10 else [None]
    for mma_sm in sizes:
        more = {} if mma_sm is None else {"mma_sm": mma_sm}
        for tile_m, tile_n, tile_k in tiles_of(operator):
            for swap_ab in (True, False):
                with details.case(f"{tile_m} x {tile_n} x {tile_k}, swap_ab={swap_ab}, {more}"):
                    call = grouped.draw(operator, (20, 0, 300, 4), 200, 512, dtype=dtype)
                    tiles = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k}
                    multiply(details, call, swap_ab=swap_ab, **tiles, **more)


@EVERY_OPERATOR
def test_a_tile_that_does_not_exist_is_refused_and_nothing_is_written(operator):
    call = grouped.draw(operator, (4, 8), 64, 256)
    buffer = memory.poisoned_like(torch.empty(12, 64, dtype=BF16, device="cuda"))
    for tile in ("tile_m", "tile_n", "tile_k"):
        with pytest.raises(RuntimeError, match=f"argument '{tile}'"):
            call.run_into(buffer, **{tile: 48})
    assert (buffer.view(torch.uint8) == memory.POISON).all()


@pytest.mark.parametrize("operator", [NVFP4])
def test_alpha(details, operator):
    rows, n, k = (20, 0, 132), 136, 512
    call = grouped.draw(operator, rows, n, k)
    for name, alpha in {
        "none": None,
        "one for each": torch.tensor([1.0, -0.37, 1e-3], device="cuda"),
        "zero": torch.tensor([0.0, 2.0, 0.0], device="cuda"),
    }.items():
        with details.case(name):
            multiply(details, call.changed(alpha=alpha))
    with details.case("an empty tensor"):
        empty = call.changed(alpha=torch.empty(0, device="cuda"))
        expected = call.changed(alpha=None).run()
        assert_equal(details, "products of groups, no alpha", empty.run(), expected)


@pytest.mark.parametrize("operator", [MXFP4])
def test_both_formats_of_the_left_side(details, operator):
    for values in (torch.float8_e4m3fn, torch.float8_e5m2):
        with details.case(str(values)):
            call = grouped.draw(operator, (20, 0, 132), 136, 512, values=values)
            multiply(details, call)


@EVERY_OPERATOR
def test_groups_do_not_depend_on_each_other(details, operator):
    rows = (20, 0, 300, 4)
    call = grouped.draw(operator, rows, 136, 512)
    whole = call.run()
    for group, (first, count) in enumerate(zip((0, 20, 20, 320), rows, strict=True)):
        start = grouped.first_scale_row(first, group)
        alone = call.changed(
            rows=(count,),
            a=call.a[first : first + count].contiguous(),
            b=call.b[group : group + 1],
            a_scale=call.a_scale[start : start + (count + 127) // 128 * 128].contiguous(),
            b_scale=call.b_scale[group : group + 1],
            m_indptr=torch.tensor([0, count], dtype=torch.int32, device="cuda"),
            alpha=None if call.alpha is None else call.alpha[group : group + 1],
        )
        result = alone.run()
        expected = whole[first : first + count]
        assert_equal(details, "products of groups, among others", result, expected)


@EVERY_OPERATOR
def test_rows_outside_of_the_segments_stay_as_they_were(details, operator):
    call = grouped.draw(operator, (20, 132), 136, 256)
    m_indptr = torch.tensor([4, 20, 100], dtype=torch.int32, device="cuda")
    # (4 + 127 * 0) // 128 is the first tile still; the second group begins where it did.
    shifted = call.changed(m_indptr=m_indptr, rows=(16, 80))
    out = memory.poisoned_like(torch.empty(152, 136, dtype=BF16, device="cuda"), 0x5A)
    shifted.run_into(out)
    for outside in (out[:4], out[100:]):
        changed = int((outside.contiguous().view(torch.uint8) != 0x5A).sum())
        details.compared("bytes outside of the segments", outside.numel() * 2, changed)
        assert changed == 0
    shifted.check(details, out)


@EVERY_OPERATOR
def test_the_same_call_gives_the_same_bits(details, operator):
    call = grouped.draw(operator, (20, 0, 300, 4, 1000), 512, 1024)
    first = call.run()
    for _ in range(10):
        assert_equal(details, "products of groups, the first of ten calls", call.run(), first)


@EVERY_OPERATOR
def test_the_cpu_agrees(details, operator):
    call = grouped.draw(operator, (20, 0, 132), 136, 512)
    got, expected = call.run().cpu().double(), call.to("cpu").run().double()
    error = float((got - expected).norm() / expected.norm())
    details.error("products of groups, Frobenius norm relative to the CPU's", error)
    assert error < 1e-3


@EVERY_OPERATOR
def test_strided_and_misaligned_factors(details, operator):
    call = grouped.draw(operator, (20, 0, 132), 136, 512)
    expected = call.run()
    columns = call.a.shape[1]
    wide = torch.zeros(152, columns + 3, dtype=torch.uint8, device="cuda")
    wide[:, 3:] = call.a.view(torch.uint8)
    flat = torch.zeros(call.b.numel() + 1, dtype=torch.uint8, device="cuda")
    flat[1:] = call.b.flatten()
    for name, changes in {
        "strided a": {"a": wide[:, 3:].view(call.a.dtype)},
        "misaligned b": {"b": flat[1:].view_as(call.b)},
        "float4 b": {"b": call.b.view(torch.float4_e2m1fn_x2)},
    }.items():
        with details.case(name):
            result = call.changed(**changes).run()
            assert_equal(details, "products of groups, contiguous", result, expected)


@EVERY_OPERATOR
def test_the_launch_is_on_the_current_stream_and_waits_for_nothing(details, operator):
    call = grouped.draw(operator, (20, 0, 132), 136, 512)
    fresh = grouped.draw(operator, (4, 100, 48), 136, 512, seed=1)
    expected = fresh.run().clone()
    pinned = fresh.to("cpu").mapped(torch.Tensor.pin_memory)
    call.run()
    copies = zip(call.all_tensors(), pinned.all_tensors(), strict=True)
    result = after_running_work(copies, call.run)
    assert_equal(details, "bytes, the default stream", result, expected)


@EVERY_OPERATOR
def test_replay_equals_eager_on_new_segments_after_churn(details, operator):
    """The segments too are read on the device: a graph serves any routing."""
    call = grouped.draw(operator, (20, 0, 132), 136, 512)
    out = torch.empty(152, 136, dtype=BF16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        functional = call.run()
        call.run_into(out)
    for seed, rows in enumerate(((152, 0, 0), (4, 144, 4), (0, 0, 152)), 1):
        fresh = grouped.draw(operator, rows, 136, 512, seed=seed)
        call.load(fresh)
        for tensor in (functional, out):
            memory.fill(tensor, 0x5A)
        memory.churn(1)
        torch.cuda.empty_cache()
        graph.replay()
        expected = fresh.run()
        fresh.check(details, functional)
        assert_equal(details, "bytes of a replay, eager", functional, expected)
        assert_equal(details, "bytes of a replay, eager", out, expected)


@EVERY_OPERATOR
def test_two_threads(details, operator):
    segments = {"three": (20, 0, 132), "four": (300, 4, 4, 4)}
    calls = {name: grouped.draw(operator, rows, 136, 512).run for name, rows in segments.items()}
    check_threads(details, calls, runs=50)


@EVERY_OPERATOR
def test_one_graph_for_all_numbers_of_rows(details, operator):
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    function = getattr(fp4aot, operator)

    def run(*factors):
        return torch.relu(function(*factors))

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counter)
    # 768 values a row: with 512, the first a_scale would have as many rows as a has columns, and
    # Dynamo takes sizes that are equal in the first call for the same one.
    for rows in ((20, 132, 4), (4, 8, 256), (1000, 4, 4)):
        factors = grouped.draw(operator, rows, 136, 768).factors()
        assert_equal(details, "results compiled, eager", compiled(*factors), run(*factors))
    assert counter.frame_count == 1, f"{counter.frame_count} graphs"


@EVERY_OPERATOR
def test_reduce_overhead_uses_a_graph(details, operator):
    function = getattr(fp4aot, operator)

    def run(*factors):
        return torch.relu(function(*factors))

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(run, fullgraph=True, mode="reduce-overhead")
    for seed in range(3):
        factors = grouped.draw(operator, (20, 0, 132), 136, 512, seed=seed).factors()
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(*factors).clone()
        assert_equal(details, "results with reduce-overhead, eager", got, run(*factors))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.subject("instruments")
@EVERY_OPERATOR
def test_the_reference_notices_a_group_that_is_another_s(details, operator):
    call = grouped.draw(operator, (20, 4, 132), 136, 512)
    call.check(details, call.run())
    wrong = call.changed(b=call.b.flip(0).contiguous()).run()
    with pytest.raises(AssertionError, match="off by more than the bound"):
        call.check(records.Details(), wrong)
