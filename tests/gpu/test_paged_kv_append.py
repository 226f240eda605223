"""New rows in the pages of an NVFP4 KV cache: the one operator that writes to its arguments."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw, memory
from gpusuite.compare import assert_equal, packet_of
from gpusuite.draw import BF16, FP16
from gpusuite.gpu_arithmetic import gpu_arithmetic

import fp4aot
from fp4aot.operators.nvfp4_kv_cache import nvfp4_quantize_append_paged_kv_cache as reference

OPERATOR = "nvfp4_quantize_append_paged_kv_cache"
pytestmark = [pytest.mark.subject(OPERATOR), pytest.mark.needs(OPERATOR)]
AGAINST = "bytes of the pages, reference with the GPU's rcp.approx"
PAGE_SIZE = 16
LAYOUTS = pytest.mark.parametrize("layout", ["NHD", "HND"])


def requests(lengths, new, seed=0):
    """Return row numbers, positions and pages for requests whose last tokens are new."""
    pages_of = [-(-length // PAGE_SIZE) for length in lengths]
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(sum(pages_of) + 3, generator=generator)[: sum(pages_of)]
    rows = [(r, p) for r, length in enumerate(lengths) for p in range(length - new[r], length)]
    order = torch.randperm(len(rows), generator=generator).tolist()
    batch, positions = zip(*(rows[at] for at in order), strict=True)
    indptr = torch.tensor([0, *pages_of]).cumsum(0)
    last = [(length - 1) % PAGE_SIZE + 1 for length in lengths]
    numbers = (batch, positions, indices, indptr, last)
    return [torch.as_tensor(n).to(torch.int32).cuda() for n in numbers], sum(pages_of) + 3


def guarded_pages(count, heads, head_dim, layout, scale_dtype=torch.uint8):
    """Make K, V, and the scales of both, poisoned and between zones that nothing may write to."""
    page = (PAGE_SIZE, heads) if layout == "NHD" else (heads, PAGE_SIZE)
    shapes = [(count, *page, head_dim // size) for size in (2, 16)]
    kinds = [(shapes[0], torch.uint8)] * 2 + [(shapes[1], scale_dtype)] * 2
    return [
        memory.Guarded.like(torch.empty(shape, dtype=dtype, device="cuda"))
        for shape, dtype in kinds
    ]


def check(details, key, value, numbers, count, layout, scale_dtype=torch.uint8):
    """Append, and compare every byte of all pages with what the reference leaves there."""
    scales = [float(rows.abs().max()) / (448 * 6) for rows in (key, value)]
    heads, head_dim = key.shape[1:]
    ours = guarded_pages(count, heads, head_dim, layout, scale_dtype)
    k, v, k_scales, v_scales = (one.tensor for one in ours)
    rows, positions, *pages = numbers
    fp4aot.nvfp4_quantize_append_paged_kv_cache(
        *(key, value, rows, positions, (k, v), (k_scales, v_scales), *pages, *scales, layout)
    )
    theirs = [memory.poisoned_like(one.tensor) for one in ours]
    with gpu_arithmetic():
        reference(key, value, rows, positions, *theirs, *pages, *scales, int(layout == "HND"))
    for got, expected in zip(ours, theirs, strict=True):
        got.check()
        assert_equal(details, AGAINST, memory.raw(got.tensor), memory.raw(expected))
        changed = int((memory.raw(got.tensor) != memory.POISON).any(-1).sum())
        assert 0 < changed <= len(rows) * heads, "more than the new rows was written"


@LAYOUTS
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
def test_sizes(details, dtype, head_dim, layout):
    for heads, lengths, new in (
        (1, (1,), (1,)),
        (2, (16, 5, 33), (16, 1, 2)),
        (8, (100, 1, 257, 64), (100, 1, 3, 17)),
        (4, (3000, 17), (2999, 1)),
    ):
        with details.case(f"{heads} heads, {lengths}"):
            numbers, count = requests(lengths, new)
            key, value = (
                draw.values(sum(new), heads, head_dim, dtype=dtype, seed=s) for s in range(2)
            )
            check(details, key, value, numbers, count, layout, torch.float8_e4m3fn)


@LAYOUTS
def test_strided_rows_and_odd_values(details, layout):
    numbers, count = requests((40, 9), (20, 9))
    wide = draw.values(29, 4, 128)
    with details.case("halves of a projection"):
        check(details, wide[:, :2], wide[:, 2:], numbers, count, layout)
    with details.case("infinities, huge and subnormal blocks"):
        # What a block with NaN becomes is not specified.
        odd = draw.special(29 * 2, 128, BF16).nan_to_num(nan=1.0, posinf=1e30, neginf=-1e30)
        check(details, odd.view(29, 2, 128), wide[:, :2], numbers, count, layout)


def case(seed=0):
    """Return arguments on the GPU; the caches are poisoned."""
    arguments = list(draw.arguments(OPERATOR, seed))
    arguments[4:8] = [memory.poisoned_like(a) for a in arguments[4:8]]
    return arguments


def caches_of(arguments):
    return tuple(memory.raw(a).clone() for a in arguments[4:8])


def test_a_graph_replays_new_rows(details):
    packet = packet_of(OPERATOR)
    arguments = case()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packet(*arguments)
    for seed in (1, 2):
        fresh = case(seed)
        for at in (0, 1):
            arguments[at].copy_(fresh[at])
        for at in range(4, 8):
            memory.fill(arguments[at], memory.POISON)
        graph.replay()
        packet(*fresh)
        assert_equal(details, "bytes of a replay, eager", caches_of(arguments), caches_of(fresh))


def test_the_launch_is_on_torchs_current_stream_and_waits_for_nothing(details):
    packet = packet_of(OPERATOR)
    arguments, expected = case(), case(1)
    packet(*expected)
    pinned = [draw.calls(OPERATOR, 1)[0].arguments[at].pin_memory() for at in (0, 1)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            for at in (0, 1):
                arguments[at].copy_(pinned[at], non_blocking=True)
            packet(*arguments)
            running = not stream.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert running, "the call waited for the device"
    stream.synchronize()
    assert_equal(details, "bytes, the default stream", caches_of(arguments), caches_of(expected))


def test_a_compiled_model_writes_what_eager_does(details):
    packet = packet_of(OPERATOR)
    compiled_case, eager_case = case(), case()

    def model(key, *rest):
        packet(key + key, *rest)
        return rest[3].sum(dtype=torch.int64)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    assert int(compiled(*compiled_case)) == int(model(*eager_case))
    assert_equal(details, "bytes compiled, eager", caches_of(compiled_case), caches_of(eager_case))
    torch.library.opcheck(
        packet.default, tuple(case()), test_utils=["test_autograd_registration", "test_faketensor"]
    )
