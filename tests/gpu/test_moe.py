"""`cutlass_fused_moe` against a float64 model that knows what ties allow."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from gpusuite import draw, memory, mixture, records
from gpusuite.compare import assert_equal
from gpusuite.concurrency import after_running_work, check_one_graph, check_threads
from gpusuite.draw import BF16, FP16
from gpusuite.gpu_arithmetic import gpu_arithmetic
from gpusuite.mixture import INPUTS, INSIDE, LINEAR, ROUTINGS, SWIZZLED, Mixture, Model

import fp4aot
from fp4aot import ActivationType

pytestmark = [pytest.mark.subject("cutlass_fused_moe"), pytest.mark.needs("cutlass_fused_moe")]
EVERY_DTYPE = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
EVERY_INPUT = pytest.mark.parametrize("source", INPUTS)
FINALIZE = pytest.mark.parametrize("fused", [False, True], ids=["own sum", "fused sum"])
ACTIVATIONS = tuple(a for a in ActivationType if a < ActivationType.Situ)
PARAMETERS = ("swiglu_alpha", "swiglu_beta", "swiglu_limit")

# Tokens, hidden, inter, experts, top_k. Up to 256 tokens take one kernel for the whole prologue.
SIZES = (
    (0, 256, 512, 4, 2),
    (1, 256, 512, 8, 2),
    (1, 160, 96, 4, 1),
    (3, 512, 256, 8, 8),
    (3, 96, 160, 4, 2),
    (16, 256, 512, 32, 8),
    (16, 32, 32, 8, 2),
    (128, 512, 512, 8, 2),
    (128, 96, 160, 32, 1),
    (256, 256, 256, 4, 2),
    (257, 256, 256, 4, 2),
    (300, 160, 96, 32, 8),
    (1024, 256, 512, 32, 2),
    (1024, 512, 256, 4, 1),
)


def model_of(call: Mixture) -> Model:
    """Compute what a call must return, with the GPU's own reciprocals in its quantizations."""
    with gpu_arithmetic():
        return Model(call)


def workspace_size(call: Mixture, fused: bool) -> int:
    options = call.options
    quantized = "input_sf" in options
    ranks = {name: options.get(name, name.endswith("_size")) for name in
             ("tp_size", "tp_rank", "ep_size", "ep_rank")}  # fmt: skip
    return fp4aot.cutlass_fused_moe_workspace_size(
        *(max(call.tokens, 1), call.hidden_size, call.inter_size),
        *(call.experts * int(ranks["ep_size"]), call.top_k),
        x_dtype=torch.uint8 if quantized else call.dtype,
        weight_dtype=call.fc1_expert_weights.dtype,
        output_dtype=call.dtype,
        activation_type=call.activation,
        use_fused_finalize=fused,
        **{name: int(value) for name, value in ranks.items()},
    )


def poisoned_output(call: Mixture) -> memory.Guarded:
    shape = (call.tokens, call.hidden_size)
    return memory.Guarded.like(torch.empty(shape, dtype=call.dtype, device="cuda"))


def mix(details, call, *, model=None, finalize=(False, True), **options) -> torch.Tensor:
    """Run both forms in poisoned memory, hold them against the model, and return one result."""
    model = model or model_of(call)
    for fused in finalize:
        memory.poison()
        result = call.run(use_fused_finalize=fused, **options)
        model.check(details, result, fused)
        buffer = poisoned_output(call)
        size = workspace_size(call, fused)
        workspace = memory.Guarded.like(torch.empty(size, dtype=torch.uint8, device="cuda"))
        call.run_into(buffer.tensor, workspace.tensor, use_fused_finalize=fused, **options)
        buffer.check()
        workspace.check()
        model.check(details, buffer.tensor, fused)
        if not fused:
            assert_equal(details, "bytes, both forms", buffer.tensor, result)
    return result


