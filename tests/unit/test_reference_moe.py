"""The mixture of experts on the CPU, against every expert applied to every token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4aot import gemm, quantization
from fp4aot._activations import COMPILED, ActivationType
from fp4aot._layouts import SfLayout
from fp4aot.operators.mixture_of_experts import cutlass_fused_moe

TOKENS, HIDDEN, INTER, EXPERTS, TOP_K = 9, 128, 96, 5, 3
INFINITE = float("inf")


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stack_quantized(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize each expert's weights; return values, block scales and global scales."""
    global_scales = 2688.0 / weights.abs().flatten(1).amax(dim=1)
    quantized = [
        quantization.fp4_quantize(w, scale.reshape(1))
        for w, scale in zip(weights.bfloat16(), global_scales, strict=True)
    ]
    values, scales = (torch.stack(part) for part in zip(*quantized, strict=True))
    return values, scales, global_scales


@dataclass
class Layer:
    """Experts with random weights, and what else the operator takes."""

    activation: ActivationType = ActivationType.Swiglu
    dtype: torch.dtype = torch.bfloat16
    experts: int = EXPERTS
    inter: int = INTER
    hidden: int = HIDDEN
    one_scale_for_each: bool = False
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.inter * (2 if self.activation.is_gated else 1)
        self.fc1 = draw(self.experts, rows, self.hidden, seed=1) / math.sqrt(self.hidden) * 2
        self.fc2 = draw(self.experts, self.hidden, self.inter, seed=2) / math.sqrt(self.inter)
        self.w1, self.s1, g1 = stack_quantized(self.fc1)
        self.w2, self.s2, g2 = stack_quantized(self.fc2)
        spread = torch.linspace(0.5, 2.0, self.experts) if self.one_scale_for_each else 1.0
        self.act1 = torch.as_tensor(2688.0 / 4 * spread, dtype=torch.float32)
        self.act2 = torch.as_tensor(2688.0 / 100 * spread, dtype=torch.float32)
        self.alpha1, self.alpha2 = 1 / (self.act1 * g1), 1 / (self.act2 * g2)
        self.options = {"activation_type": int(self.activation), **self.options}

    def with_biases(self) -> Layer:
        self.options["fc1_expert_biases"] = draw(*self.w1.shape[:2], seed=3).to(self.dtype)
        self.options["fc2_expert_biases"] = draw(self.experts, self.hidden, seed=4).to(self.dtype)
        return self

    def tensors(self) -> tuple[torch.Tensor, ...]:
        first = (self.act1, self.s1, self.alpha1)
        return (self.w1, self.w2, *first, self.act2, self.s2, self.alpha2)

    def __call__(self, x, selected, weights=None, **options) -> torch.Tensor:
        options = {**self.options, **options}
        return cutlass_fused_moe(x, selected, weights, *self.tensors(), self.dtype, **options)

    def apply(self, expert: int, x: torch.Tensor, quantized=None, tp_rank: int = 0) -> torch.Tensor:
        """Apply one expert to rows with the public functions for one matrix."""
        if quantized is None:
            quantized = quantization.fp4_quantize(x, self.act1.expand(self.experts)[expert])
        hidden = gemm.mm_fp4(
            quantized[0],
            self.w1[expert].T,
            quantized[1],
            self.s1[expert].T,
            self.alpha1[expert],
            self.dtype,
        ).float()
        if "fc1_expert_biases" in self.options:
            hidden += self.options["fc1_expert_biases"][expert].float()
        parameters = {
            name: self.options[f"swiglu_{name}"][expert].double()
            for name in ("alpha", "beta", "limit")
            if f"swiglu_{name}" in self.options
        }
        activated = activate(self.activation, hidden.double(), **parameters).to(self.dtype)
        values, scales = quantization.fp4_quantize(
            activated, self.act2.expand(self.experts)[expert]
        )
        result = gemm.mm_fp4(
            values, self.w2[expert].T, scales, self.s2[expert].T, self.alpha2[expert], self.dtype
        ).float()
        if "fc2_expert_biases" in self.options and tp_rank == 0:
            result += self.options["fc2_expert_biases"][expert].float()
        return result

    def dense(self, x, selected, weights=None, first=0, quantized=None, **options) -> torch.Tensor:
        """Apply every expert to every token, and pick what was selected."""
        results = [self.apply(e, x, quantized, **options) for e in range(self.experts)]
        total = torch.zeros(len(selected), self.hidden)
        for token, experts in enumerate(selected.tolist()):
            for choice, number in enumerate(experts):
                if first <= number < first + self.experts:
                    weight = 1.0 if weights is None else weights[token, choice]
                    total[token] += weight * results[number - first][token]
        return total.to(self.dtype)


