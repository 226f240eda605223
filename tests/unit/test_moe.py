"""The public `cutlass_fused_moe`: arguments, defaults, refusals and tracing."""

from __future__ import annotations

import enum
import inspect

import pytest
import torch
from test_reference_moe import EXPERTS, HIDDEN, INTER, TOKENS, Layer, route, tokens
from torch._dynamo.testing import CompileCounterWithBackend

from fp4aot import fused_moe, quantization
from fp4aot.fused_moe import (
    ActivationType,
    cutlass_fused_moe,
    cutlass_fused_moe_workspace_size,
)

LAYER = Layer()
SELECTED, WEIGHTS = route()
SIZE = {
    "max_num_tokens": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_experts_total": EXPERTS,
    "top_k": 2,
    "x_dtype": torch.bfloat16,
    "weight_dtype": torch.int64,
}


def arguments(layer: Layer = LAYER, **changes) -> dict:
    w1, w2, *quant_scales = layer.tensors()
    return {
        "input": tokens(),
        "token_selected_experts": SELECTED,
        "token_final_scales": WEIGHTS,
        "fc1_expert_weights": w1,
        "fc2_expert_weights": w2,
        "output_dtype": torch.bfloat16,
        "quant_scales": quant_scales,
        **changes,
    }


def expected(**options) -> torch.Tensor:
    return LAYER(tokens(), SELECTED, WEIGHTS, **options)


def test_the_signatures_are_flashinfers():
    names = (
        "input token_selected_experts token_final_scales fc1_expert_weights fc2_expert_weights "
        "output_dtype quant_scales fc1_expert_biases fc2_expert_biases input_sf swiglu_alpha "
        "swiglu_beta swiglu_limit tp_size tp_rank ep_size ep_rank cluster_size cluster_rank output "
        "enable_alltoall use_deepseek_fp8_block_scale use_w4_group_scaling use_mxfp8_act_scaling "
        "min_latency_mode use_packed_weights use_wfp4afp8_humming tune_max_num_tokens enable_pdl "
        "activation_type swizzled_input_sf use_fused_finalize profile_ids workspace_buffer"
    )
    keywords = "clamped_relu2_limit situ_beta situ_linear_beta backend"
    check_signature(cutlass_fused_moe, names, keywords)
    names = "max_num_tokens hidden_size intermediate_size num_experts_total top_k"
    keywords = (
        "x_dtype weight_dtype output_dtype activation_type tp_size tp_rank ep_size ep_rank "
        "min_latency_mode use_deepseek_fp8_block_scale use_w4_group_scaling use_mxfp8_act_scaling "
        "use_fused_finalize use_packed_weights use_wfp4afp8_humming device backend"
    )
    check_signature(cutlass_fused_moe_workspace_size, names, keywords)