class TestResults:
    @EVERY_DTYPE
    @EVERY_INPUT
    def test_sizes(self, details, source, dtype):
        for tokens, hidden, inter, experts, top_k in SIZES:
            if source == LINEAR and hidden % 64 != 0:
                continue  # refused: FlashInfer reads them with the row length of padded ones
            with details.case(f"{tokens} tokens, {hidden}/{inter}, {experts} choose {top_k}"):
                call = mixture.draw(
                    tokens, hidden, inter, experts, top_k, source=source, dtype=dtype
                )
                mix(details, call)

    @EVERY_DTYPE
    @pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)
    def test_activations(self, details, activation, dtype):
        for tokens, hidden, inter in ((5, 256, 512), (130, 160, 96)):
            for biases in (False, True):
                with details.case(f"{tokens} tokens, {hidden}/{inter}, biases {biases}"):
                    call = mixture.draw(
                        *(tokens, hidden, inter, 4, 2),
                        activation=activation,
                        dtype=dtype,
                        biases=biases,
                        per_expert=biases,
                    )
                    mix(details, call)

    @EVERY_DTYPE
    def test_parameters_of_activations(self, details, dtype):
        swiglu = [(ActivationType.Swiglu, (name,)) for name in PARAMETERS]
        for activation, parameters in (
            *swiglu,
            (ActivationType.Swiglu, PARAMETERS),
            (ActivationType.SwigluBias, PARAMETERS),
            (ActivationType.SwigluStep, PARAMETERS[2:]),
        ):
            with details.case(f"{activation.name} with {', '.join(parameters)}"):
                call = mixture.draw(
                    *(33, 256, 512, 4, 2),
                    activation=activation,
                    parameters=parameters,
                    dtype=dtype,
                    biases=True,
                    per_expert=True,
                )
                mix(details, call)

    @EVERY_INPUT
    @pytest.mark.parametrize("routing", ROUTINGS)
    def test_routings(self, details, routing, source):
        for tokens, experts, top_k in ((1, 4, 2), (16, 8, 8), (128, 32, 2), (300, 8, 2)):
            if tokens > 256 and routing == "duplicates":
                continue  # undefined by FlashInfer: its kernels for many tokens take one of them
            with details.case(f"{tokens} tokens, {experts} choose {top_k}"):
                call = mixture.draw(
                    tokens, 256, 256, experts, top_k, routing=routing, source=source
                )
                result = mix(details, call)
                if routing == "nowhere":
                    assert not result.any(), "a token without an expert must become zeros"

    def test_one_weight_for_all(self, details):
        call = mixture.draw(33, weighted=False)
        one = call.changed(token_final_scales=torch.ones(33, call.top_k, device="cuda"))
        result = mix(details, call, finalize=(False,))
        assert_equal(details, "bytes, weights of 1", result, mix(details, one, finalize=(False,)))

    def test_representations_of_the_same_call(self, details):
        """Views as FlashInfer's callers make them, other strides, and memory that is misaligned."""
        call = mixture.draw(33, source=SWIZZLED)
        e2m1, e4m3 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn
        wide = torch.zeros(33, 300, dtype=torch.uint8, device="cuda")
        wide[:, 3:131] = call.input
        weights = ("fc1_expert_weights", "fc2_expert_weights")
        block_scales = ("fc1_weight_block_scales", "fc2_weight_block_scales")

        def viewed(names, dtype):
            return {name: call.tensors[name].view(dtype) for name in names}

        expected = call.run(use_fused_finalize=False)
        model_of(call).check(details, expected, False)
        for name, changes in {
            "float4": {"input": call.input.view(e2m1), **viewed(weights, e2m1)},
            "int64": {"input": call.input.view(torch.int64), **viewed(weights, torch.int64)},
            "float8 scales": viewed(block_scales, e4m3),
            "int32 scales": viewed(block_scales, torch.int32),
            "float8 scales of the input": {"input_sf": call.options["input_sf"].view(e4m3)},
            "flat scales of the input": {"input_sf": call.options["input_sf"].flatten()},
            "strided input": {"input": wide[:, 3:131]},
            "strided routing": {
                "token_selected_experts": call.token_selected_experts.t().contiguous().t(),
                "token_final_scales": call.token_final_scales.t().contiguous().t(),
            },
            "misaligned": {
                name: misaligned(call.tensors[name]) for name in (*weights, *block_scales)
            },
            "global scales of one element": {
                name: call.tensors[name].reshape(1)
                for name in ("fc1_act_global_scale", "fc2_act_global_scale")
            },
        }.items():
            with details.case(name):
                result = call.changed(**changes).run(use_fused_finalize=False)
                assert_equal(details, "bytes, uint8 and contiguous", result, expected)

    def test_a_strided_input_that_is_quantized_inside(self, details):
        call = mixture.draw(33)
        expected = call.run(use_fused_finalize=False)
        for name, strided in {
            "column major": call.input.t().contiguous().t(),
            "every other row": torch.stack([call.input] * 2, dim=1).view(66, -1)[::2],
        }.items():
            with details.case(name):
                result = call.changed(input=strided).run(use_fused_finalize=False)
                assert_equal(details, "bytes, uint8 and contiguous", result, expected)

    @EVERY_DTYPE
    def test_the_reference_on_the_cpu_agrees(self, details, dtype):
        for source in INPUTS:
            with details.case(source):
                call = mixture.draw(48, source=source, dtype=dtype, biases=True)
                expected = call.to("cpu").run().double()
                for fused in (False, True):
                    got = call.run(use_fused_finalize=fused).cpu().double()
                    error = float((got - expected).norm() / expected.norm())
                    details.error("mixture, Frobenius norm relative to the CPU's", error)
                    assert error < 1.5e-2

    def test_rows_do_not_depend_on_the_others(self, details):
        call = mixture.draw(300, source=LINEAR)
        whole = call.run(use_fused_finalize=False)
        columns = call.hidden_size // 16
        for tokens in (1, 7, 128, 257):
            part = call.changed(
                input=call.input[:tokens],
                input_sf=call.options["input_sf"].view(300, columns)[:tokens],
                token_selected_experts=call.token_selected_experts[:tokens],
                token_final_scales=call.token_final_scales[:tokens],
            )
            result = part.run(use_fused_finalize=False)
            assert_equal(details, "bytes, among more rows", result, whole[:tokens])


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    flat[1:] = tensor.flatten()
    return flat[1:].view_as(tensor)


