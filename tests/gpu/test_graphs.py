"""CUDA graphs: capture, replay on new data, after allocator churn, from several threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
import torch
from gpusuite import draw, factors, memory
from gpusuite.compare import as_tuple, assert_equal, out_form, packet_of
from gpusuite.concurrency import check_one_graph
from gpusuite.models import Stack
from gpusuite.wheel import ON_EVERY_DEVICE, OPERATORS

import fp4aot

EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS + ON_EVERY_DEVICE)


def load(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        if isinstance(target, torch.Tensor):
            target.copy_(source)


@pytest.mark.needs
@EVERY_OPERATOR
def test_replay_equals_eager_on_new_data_after_churn(details, operator):
    packet = packet_of(operator)
    arguments = draw.arguments(operator)
    inputs, names = out_form(packet, arguments)
    shapes = as_tuple(packet.default(*draw.moved(arguments, "meta")))
    buffers = {
        name: memory.poisoned_like(torch.empty_strided(s.shape, s.stride(), dtype=s.dtype,
                                                       device="cuda"))
        for name, s in zip(names, shapes, strict=True)
    }  # fmt: skip
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        functional = as_tuple(packet.default(*arguments))
        packet.out(*inputs, **buffers)
    addresses = [tensor.data_ptr() for tensor in functional]
    for seed in (1, 2, 3):
        fresh = draw.arguments(operator, seed)
        load(arguments, fresh)
        for tensor in (*functional, *buffers.values()):
            memory.fill(tensor, 0x5A)
        memory.churn()
        gc.collect()
        torch.cuda.empty_cache()
        allocated = torch.cuda.memory_allocated()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == allocated, "a replay allocated"
        expected = as_tuple(packet.default(*fresh))
        assert_equal(details, "bytes of a replay, eager", functional, expected)
        # What an operator leaves alone keeps the same bytes in both.
        others = {name: memory.poisoned_like(b, 0x5A) for name, b in buffers.items()}
        packet.out(*out_form(packet, fresh)[0], **others)
        for name, buffer in buffers.items():
            assert_equal(details, "bytes of a replay, eager", buffer, others[name])
    assert addresses == [tensor.data_ptr() for tensor in functional]


FIRST_CALLS = """
import torch, fp4aot
torch.manual_seed(0)
x = torch.randn(33, 352, device="cuda").bfloat16()
weight = torch.randint(0, 256, (96, 176), dtype=torch.uint8, device="cuda")
scales = torch.randint(24, 72, (128, 24), dtype=torch.uint8, device="cuda")
scale, alpha = torch.full((1,), 600.0, device="cuda"), torch.full((1,), 1e-3, device="cuda")
def run(x):
    values, block_scales = fp4aot.nvfp4_quantize(x, scale)
    return fp4aot.mm_fp4(values, weight.t(), block_scales, scales, alpha)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = run(x)
x.copy_(torch.randn_like(x))
output.fill_(float("nan"))
graph.replay()
assert torch.equal(output, run(x))
assert output.isfinite().all() and output.count_nonzero() > 0
print("equal")
"""


@pytest.mark.subject("graphs")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
def test_the_first_calls_of_a_process_can_be_captured():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["equal"]


@pytest.mark.subject("graphs")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
class TestModels:
    def test_a_model_in_a_graph(self, details):
        model = Stack()
        x = model.inputs(77)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            output = model(x)
        for seed in range(1, 11):
            fresh = model.inputs(77, seed)
            x.copy_(fresh)
            output.fill_(float("nan"))
            memory.churn(1)
            graph.replay()
            assert_equal(details, "results of a replay, eager", output.clone(), model(fresh))

    def test_graphs_of_several_sizes_in_one_pool(self, details):
        """As serving does it: largest first, memory shared, replayed in any order."""
        model, graphs, pool = Stack(), {}, None
        for rows in (512, 256, 64, 8, 1):
            x = model.inputs(rows)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool), torch.no_grad():
                output = model(x)
            pool = graph.pool()
            graphs[rows] = (graph, x, output)
        for seed, rows in enumerate((8, 512, 1, 64, 256, 8, 8, 512)):
            graph, x, output = graphs[rows]
            fresh = model.inputs(rows, seed + 1)
            x.copy_(fresh)
            graph.replay()
            got = output.clone()
            memory.churn(1)
            assert_equal(details, "results of a replay, eager", got, model(fresh))

    def test_a_layer_loaded_again_keeps_its_graph(self, details):
        model, other = Stack(), Stack((256, 384, 512, 96))
        for each in other.layers:
            each.weight.random_(0, 256)
            each.prepare()
        x = model.inputs(33)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            output = model(x)
        model.load_state_dict(other.state_dict())
        graph.replay()
        assert_equal(details, "results of a replay, eager", output.clone(), other(x))

    def test_every_tactic_can_be_captured(self, details):
        count = torch.ops.fp4aot._mm_fp4_tactic_count(*torch.cuda.get_device_capability(0))
        arguments = factors.draw(130, 384, 1056)
        fresh = factors.draw(130, 384, 1056, seed=1)
        for tactic in range(-1, count):
            with details.case(f"tactic {tactic}"):
                static = [argument.clone() for argument in arguments]
                static[1] = arguments[1].t().clone().t()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    output = torch.ops.fp4aot.mm_fp4(*static, draw.BF16, tactic)
                load(static, fresh)
                output.fill_(float("nan"))
                memory.churn(1)
                graph.replay()
                expected = torch.ops.fp4aot.mm_fp4(*fresh, draw.BF16, tactic)
                assert_equal(details, "results of a replay, eager", output.clone(), expected)

    def test_captures_in_two_threads_one_after_another(self, details):
        """Workspace and stream are thread-local: a second thread must not get the first one's."""
        captured, problems = {}, []

        def capture(name, rows):
            try:
                with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
                    model = Stack()
                    x = model.inputs(rows)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                        output = model(x)
                    captured[name] = graph, x, output, model
            except Exception as error:
                problems.append(f"{name}: {error!r}")

        for name, rows in (("first", 129), ("second", 33)):
            thread = threading.Thread(target=capture, args=(name, rows))
            thread.start()
            thread.join()
        assert not problems, problems
        memory.churn()

        def replay(name):
            graph, x, output, model = captured[name]
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for seed in range(1, 21):
                        fresh = model.inputs(x.shape[0], seed)
                        x.copy_(fresh)
                        graph.replay()
                        if not torch.equal(output, model(fresh)):
                            problems.append(f"{name}, seed {seed}")
            except Exception as error:
                problems.append(f"{name}: {error!r}")

        torch.cuda.synchronize()
        threads = [threading.Thread(target=replay, args=(name,)) for name in captured]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        details.compared("results of a replay in a thread, eager", 40, len(problems))
        assert not problems, problems[:5]

    def test_quantize_and_multiply_four_hundred_times_in_one_graph(self, details):
        """Programmatic launches become edges of the graph."""
        runs, m, n, k = 400, 512, 384, 1024
        weight, weight_scale = fp4aot.nvfp4_quantize(
            draw.values(n, k), torch.ones(1, device="cuda")
        )
        scale = draw.global_scale(draw.values(m, k))
        alpha = torch.full((1,), 1e-3, device="cuda")
        inputs = torch.stack([draw.values(m, k, seed=seed) for seed in range(runs)])
        outputs = torch.full((runs, m, n), float("nan"), dtype=draw.BF16, device="cuda")

        def run(x):
            values, scales = fp4aot.fp4_quantize(x, scale)
            return fp4aot.mm_fp4(values, weight.t(), scales, weight_scale, alpha)

        check_one_graph(details, inputs, outputs, run)