def check_signature(function, names: str, keywords: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == names.split()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == keywords.split()


def test_activation_types_have_flashinfers_numbers():
    names = "Gelu Relu Silu Swiglu Geglu SwigluBias Relu2 SwigluStep GegluTanh Identity Situ"
    names = [*names.split(), "InvalidType", "ClampedRelu2"]
    assert [activation.name for activation in ActivationType] == names
    assert list(ActivationType) == list(range(13))


def test_defaults():
    assert torch.equal(cutlass_fused_moe(**arguments()), expected())
    positional = cutlass_fused_moe(*arguments().values())
    assert torch.equal(positional, expected())
    without = cutlass_fused_moe(**arguments(token_final_scales=None))
    assert torch.equal(without, LAYER(tokens(), SELECTED))


def test_what_has_no_effect_on_the_cpu():
    for options in (
        {"tune_max_num_tokens": 1},
        {"enable_pdl": True},
        {"use_fused_finalize": False},
        {"enable_alltoall": True},
        {"profile_ids": [3, 40]},
        {"profile_ids": [-1, None]},
    ):
        assert torch.equal(cutlass_fused_moe(**arguments(**options)), expected())


def test_options_reach_the_operator():
    layer = Layer(ActivationType.Relu2).with_biases()
    x = tokens()
    options = {**layer.options, "tp_size": 2, "tp_rank": 1, "ep_size": 2, "ep_rank": 1}
    selected = SELECTED + EXPERTS
    result = cutlass_fused_moe(**arguments(layer, token_selected_experts=selected, **options))
    assert torch.equal(result, layer(x, selected, WEIGHTS, **options))
    assert torch.equal(result, layer.dense(x, SELECTED, WEIGHTS, tp_rank=1))
    parameters = {
        "swiglu_alpha": torch.full((EXPERTS,), 1.5),
        "swiglu_beta": torch.full((EXPERTS,), 0.5),
        "swiglu_limit": torch.full((EXPERTS,), 0.7),
    }
    result = cutlass_fused_moe(**arguments(**parameters))
    assert torch.equal(result, expected(**parameters))


class Theirs(enum.IntEnum):
    """An enum of the caller's, as FlashInfer's."""

    GegluTanh = 8


@pytest.mark.parametrize("activation", [ActivationType.GegluTanh, 8, Theirs.GegluTanh])
def test_activation_types(activation):
    result = cutlass_fused_moe(**arguments(activation_type=activation))
    assert torch.equal(result, expected(activation_type=8))
    assert not torch.equal(result, expected())


def test_quantized_inputs():
    for swizzled in (True, False):
        values, scales = quantization.fp4_quantize(
            tokens(), LAYER.act1, is_sf_swizzled_layout=swizzled
        )
        result = cutlass_fused_moe(
            **arguments(input=values, input_sf=scales, swizzled_input_sf=swizzled)
        )
        assert torch.equal(result, expected())


def test_flashinfers_views_give_the_same_bits():
    w1, w2, a1, s1, alpha1, a2, s2, alpha2 = LAYER.tensors()
    result = cutlass_fused_moe(
        **arguments(
            fc1_expert_weights=w1.view(torch.int64),
            fc2_expert_weights=w2.view(torch.int64),
            quant_scales=[
                a1, s1.view(torch.int32), alpha1, a2, s2.view(torch.int32), alpha2,
            ],
        )
    )  # fmt: skip
    assert torch.equal(result, expected())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_outputs_and_workspaces(dtype):
    workspace = torch.full((256,), 0x5A, dtype=dtype)
    out = torch.full((TOKENS, HIDDEN), float("nan"), dtype=torch.bfloat16)
    assert cutlass_fused_moe(**arguments(output=out)) is out
    assert torch.equal(out, expected())
    out.fill_(float("nan"))
    assert cutlass_fused_moe(**arguments(output=out, workspace_buffer=workspace)) is out
    assert torch.equal(out, expected())
    result = cutlass_fused_moe(**arguments(workspace_buffer=workspace))
    assert torch.equal(result, expected())
    assert result.is_contiguous()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input": torch.zeros(3)}, "'input': got dtype torch.float32"),
        ({"input": torch.zeros(3).bfloat16()}, r"'input': got shape \[3\]"),
        ({"fc2_expert_weights": torch.zeros(3).byte()}, r"'fc2_expert_weights': got shape \[3\]"),
        ({"output_dtype": torch.float32}, "got dtype torch.float32"),
        ({"workspace_buffer": torch.zeros(3)}, "'workspace_buffer': got dtype torch.float32"),
    ],
)
def test_a_workspace_does_not_hide_what_is_wrong(changes, words):
    workspace = torch.zeros(256, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=words):
        cutlass_fused_moe(**arguments(**{"workspace_buffer": workspace, **changes}))


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        *(
            ({flag: True}, NotImplementedError, f"{flag}=True is not in.*pass {flag}=False")
            for flag in (
                "use_deepseek_fp8_block_scale",
                "use_w4_group_scaling",
                "use_mxfp8_act_scaling",
                "min_latency_mode",
                "use_packed_weights",
                "use_wfp4afp8_humming",
            )
        ),
        *(
            ({name: ONE}, NotImplementedError, f"{name}=a tensor is not in.*pass {name}=None")
            for name in ("clamped_relu2_limit", "situ_beta", "situ_linear_beta")
        ),
        ({"cluster_size": 2}, NotImplementedError, "cluster_size=2 .*pass cluster_size=1"),
        ({"cluster_rank": 1}, NotImplementedError, "cluster_rank=1 .*pass cluster_rank=0"),
        ({"backend": "cake"}, ValueError, "backend='cake' .*pass backend='cutlass'"),
        ({"activation_type": 10}, NotImplementedError, "activation_type=Situ"),
        ({"activation_type": 12}, NotImplementedError, "activation_type=ClampedRelu2"),
        ({"activation_type": 11}, RuntimeError, r"'activation_type': got 11 \(InvalidType\)"),
        ({"quant_scales": [ONE] * 4}, ValueError, "quant_scales holds 4 tensors.*six"),
        ({"profile_ids": [1]}, ValueError, "profile_ids holds 1 number"),
        ({"profile_ids": [-2, 3]}, RuntimeError, "'gemm1_tactic': got -2"),
        (
            {"output": torch.zeros(TOKENS, HIDDEN).half()},
            ValueError,
            "output is of torch.float16, and output_dtype is torch.bfloat16",
        ),
        (
            {"output": torch.zeros(TOKENS + 1, HIDDEN).bfloat16()},
            RuntimeError,
            r"'out': got shape \[10, 128\]",
        ),
    ],
)
def test_refusals(changes, error, words):
    with pytest.raises(error, match=words):
        cutlass_fused_moe(**arguments(**changes))