class TestRanks:
    @FINALIZE
    @pytest.mark.parametrize("tokens", [3, 300])
    def test_the_sum_of_expert_parallel_ranks_is_the_whole(self, details, tokens, fused):
        whole = mixture.draw(tokens, biases=True, per_expert=True)
        results = []
        for rank in range(2):
            with details.case(f"rank {rank}"):
                shard = whole.shard(2, rank)
                results.append(mix(details, shard, finalize=(fused,)).double())
        expected = whole.run(use_fused_finalize=fused).double()
        error = float((sum(results) - expected).norm() / expected.norm())
        details.error("sum of ranks, Frobenius norm relative to the whole", error)
        assert error < 1e-2

    def test_only_the_first_tensor_parallel_rank_adds_the_second_bias(self, details):
        first = mixture.draw(33, biases=True, weighted=False).changed(tp_size=2, tp_rank=0)
        second = first.changed(tp_rank=1)
        with_bias = mix(details, first)
        without = mix(details, second)
        # Which is what the model says too; that the two differ at all is not its word alone.
        assert not torch.equal(with_bias, without)

    @EVERY_INPUT
    def test_a_rank_without_work_returns_zeros(self, details, source):
        call = mixture.draw(33, source=source, biases=True).changed(ep_size=4, ep_rank=3)
        assert not mix(details, call).any()