def activate(kind: ActivationType, hidden, alpha=1.0, beta=0.0, limit=None):
    """Compute an activation in float64, from what its name says."""
    if not kind.is_gated:
        return {
            ActivationType.Gelu: lambda: hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))),
            ActivationType.Relu: lambda: hidden.clamp(min=0),
            ActivationType.Silu: lambda: hidden / (1 + (-hidden).exp()),
            ActivationType.Relu2: lambda: hidden.clamp(min=0) ** 2,
            ActivationType.Identity: lambda: hidden,
        }[kind]()
    half = hidden.shape[1] // 2
    up, gate = hidden[:, :half], hidden[:, half:]
    silu = gate / (1 + (-gate).exp())
    tanh = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    if kind is ActivationType.SwigluStep:
        limit = torch.as_tensor(7.0 if limit is None else limit, dtype=torch.float64)
        return torch.minimum(silu, limit) * torch.maximum(torch.minimum(up, limit), -limit)
    if kind is ActivationType.SwigluBias:
        limit = torch.as_tensor(INFINITE if limit is None else limit, dtype=torch.float64)
        gate = torch.minimum(gate, limit)
        up = torch.maximum(torch.minimum(up, limit), -limit)
        return gate / (1 + (-alpha * gate).exp()) * (up + beta)
    return {
        ActivationType.Swiglu: silu,
        ActivationType.Geglu: gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))),
        ActivationType.GegluTanh: gate * 0.5 * (1 + tanh),
    }[kind] * up


def tokens(count: int = TOKENS, dtype=torch.bfloat16, hidden: int = HIDDEN) -> torch.Tensor:
    return draw(count, hidden, seed=count + 10).clamp(-4, 4).to(dtype)


def route(count: int = TOKENS, top_k: int = TOP_K, experts: int = EXPERTS):
    """Select different experts for each token, with weights."""
    scores = draw(count, experts, seed=count + 20).softmax(dim=1)
    weights, selected = scores.topk(min(top_k, experts), dim=1)
    return selected.int(), weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", COMPILED)
def test_every_activation(activation, dtype):
    layer = Layer(activation, dtype)
    x, (selected, weights) = tokens(dtype=dtype), route()
    result = layer(x, selected, weights)
    assert result.dtype == dtype
    assert result.is_contiguous()
    assert torch.equal(result, layer.dense(x, selected, weights))


@pytest.mark.parametrize("activation", COMPILED)
def test_it_approximates_the_layer_whose_weights_were_quantized(activation):
    layer = Layer(activation)
    x, (selected, weights) = tokens(), route()
    exact = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for token, (experts, shares) in enumerate(zip(selected, weights, strict=True)):
        for expert, share in zip(experts.tolist(), shares, strict=True):
            hidden = layer.fc1[expert].double() @ x[token].double()
            activated = activate(activation, hidden.unsqueeze(0))[0]
            exact[token] += share * (layer.fc2[expert].double() @ activated)
    error = (layer(x, selected, weights).double() - exact).norm() / exact.norm()
    assert error < 0.27