def test_the_second_tactic_is_counted_from_the_first(monkeypatch):
    """As FlashInfer's are; what a GPU would do, with the operator's answer given here."""

    class OnGpu:
        is_cuda = True
        device = torch.device("cuda:3")

    asked = []

    def count(gemm, fused, device):
        asked.append((gemm, fused, device))
        return 16

    operators = type("Operators", (), {"_cutlass_fused_moe_tactic_count": staticmethod(count)})
    monkeypatch.setattr(torch.ops, "fp4aot", operators)
    assert fused_moe._tactics([3, 16], True, OnGpu()) == (3, 0)
    assert fused_moe._tactics([-1, 47], False, OnGpu()) == (-1, 31)
    assert asked == [(1, True, 3), (1, False, 3)]
    assert fused_moe._tactics([None, -1], True, OnGpu()) == (-1, -1)
    assert len(asked) == 2
    with pytest.raises(ValueError, match=r"profile_ids=\[3, 15\].*from 16"):
        fused_moe._tactics([3, 15], True, OnGpu())


def test_the_cpu_needs_no_workspace():
    assert cutlass_fused_moe_workspace_size(**SIZE, device="cpu") == 0
    assert cutlass_fused_moe_workspace_size(**SIZE, device=torch.device("cpu")) == 0
    packed = {**SIZE, "x_dtype": torch.uint8, "output_dtype": torch.float16}
    assert cutlass_fused_moe_workspace_size(**packed, device="cpu") == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_no_workspace_is_needed():
    assert cutlass_fused_moe_workspace_size(**SIZE) == 0
    assert cutlass_fused_moe_workspace_size(**SIZE, device="cuda:0") == 0


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        *(
            ({name: 0}, ValueError, f"{name}=0; pass 1 or more")
            for name in (
                "max_num_tokens",
                "hidden_size",
                "intermediate_size",
                "num_experts_total",
                "top_k",
                "tp_size",
                "ep_size",
            )
        ),
        ({"tp_rank": 1}, ValueError, "tp_rank=1; pass 0 to 0"),
        ({"ep_size": 5, "ep_rank": -1}, ValueError, "ep_rank=-1; pass 0 to 4"),
        ({"ep_size": 2}, ValueError, "num_experts_total=5 does not divide into ep_size=2"),
        ({"output_dtype": torch.float32}, ValueError, "output_dtype=torch.float32"),
        ({"weight_dtype": torch.bfloat16}, ValueError, "weight_dtype=torch.bfloat16"),
        ({"x_dtype": torch.float16}, ValueError, "x_dtype=torch.float16; pass output_dtype"),
        ({"use_packed_weights": True}, NotImplementedError, "use_packed_weights=True"),
        ({"min_latency_mode": True}, NotImplementedError, "min_latency_mode=True"),
        ({"activation_type": 10}, NotImplementedError, "activation_type=Situ"),
        ({"backend": "cake"}, ValueError, "workspace_size: backend='cake'"),
    ],
)
def test_refusals_of_the_workspace_size(changes, error, words):
    with pytest.raises(error, match=words):
        cutlass_fused_moe_workspace_size(**{**SIZE, **changes}, device="cpu")