class TestFinalize:
    def test_without_fusion_the_same_call_gives_the_same_bits(self, details):
        for tokens in (16, 300):
            call = mixture.draw(tokens, experts=32, top_k=8)
            first = call.run(use_fused_finalize=False)
            for _ in range(10):
                result = call.run(use_fused_finalize=False)
                assert_equal(details, "bytes, the first of ten calls", result, first)

    def test_with_fusion_every_call_is_within_the_bound(self, details):
        for tokens in (16, 300):
            call = mixture.draw(tokens, experts=32, top_k=8)
            model = model_of(call)
            for _ in range(10):
                model.check(details, call.run(use_fused_finalize=True), True)

    @pytest.mark.parametrize("pdl", [True, False, None])
    def test_programmatic_launches_change_nothing(self, details, pdl):
        call = mixture.draw(33)
        expected = call.run(use_fused_finalize=False)
        result = call.run(use_fused_finalize=False, enable_pdl=pdl)
        assert_equal(details, "bytes, the default", result, expected)


class TestTactics:
    @FINALIZE
    @EVERY_DTYPE
    def test_every_tactic(self, details, dtype, fused):
        counts = [torch.ops.fp4aot._cutlass_fused_moe_tactic_count(g, fused, 0) for g in (1, 2)]
        assert min(counts) > 1
        details.note(f"{counts[0]} tactics of the first product, {counts[1]} of the second")
        for tokens, hidden, inter, top_k in ((3, 160, 96, 2), (300, 256, 512, 2)):
            call = mixture.draw(tokens, hidden, inter, 8, top_k, dtype=dtype)
            model = model_of(call)
            pairs = [(first, -1) for first in range(counts[0])]
            pairs += [(-1, second) for second in range(counts[1])]
            pairs += [(first, counts[1] - 1 - first) for first in range(0, counts[0], 5)]
            for first, second in pairs:
                with details.case(f"tactics {first} and {second}, {tokens} tokens"):
                    memory.poison(1 << 20)
                    result = call.run(
                        use_fused_finalize=fused, gemm1_tactic=first, gemm2_tactic=second
                    )
                    model.check(details, result, fused)

    @FINALIZE
    @pytest.mark.parametrize("gemm", [1, 2])
    def test_one_that_does_not_exist_is_refused(self, gemm, fused):
        call = mixture.draw(4)
        count = torch.ops.fp4aot._cutlass_fused_moe_tactic_count(gemm, fused, 0)
        buffer = poisoned_output(call)
        tactic = {f"gemm{gemm}_tactic": count}
        with pytest.raises(RuntimeError, match=f"argument 'gemm{gemm}_tactic'"):
            call.run_into(buffer.tensor, use_fused_finalize=fused, **tactic)
        assert (buffer.tensor.view(torch.uint8) == memory.POISON).all()

    def test_profiles_are_counted_on_from_the_first_product_s(self, details):
        call = mixture.draw(33)
        count = torch.ops.fp4aot._cutlass_fused_moe_tactic_count(1, False, 0)
        *arguments, scales = public(call)
        for first, second in ((0, 0), (count - 1, 3)):
            got = fp4aot.cutlass_fused_moe(
                *arguments, scales, use_fused_finalize=False, profile_ids=[first, count + second]
            )
            expected = call.run(use_fused_finalize=False, gemm1_tactic=first, gemm2_tactic=second)
            assert_equal(details, "bytes, the operator", got, expected)


def public(call: Mixture) -> tuple:
    """Return the arguments of `fp4aot.cutlass_fused_moe`: five tensors, a dtype and the scales."""
    tensors = call.positional()
    return *tensors[:5], call.dtype, list(tensors[5:])


