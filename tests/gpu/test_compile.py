"""`torch.compile`, `torch.export` and opcheck."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import as_tuple, assert_equal, out_form, packet_of
from gpusuite.memory import churn
from gpusuite.models import Stack
from gpusuite.wheel import ON_EVERY_DEVICE, OPERATORS
from torch._subclasses.fake_tensor import FakeTensorMode

import fp4aot

EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS + ON_EVERY_DEVICE)
SIZES = (2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)


@pytest.mark.needs
@EVERY_OPERATOR
def test_fullgraph_equals_eager_and_fakes_are_true(details, operator):
    """Traced cold, and compiled by inductor."""
    packet = packet_of(operator)
    for case in draw.calls(operator):
        with details.case(case.variant):
            torch._dynamo.reset()
            arguments = draw.moved(case.arguments)
            compiled = torch.compile(packet.default, fullgraph=True)
            results = compiled(*arguments)
            eager = as_tuple(packet.default(*arguments))
            if case.writes_all:
                assert_equal(details, "bytes compiled, eager", results, eager)
            with FakeTensorMode() as mode:
                fakes = packet.default(
                    *(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments)
                )
            for fake, real in zip(as_tuple(fakes), eager, strict=True):
                assert fake.shape == real.shape
                assert fake.stride() == real.stride()
                assert (fake.dtype, fake.device) == (real.dtype, real.device)


@pytest.mark.needs
@EVERY_OPERATOR
def test_opcheck(details, operator):
    packet = packet_of(operator)
    for case in draw.calls(operator)[:6]:
        with details.case(case.variant):
            arguments = draw.moved(case.arguments)
            results = as_tuple(packet.default(*arguments))
            checks = ["test_autograd_registration", "test_faketensor"]
            # It runs the operator twice and compares: what is left unwritten differs.
            if case.writes_all:
                checks.append("test_aot_dispatch_dynamic")
            tensors = [a for a in (*arguments, *results) if isinstance(a, torch.Tensor)]
            if all(tensor.dtype != torch.float8_e4m3fn for tensor in tensors):
                # It compares tensors, which torch before 2.13 cannot do for float8.
                checks.append("test_schema")
            torch.library.opcheck(packet.default, arguments, test_utils=checks)
            inputs, names = out_form(packet, arguments)
            buffers = {n: torch.zeros_like(t) for n, t in zip(names, results, strict=True)}
            torch.library.opcheck(packet.out, inputs, buffers, test_utils=checks)


@pytest.mark.subject("torch.compile")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
class TestModels:
    def test_one_graph_for_all_sizes(self, details):
        counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
        model = Stack()
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
        for rows in SIZES:
            x = model.inputs(rows, rows)
            assert_equal(details, "results compiled, eager", compiled(x), model(x))
        assert counter.frame_count == 1, f"{counter.frame_count} graphs"

    @pytest.mark.parametrize("layout", list(fp4aot.SfLayout), ids=lambda layout: layout.name)
    def test_quantization_of_all_sizes_in_one_graph(self, details, layout):
        counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
        number = int(layout)

        def quantize(x, scale):
            return torch.ops.fp4aot.fp4_quantize(x, scale, 16, False, number != 2, number == 1)

        compiled = torch.compile(quantize, fullgraph=True, dynamic=True, backend=counter)
        for rows in SIZES:
            x = draw.values(rows, 2880, seed=rows)
            scale = draw.global_scale(x)
            assert_equal(details, "bytes compiled, eager", compiled(x, scale), quantize(x, scale))
        assert counter.frame_count == 1, f"{counter.frame_count} graphs"

    def test_public_functions_in_one_graph(self, details):
        def run(x, scale):
            values, scales = fp4aot.nvfp4_quantize(x, scale)
            restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, scales, 1 / scale)
            return *fp4aot.mxfp4_quantize(x), values, scales, restored

        compiled = torch.compile(run, fullgraph=True)
        x = draw.values(33, 320)
        scale = draw.global_scale(x)
        assert_equal(details, "bytes compiled, eager", compiled(x, scale), run(x, scale))

    def test_reduce_overhead(self, details):
        model = Stack()
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        with torch.no_grad():
            for seed in range(8):
                x = model.inputs(65, seed)
                torch.compiler.cudagraph_mark_step_begin()
                got = compiled(x).clone()
                churn(1)
                assert_equal(details, "results with reduce-overhead, eager", got, model(x))

    def test_reduce_overhead_uses_a_graph(self):
        """Inductor leaves graphs out without a word where an operator does not allow them."""
        model = Stack()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        with torch.no_grad():
            for seed in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                compiled(model.inputs(16, seed))
        assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.subject("torch.export")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
def test_export_with_a_dynamic_number_of_rows(details, tmp_path):
    model = Stack()
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(model, (model.inputs(8),), dynamic_shapes=({0: rows},))
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"fp4aot.fp4_quantize.default", "fp4aot.mm_fp4.default"} <= operators
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for each in (program, loaded):
        module = each.module()
        for count in (2, 3, 77, 1000):
            x = model.inputs(count, count)
            assert_equal(details, "results exported, eager", module(x), model(x))