@pytest.mark.parametrize("form", ["functional", "output", "workspace"])
def test_compiles_once_for_any_number_of_tokens(form):
    torch._dynamo.reset()
    fixed = arguments()

    def mixture(x, selected, weights):
        changes = {"input": x, "token_selected_experts": selected, "token_final_scales": weights}
        if form == "output":
            changes["output"] = torch.empty(x.shape[0], HIDDEN, dtype=torch.bfloat16)
        if form == "workspace":
            changes["workspace_buffer"] = torch.empty(64, dtype=torch.uint8)
        return cutlass_fused_moe(**{**fixed, **changes})

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mixture, fullgraph=True, dynamic=True, backend=counter)
    for count in (2, 7, 33, 130):
        call = (tokens(count), *route(count))
        assert torch.equal(compiled(*call), mixture(*call))
    assert counter.frame_count == 1


@pytest.mark.parametrize("swizzled", [True, False])
def test_a_quantized_input_compiles_once(swizzled):
    torch._dynamo.reset()
    fixed = arguments(swizzled_input_sf=swizzled)

    def mixture(x, selected, weights):
        values, scales = quantization.fp4_quantize(x, LAYER.act1, is_sf_swizzled_layout=swizzled)
        changes = {"input": values, "input_sf": scales, "token_selected_experts": selected}
        return cutlass_fused_moe(**{**fixed, **changes, "token_final_scales": weights})

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mixture, fullgraph=True, dynamic=True, backend=counter)
    for count in (2, 7, 130):
        call = (tokens(count), *route(count))
        assert torch.equal(compiled(*call), mixture(*call))
    assert counter.frame_count == 1


@pytest.mark.parametrize("activation", [ActivationType.Geglu, Theirs.GegluTanh])
def test_an_activation_type_is_traced(activation):
    torch._dynamo.reset()
    fixed = arguments(activation_type=activation)

    def mixture(x):
        return cutlass_fused_moe(**{**fixed, "input": x})

    compiled = torch.compile(mixture, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens()), expected(activation_type=int(activation)))


def test_a_refused_call_says_so_through_dynamo():
    torch._dynamo.reset()
    fixed = arguments()

    def mixture(x, selected):
        return cutlass_fused_moe(**{**fixed, "input": x, "token_selected_experts": selected})

    compiled = torch.compile(mixture, fullgraph=True, backend="aot_eager")
    with pytest.raises(
        Exception, match=r"argument 'token_selected_experts': got dtype torch\.int64"
    ):
        compiled(tokens(), SELECTED.long())


def test_export_with_any_number_of_tokens():
    """No bound may end up in the exported program: its tokens are declared without one."""
    fixed = arguments()

    class Mixture(torch.nn.Module):
        def forward(self, x, selected, weights):
            routing = {"token_selected_experts": selected, "token_final_scales": weights}
            return cutlass_fused_moe(**{**fixed, "input": x, **routing})

    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(
        Mixture(), (tokens(), SELECTED, WEIGHTS), dynamic_shapes=(rows, rows, rows)
    )
    call = (tokens(150), *route(150))
    assert torch.equal(program.module()(*call), LAYER(*call))