class TestBuffers:
    @FINALIZE
    @EVERY_INPUT
    def test_a_workspace_of_the_size_that_is_asked_for(self, details, source, fused):
        for tokens, experts, top_k in ((1, 8, 2), (128, 32, 8), (300, 8, 1)):
            call = mixture.draw(tokens, experts=experts, top_k=top_k, source=source)
            size = workspace_size(call, fused)
            model = model_of(call)
            for fill in (0x00, memory.POISON, 0x5A):
                with details.case(f"{tokens} tokens, {size} bytes of {fill:#x}"):
                    workspace = memory.Guarded.like(
                        torch.empty(size, dtype=torch.uint8, device="cuda")
                    )
                    workspace.tensor.fill_(fill)
                    buffer = poisoned_output(call)
                    call.run_into(buffer.tensor, workspace.tensor, use_fused_finalize=fused)
                    workspace.check()
                    buffer.check()
                    model.check(details, buffer.tensor, fused)

    @FINALIZE
    def test_one_byte_less_is_refused_and_nothing_is_written(self, fused):
        call = mixture.draw(33)
        size = workspace_size(call, fused) - 1
        workspace = memory.Guarded.like(torch.empty(size, dtype=torch.uint8, device="cuda"))
        buffer = poisoned_output(call)
        with pytest.raises(RuntimeError, match=rf"argument 'workspace_buffer': got {size} bytes"):
            call.run_into(buffer.tensor, workspace.tensor, use_fused_finalize=fused)
        torch.cuda.synchronize()
        for each in (workspace, buffer):
            assert (each.tensor.view(torch.uint8) == memory.POISON).all(), "something was written"

    def test_a_workspace_for_many_tokens_serves_few(self, details):
        most = mixture.draw(1024)
        workspace = torch.full(
            (workspace_size(most, False),), memory.POISON, dtype=torch.uint8, device="cuda"
        )
        for tokens in (1, 16, 300, 1024):
            call = mixture.draw(tokens)
            buffer = poisoned_output(call)
            call.run_into(buffer.tensor, workspace, use_fused_finalize=False)
            expected = call.run(use_fused_finalize=False)
            assert_equal(details, "bytes, a workspace of its own", buffer.tensor, expected)

    def test_the_public_function_takes_an_output_and_a_workspace(self, details):
        call = mixture.draw(33)
        *arguments, scales = public(call)
        expected = call.run(use_fused_finalize=False)
        workspace = torch.empty(workspace_size(call, False), dtype=torch.int8, device="cuda")
        for keywords in (
            {},
            {"output": torch.full_like(expected, float("nan"))},
            {"workspace_buffer": workspace},
            {"workspace_buffer": workspace, "output": torch.full_like(expected, float("nan"))},
        ):
            with details.case(", ".join(keywords) or "neither"):
                got = fp4aot.cutlass_fused_moe(
                    *arguments, scales, use_fused_finalize=False, **keywords
                )
                assert keywords.get("output", got) is got
                assert_equal(details, "bytes, the operator", got, expected)

    def test_calls_leave_their_arguments_alone(self, details):
        call = mixture.draw(33, source=SWIZZLED, biases=True)
        before = call.clone()
        for fused in (False, True):
            call.run(use_fused_finalize=fused)
        for mine, copy in zip(call.all_tensors(), before.all_tensors(), strict=True):
            same = torch.equal(
                mine.reshape(-1).view(torch.uint8), copy.reshape(-1).view(torch.uint8)
            )
            details.compared("arguments, before the calls", 1, not same)
            assert same