ROUTINGS = {
    "all tokens on one expert": torch.full((TOKENS, 1), 3),
    "duplicate experts in a token": torch.tensor([[2, 2, 4]]).repeat(TOKENS, 1),
    "no expert here": torch.tensor([[-1, EXPERTS]]).repeat(TOKENS, 1),
    "some beyond the range": torch.arange(TOKENS * 2).reshape(TOKENS, 2) - 3,
    "the ends of int32": torch.tensor([[-(2**31), 1, 2**31 - 1]]).repeat(TOKENS, 1),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_routings(name):
    layer, x = Layer(), tokens()
    selected = ROUTINGS[name].int()
    weights = draw(*selected.shape, seed=5).abs()
    result = layer(x, selected, weights)
    assert torch.equal(result, layer.dense(x, selected, weights))
    if name == "no expert here":
        assert torch.equal(result, torch.zeros_like(result))


def test_what_is_not_here_does_not_count_whatever_its_weight():
    layer, x = Layer(), tokens(2)
    selected = torch.tensor([[1, -1], [9, 4]], dtype=torch.int32)
    weights = torch.tensor([[0.5, float("nan")], [INFINITE, 2.0]])
    clean = weights.nan_to_num(0, 0, 0)
    assert torch.equal(layer(x, selected, weights), layer(x, selected, clean))


@pytest.mark.parametrize("count", [0, 1])
def test_few_tokens(count):
    layer, x, (selected, weights) = Layer(), tokens(count), route(count)
    result = layer(x, selected, weights)
    assert result.shape == (count, HIDDEN)
    assert torch.equal(result, layer.dense(x, selected, weights))
    out = torch.full((count, HIDDEN), float("nan"), dtype=torch.bfloat16)
    cutlass_fused_moe.out(x, selected, weights, *layer.tensors(), out=out)
    assert torch.equal(out, result)


@settings(max_examples=25)
@given(
    count=st.integers(0, 5),
    experts=st.integers(1, 4),
    inter=st.sampled_from([32, 96]),
    ep_size=st.integers(1, 3),
    activation=st.sampled_from([ActivationType.Swiglu, ActivationType.Relu2]),
    one_scale_for_each=st.booleans(),
    data=st.data(),
)
def test_any_routing_is_what_the_experts_return(
    count, experts, inter, ep_size, activation, one_scale_for_each, data
):
    layer = Layer(activation, torch.float16, experts, inter, 32, one_scale_for_each)
    ep_rank = data.draw(st.integers(0, ep_size - 1))
    numbers = st.integers(-1, experts * ep_size)
    top_k = data.draw(st.integers(1, 3))
    flat = data.draw(st.lists(numbers, min_size=count * top_k, max_size=count * top_k))
    selected = torch.tensor(flat, dtype=torch.int32).reshape(count, top_k)
    weights = draw(count, top_k, seed=6) if data.draw(st.booleans()) else None
    x = tokens(count, torch.float16, hidden=32)
    result = layer(x, selected, weights, ep_size=ep_size, ep_rank=ep_rank)
    assert torch.equal(result, layer.dense(x, selected, weights, first=ep_rank * experts))


def test_a_scale_for_each_expert():
    layer, shared = Layer(one_scale_for_each=True), Layer()
    x, (selected, weights) = tokens(), route()
    result = layer(x, selected, weights)
    assert torch.equal(result, layer.dense(x, selected, weights))
    assert not torch.equal(result, shared(x, selected, weights))
    # One for all, in either form, and for each.
    expected = shared(x, selected, weights)
    for shape in ((1,), (EXPERTS,)):
        shared.act1, shared.act2 = (a.expand(shape) for a in (shared.act1, shared.act2))
        assert torch.equal(shared(x, selected, weights), expected)
        shared.act1, shared.act2 = shared.act1[0], shared.act2[0]


def test_biases_are_added_to_each_product():
    layer = Layer().with_biases()
    x, (selected, weights) = tokens(), route()
    result = layer(x, selected, weights)
    assert torch.equal(result, layer.dense(x, selected, weights))
    assert not torch.equal(result, Layer()(x, selected, weights))


def test_the_second_bias_is_added_on_one_rank_only():
    layer = Layer().with_biases()
    x, (selected, weights) = tokens(), route()
    for rank in (0, 1):
        result = layer(x, selected, weights, tp_size=2, tp_rank=rank)
        assert torch.equal(result, layer.dense(x, selected, weights, tp_rank=rank))


def test_the_sum_over_ranks_of_experts_is_the_whole():
    layer = Layer(experts=6).with_biases()
    x, (selected, weights) = tokens(), route(experts=6)
    total = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for rank in range(3):
        mine = slice(2 * rank, 2 * rank + 2)
        part = Layer(experts=2)
        for name in ("w1", "s1", "alpha1", "w2", "s2", "alpha2"):
            setattr(part, name, getattr(layer, name)[mine])
        for name in ("fc1_expert_biases", "fc2_expert_biases"):
            part.options[name] = layer.options[name][mine]
        total += part(x, selected, weights, ep_size=3, ep_rank=rank).double()
    whole = layer(x, selected, weights).double()
    # Each rank rounds to bfloat16.
    assert (total - whole).norm() / whole.norm() < 2**-7


@pytest.mark.parametrize(
    ("layout", "hidden"),
    [(SfLayout.layout_128x4, 96), (SfLayout.layout_128x4, 128), (SfLayout.layout_linear, 128)],
)
def test_a_quantized_input_is_what_is_quantized_inside(layout, hidden):
    layer = Layer(hidden=hidden)
    x, (selected, weights) = tokens(130, hidden=hidden), route(130)
    swizzled = layout is SfLayout.layout_128x4
    values, scales = quantization.fp4_quantize(x, layer.act1, is_sf_swizzled_layout=swizzled)
    expected = layer(x, selected, weights)
    options = {"swizzled_input_sf": swizzled}
    for block_scales in (scales, scales.flatten(), scales.view(torch.float8_e4m3fn)):
        result = layer(values, selected, weights, input_sf=block_scales, **options)
        assert torch.equal(result, expected)
    for dtype in (torch.int64, torch.float4_e2m1fn_x2):
        result = layer(values.view(dtype), selected, weights, input_sf=scales, **options)
        assert torch.equal(result, expected)


def test_a_quantized_input_is_not_scaled_again():
    layer = Layer()
    x, (selected, weights) = tokens(), route()
    values, scales = quantization.fp4_quantize(x, layer.act1)
    expected = layer.dense(x, selected, weights, quantized=(values, scales))
    layer.act1 = layer.act1 * 100
    assert torch.equal(layer(values, selected, weights, input_sf=scales), expected)


PARAMETERS = {
    "swiglu_alpha": torch.linspace(0.5, 1.7, EXPERTS),
    "swiglu_beta": torch.linspace(-1, 1, EXPERTS),
    "swiglu_limit": torch.linspace(0.3, 1.5, EXPERTS),
}


@pytest.mark.parametrize("names", [(name,) for name in PARAMETERS] + [tuple(PARAMETERS)])
def test_parameters_of_swiglu(names):
    x, (selected, weights) = tokens(), route()
    layer = Layer(ActivationType.SwigluBias, options={name: PARAMETERS[name] for name in names})
    expected = layer.dense(x, selected, weights)
    assert torch.equal(layer(x, selected, weights), expected)
    swiglu = {"activation_type": int(ActivationType.Swiglu)}
    assert torch.equal(layer(x, selected, weights, **swiglu), expected)
    assert not torch.equal(Layer()(x, selected, weights), expected)


def test_limit_of_swiglu_step():
    x, (selected, weights) = tokens(), route()
    options = {"swiglu_limit": PARAMETERS["swiglu_limit"]}
    layer = Layer(ActivationType.SwigluStep, options=options)
    expected = layer.dense(x, selected, weights)
    assert torch.equal(layer(x, selected, weights), expected)
    assert not torch.equal(Layer(ActivationType.SwigluStep)(x, selected, weights), expected)


def test_the_activation_is_rounded_to_the_output_dtype_before_it_is_quantized():
    """2.5 + 2^-9 is nearest to 3 in E2M1; bfloat16 makes it 2.5, a tie that goes to 2."""
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 0] = 6.0
    fc1 = torch.zeros(1, 32, 16).byte()
    fc1[:, :, 0] = 0x03  # 1.5 in the first place: each product is 9
    fc2 = torch.zeros(1, 32, 16).byte()
    fc2[:, :, 0] = 0x20  # 1 in the second place
    scales = torch.full((1, 128, 4), 0x38).byte()  # 1
    biases = torch.zeros(1, 32, dtype=torch.bfloat16)
    biases[0, :2] = torch.tensor([6.0, 2.5])  # 6 makes the scale of the block 1
    one = torch.ones(1)
    result = cutlass_fused_moe(
        x, torch.zeros(1, 1, dtype=torch.int32), None, fc1, fc2,
        one, scales, one / (9 * 2**9), one, scales, one, torch.bfloat16,
        fc1_expert_biases=biases, fc2_expert_biases=torch.zeros_like(biases),
        activation_type=int(ActivationType.Identity),
    )  # fmt: skip
    assert torch.equal(result, torch.full_like(result, 2.0))


def test_it_computes_only_what_was_selected(monkeypatch):
    from fp4aot.operators import mixture_of_experts_reference as moe

    seen = []
    product = moe._product

    def counting(left, *others):
        seen.append(left.scale_codes.shape[0])
        return product(left, *others)

    monkeypatch.setattr(moe, "_product", counting)
    selected = torch.tensor([[0, 4], [4, -1], [4, 7]], dtype=torch.int32)
    Layer()(tokens(3), selected)
    assert seen == [1, 1, 3, 3]


def test_nothing_is_written_on_failure():
    layer, x, (selected, weights) = Layer(), tokens(), route()
    out = torch.full((TOKENS, HIDDEN), 7.0, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="'workspace_buffer'"):
        cutlass_fused_moe.out(x, selected, weights, *layer.tensors(), workspace_buffer=out, out=out)
    assert torch.equal(out, torch.full_like(out, 7.0))