class TestStreams:
    @pytest.mark.parametrize("form", ["functional", "out"])
    def test_the_launch_is_on_the_current_stream_and_waits_for_nothing(self, details, form):
        call, fresh = mixture.draw(33), mixture.draw(33, seed=1)
        pinned = fresh.to("cpu").mapped(torch.Tensor.pin_memory)
        size = workspace_size(call, False)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        out = torch.empty(33, call.hidden_size, dtype=call.dtype, device="cuda")

        def run(which):
            if form == "functional":
                return which.run(use_fused_finalize=False)
            return which.run_into(out, workspace, use_fused_finalize=False)

        expected = run(fresh).clone()
        run(call)
        copies = zip(call.all_tensors(), pinned.all_tensors(), strict=True)
        result = after_running_work(copies, lambda: run(call))
        assert_equal(details, "bytes, the default stream", result, expected)

    def test_threads_with_streams_of_their_own(self, details):
        """A runner keeps the state of a call: two threads must not meet in it."""
        calls = {
            "few": mixture.draw(3, 160, 96, 4, 2),
            "many": mixture.draw(300, 256, 512, 8, 2, activation=ActivationType.Geglu),
            "quantized": mixture.draw(64, source=SWIZZLED),
            "tactic": mixture.draw(64).changed(gemm1_tactic=1, gemm2_tactic=1),
        }
        runs = {name: partial(call.run, use_fused_finalize=False) for name, call in calls.items()}
        check_threads(details, runs, runs=60)


class TestGraphs:
    @EVERY_INPUT
    @pytest.mark.parametrize("tokens", [1, 33, 300])
    def test_replay_equals_eager_on_new_data_after_churn(self, details, tokens, source):
        call = mixture.draw(tokens, source=source)
        size = workspace_size(call, False)
        workspace = torch.full((size,), memory.POISON, dtype=torch.uint8, device="cuda")
        out = poisoned_output(call).tensor
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            functional = call.run(use_fused_finalize=False)
            fused = call.run(use_fused_finalize=True)
            call.run_into(out, workspace, use_fused_finalize=False)
        for seed, routing in enumerate(("random", "one expert", "padding"), 1):
            fresh = mixture.draw(tokens, source=source, seed=seed, routing=routing)
            call.load(fresh)
            for tensor in (functional, fused, out):
                memory.fill(tensor, 0x5A)
            memory.churn(1)
            torch.cuda.empty_cache()
            allocated = torch.cuda.memory_allocated()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == allocated, "a replay allocated"
            expected = fresh.run(use_fused_finalize=False)
            assert_equal(details, "bytes of a replay, eager", functional, expected)
            assert_equal(details, "bytes of a replay, eager", out, expected)
            model = model_of(fresh)
            model.check(details, functional, False)
            model.check(details, fused, True)

    def test_many_calls_in_one_graph(self, details):
        """Programmatic launches become edges of the graph, and each workspace is used again."""
        runs = 50
        call = mixture.draw(16)
        inputs = torch.stack([mixture.draw(16, seed=seed).input for seed in range(runs)])
        outputs = torch.full((runs, 16, call.hidden_size), float("nan"), dtype=BF16, device="cuda")

        def run(x):
            return call.changed(input=x).run(use_fused_finalize=False)

        check_one_graph(details, inputs, outputs, run)


class Layer(torch.nn.Module):
    """Experts with everything but the tokens fixed, between two operations of torch's."""

    def __init__(self, call: Mixture) -> None:
        super().__init__()
        for name in ("fc1_expert_weights", "fc2_expert_weights"):
            self.register_buffer(name, call.tensors[name])
        self.dtype = call.dtype
        for index, scale in enumerate(call.positional()[5:]):
            self.register_buffer(f"scale_{index}", scale)

    def forward(self, x, experts, weights):
        scales = [getattr(self, f"scale_{index}") for index in range(6)]
        y = fp4aot.cutlass_fused_moe(
            torch.relu(x),
            *(experts, weights, self.fc1_expert_weights, self.fc2_expert_weights),
            *(self.dtype, scales),
            use_fused_finalize=False,
        )
        return torch.relu(y)


def inputs_of(tokens: int, seed: int = 0):
    call = mixture.draw(tokens, seed=seed)
    return call.input, call.token_selected_experts, call.token_final_scales


class TestCompiled:
    def test_one_graph_for_all_numbers_of_tokens(self, details):
        counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
        layer = Layer(mixture.draw(8))
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
        # Not two at first, as many as experts are chosen: sizes that are equal then count as one.
        for tokens in (5, 3, 16, 33, 129, 300):
            arguments = inputs_of(tokens)
            result = compiled(*arguments)
            assert_equal(details, "results compiled, eager", result, layer(*arguments))
        assert counter.frame_count == 1, f"{counter.frame_count} graphs"

    def test_reduce_overhead_uses_a_graph(self, details):
        layer = Layer(mixture.draw(8))
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
        with torch.no_grad():
            for seed in range(5):
                arguments = inputs_of(33, seed)
                torch.compiler.cudagraph_mark_step_begin()
                got = compiled(*arguments).clone()
                memory.churn(1)
                expected = layer(*arguments)
                assert_equal(details, "results with reduce-overhead, eager", got, expected)
        assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0

    def test_buffers_of_the_caller_s_in_a_compiled_function(self, details):
        call = mixture.draw(33)
        *arguments, scales = public(call)
        workspace = torch.empty(workspace_size(call, False), dtype=torch.uint8, device="cuda")

        def run(out):
            fp4aot.cutlass_fused_moe(
                *arguments,
                scales,
                output=out,
                workspace_buffer=workspace,
                use_fused_finalize=False,
            )
            return out + out

        out = torch.full((33, call.hidden_size), float("nan"), dtype=BF16, device="cuda")
        doubled = torch.compile(run, fullgraph=True)(out)
        expected = call.run(use_fused_finalize=False)
        assert_equal(details, "results compiled, eager", out, expected)
        assert_equal(details, "results compiled, eager", doubled, expected + expected)

    @EVERY_INPUT
    def test_opcheck(self, source):
        call = mixture.draw(17, source=source, biases=True)
        options = {**call.options, "use_fused_finalize": False}
        packet = torch.ops.fp4aot.cutlass_fused_moe
        torch.library.opcheck(packet.default, (*call.positional(), call.dtype), options)
        out = torch.zeros(17, call.hidden_size, dtype=call.dtype, device="cuda")
        torch.library.opcheck(
            packet.out,
            call.positional(),
            {**options, "out": out},
            # Functionalized, a buffer that is not given cannot be compared with what it became.
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


@pytest.mark.subject("instruments")
class TestInstruments:
    def test_the_model_notices_what_is_wrong(self, details):
        """A negative control: each of these changes the result a little."""
        call = mixture.draw(33, source=SWIZZLED, biases=True)
        model = model_of(call)
        right = call.run(use_fused_finalize=False)
        model.check(details, right, False)
        swapped = call.fc1_alpha.flip(0)
        other_code = call.input.clone()
        other_code[0, 0] ^= 0x07
        selected = call.token_selected_experts.clone()
        selected[5, 1] = -1
        for name, changes in {
            "alphas of other experts": {"fc1_alpha": swapped},
            "one code of the input": {"input": other_code},
            "one expert of a token": {"token_selected_experts": selected},
            "another layout": {"swizzled_input_sf": False,
                               "input_sf": call.options["input_sf"].flatten()[: 33 * 16]},
            "no bias": {"tp_size": 2, "tp_rank": 1},
        }.items():  # fmt: skip
            result = call.changed(**changes).run(use_fused_finalize=False)
            with pytest.raises(AssertionError, match="off by more than the bound"):
                model.check(records.Details(), result, False)
            details.note(f"noticed: {name}")

    def test_a_draw_leaves_no_padding_harmless(self):
        call = mixture.draw(33, 160, 96, source=SWIZZLED)
        padded = call.options["input_sf"].view(torch.float8_e4m3fn).float()
        assert int(padded.isnan().sum()) == (128 - 33) * 12
        assert call.input.dtype == torch.uint8
        assert mixture.draw(4, source=INSIDE).input.dtype == BF16
