"""Mixtures of experts: random arguments, and what a correct result may be.

The model takes each step of the kernels in float64 and carries two numbers along with each value:
the smallest and the largest that it may have, given the error of a float32 sum and of a fast
exponential. Where both round to the same number, as they nearly always do, nothing is left of the
error; where they do not, the activation's e2m1 code may be either neighbour, and the model says by
how much that moves each element of the result. So the bound is as tight as the rounding of the
output wherever no tie is near, and still holds where one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fp4aot import _layouts
from fp4aot._activations import ActivationType
from fp4aot.operators.arithmetic import blocks, e2m1, nvfp4, scales
from gpusuite.records import Details
from gpusuite.rounding import half_unit, sum_error

BF16 = torch.bfloat16
INSIDE, SWIZZLED, LINEAR = "quantized inside", "swizzled scales", "linear scales"
INPUTS = (INSIDE, SWIZZLED, LINEAR)
ROUTINGS = ("random", "one expert", "duplicates", "padding", "out of range", "nowhere")

ELEMENTS = "elements, the float64 model within rounding and ties"
FROBENIUS = "mixture, Frobenius norm relative to the float64 model"
BOUND = "mixture, the bound itself, Frobenius norm relative to the model"

_LAYOUT = _layouts.SfLayout.layout_128x4
_NAN = 0x7F
_BLOCK = 16
# Results of activations reach about this far; a block whose values reach further saturates.
_LARGEST_ACTIVATED = 16.0
# Roundings to the output dtype, one after another, and a tie now and then.
_LARGEST_FROBENIUS = {torch.bfloat16: 1e-2, torch.float16: 6e-3}
_FEWEST_ELEMENTS = 16 * 160
# A fast exponential, and a quotient of it; of the values themselves where terms cancel.
_ACTIVATION_ERROR = 2.0**-16
_CANCELLATION_ERROR = 2.0**-21
# `tanh.approx.f32` promises no more.
_TANH_ERROR = 2.0**-10

_TENSORS = (
    *("input", "token_selected_experts", "token_final_scales"),
    *("fc1_expert_weights", "fc2_expert_weights"),
    *("fc1_act_global_scale", "fc1_weight_block_scales", "fc1_alpha"),
    *("fc2_act_global_scale", "fc2_weight_block_scales", "fc2_alpha"),
)
_OF_EXPERTS = (
    *("fc1_expert_weights", "fc2_expert_weights", "fc1_weight_block_scales", "fc1_alpha"),
    *("fc2_weight_block_scales", "fc2_alpha", "fc1_expert_biases", "fc2_expert_biases"),
    *("swiglu_alpha", "swiglu_beta", "swiglu_limit"),
)


@dataclass(frozen=True)
class Mixture:
    """One call of `cutlass_fused_moe`.

    Attributes
    ----------
    tensors
        The first eleven arguments, by name.
    dtype
        Of the output.
    options
        The other arguments that are not left as they are by default.
    """

    tensors: Mapping[str, torch.Tensor | None]
    dtype: torch.dtype
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name in _TENSORS:
            return self.tensors[name]
        raise AttributeError(name)

    tokens = property(lambda self: self.token_selected_experts.shape[0])
    top_k = property(lambda self: self.token_selected_experts.shape[1])
    experts = property(lambda self: self.fc1_expert_weights.shape[0])
    hidden_size = property(lambda self: self.fc2_expert_weights.shape[1])

    @property
    def inter_size(self) -> int:
        weights = self.fc2_expert_weights
        return weights.shape[2] * weights.element_size() * 2

    @property
    def activation(self) -> ActivationType:
        return ActivationType(self.options.get("activation_type", ActivationType.Swiglu))

    def changed(self, **changes: Any) -> Mixture:
        """Replace some arguments."""
        tensors = {n: changes.pop(n) if n in changes else t for n, t in self.tensors.items()}
        return replace(self, tensors=tensors, options={**self.options, **changes})

    def to(self, device: str) -> Mixture:
        """Copy it to a device."""
        return self.mapped(lambda tensor: tensor.to(device))

    def clone(self) -> Mixture:
        """Copy all of its tensors."""
        return self.mapped(torch.clone)

    def load(self, other: Mixture) -> None:
        """Overwrite its tensors with another's."""
        for mine, theirs in zip(self.all_tensors(), other.all_tensors(), strict=True):
            mine.copy_(theirs)

    def shard(self, ep_size: int, ep_rank: int) -> Mixture:
        """Keep one rank's experts."""
        count = self.experts // ep_size
        mine = slice(ep_rank * count, (ep_rank + 1) * count)
        parts = {
            name: tensor[mine].contiguous()
            for name, tensor in {**self.tensors, **self.options}.items()
            if name in _OF_EXPERTS and tensor is not None
        }
        for name in ("fc1_act_global_scale", "fc2_act_global_scale"):
            if self.tensors[name].numel() > 1:
                parts[name] = self.tensors[name][mine].contiguous()
        return self.changed(**parts, ep_size=ep_size, ep_rank=ep_rank)

    def positional(self) -> tuple[torch.Tensor | None, ...]:
        """The first eleven arguments, in their order."""
        return tuple(self.tensors[name] for name in _TENSORS)

    def run(self, **options: Any) -> torch.Tensor:
        """Call the functional form."""
        return torch.ops.fp4aot.cutlass_fused_moe.default(
            *self.positional(), self.dtype, **{**self.options, **options}
        )

    def run_into(
        self, out: torch.Tensor, workspace: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor:
        """Call the form that takes buffers."""
        torch.ops.fp4aot.cutlass_fused_moe.out(
            *self.positional(), **{**self.options, **options}, workspace_buffer=workspace, out=out
        )
        return out

    def all_tensors(self) -> list[torch.Tensor]:
        """List every tensor among the arguments."""
        values = (*self.tensors.values(), *self.options.values())
        return [value for value in values if isinstance(value, torch.Tensor)]

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Mixture:
        """Replace every tensor."""

        def apply(values: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: function(value) if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }

        return replace(self, tensors=apply(self.tensors), options=apply(self.options))


def draw(
    tokens: int,
    hidden: int = 256,
    inter: int = 512,
    experts: int = 8,
    top_k: int = 2,
    *,
    dtype: torch.dtype = BF16,
    source: str = INSIDE,
    activation: ActivationType = ActivationType.Swiglu,
    routing: str = "random",
    biases: bool = False,
    per_expert: bool = False,
    parameters: tuple[str, ...] = (),
    weighted: bool = True,
    seed: int = 0,
    device: str = "cuda",
) -> Mixture:
    """Draw a call whose hidden values and results are about 1.

    Padding of block scales is as bad as it may be: NaN in rows, finite garbage in columns.

    Parameters
    ----------
    tokens, hidden, inter, experts, top_k
        Sizes.
    dtype
        Of the output, and of an input that is not quantized.
    source
        How the input comes: one of `INPUTS`.
    activation, parameters
        The activation, and which of ``swiglu_alpha``, ``_beta`` and ``_limit`` it gets.
    routing
        One of `ROUTINGS`.
    biases, per_expert, weighted
        Whether there are biases, global scales by expert, and weights of the selected experts.
    """
    generator = torch.Generator(device).manual_seed(seed + 1000 * tokens + hidden + 7 * inter)
    make = _Maker(generator, device)
    rows = inter * (2 if activation.is_gated else 1)
    fc1, fc1_scales, fc1_size = make.weights(experts, rows, hidden)
    fc2, fc2_scales, fc2_size = make.weights(experts, hidden, inter)
    options: dict[str, Any] = {"activation_type": int(activation)}
    if source == INSIDE:
        x = make.values(tokens, hidden).to(dtype)
        largest = x.float().abs().max() if tokens else torch.ones((), device=device)
        fc1_global = (448 * 6 / (1.0173 * largest)).reshape(())
        input_size = 4.0 * fc1_global  # root mean square of powers of two from -4 to 4
    else:
        x = make.bytes(0, 256, tokens, hidden // 2)
        options["input_sf"] = make.scales(tokens, hidden, linear=source == LINEAR)
        options["swizzled_input_sf"] = source == SWIZZLED
        fc1_global = torch.full((), 37.3, device=device)
        input_size = torch.full((), 3.0, device=device)
    fc2_global = torch.full((), 448 * 6 / (1.0173 * _LARGEST_ACTIVATED), device=device)
    apart = make.uniform(0.7, 1.3, experts) if per_expert else torch.ones((), device=device)
    fc1_global, fc2_global = fc1_global * apart, fc2_global * apart
    in_input = apart if source == INSIDE else torch.ones((), device=device)
    every = make.uniform(0.8, 1.2, experts)
    tensors = {
        "input": x,
        "token_selected_experts": make.routing(routing, tokens, experts, top_k),
        "token_final_scales": make.uniform(0.05, 1.0, tokens, top_k) if weighted else None,
        "fc1_expert_weights": fc1,
        "fc2_expert_weights": fc2,
        "fc1_act_global_scale": fc1_global,
        "fc1_weight_block_scales": fc1_scales,
        "fc1_alpha": every / (input_size * in_input * fc1_size * hidden**0.5),
        "fc2_act_global_scale": fc2_global,
        "fc2_weight_block_scales": fc2_scales,
        "fc2_alpha": every / (fc2_global * fc2_size * inter**0.5),
    }
    if biases:
        options["fc1_expert_biases"] = make.normal(experts, rows).to(dtype)
        options["fc2_expert_biases"] = make.normal(experts, hidden).to(dtype)
    for name in parameters:
        low, high = {"swiglu_alpha": (0.9, 1.8), "swiglu_beta": (-0.5, 1.0)}.get(name, (0.5, 2.0))
        options[name] = make.uniform(low, high, experts)
    return Mixture(tensors, dtype, options)


@dataclass(frozen=True)
class _Maker:
    generator: torch.Generator
    device: str

    def bytes(self, low: int, high: int, *shape: int) -> torch.Tensor:
        drawn = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return drawn.to(torch.uint8)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        drawn = torch.rand(*shape, generator=self.generator, device=self.device)
        return low + (high - low) * drawn

    def values(self, rows: int, columns: int) -> torch.Tensor:
        powers = torch.randint(
            -2, 4, (rows, columns // _BLOCK), generator=self.generator, device=self.device
        )
        return self.normal(rows, columns) * torch.exp2(powers).repeat_interleave(_BLOCK, dim=-1)

    def scales(self, rows: int, columns: int, *batch: int, linear: bool = False) -> torch.Tensor:
        """Draw E4M3 scales from 2^-4 to 2, mantissa and all; swizzled with garbage, or linear."""
        count = columns // _BLOCK
        if linear:
            return self.bytes(0x18, 0x40, *batch, rows, count)
        shape = _layouts.scale_shape(rows, count, _LAYOUT)
        drawn = self.bytes(0x18, 0x40, *batch, *shape)
        drawn[..., rows:, :] = _NAN
        return _layouts.swizzle(drawn, _LAYOUT)

    def weights(
        self, experts: int, rows: int, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Draw packed values and their scales; the root mean square of their product is about 2."""
        return (
            self.bytes(0, 256, experts, rows, columns // 2),
            self.scales(rows, columns, experts),
            2.0,
        )

    def routing(self, kind: str, tokens: int, experts: int, top_k: int) -> torch.Tensor:
        """Draw the experts of each token."""
        drawn = torch.rand(
            tokens, max(experts, top_k), generator=self.generator, device=self.device
        )
        selected = drawn.argsort(dim=1)[:, :top_k] % experts
        if kind == "one expert":  # and for further choices one other each
            one = torch.arange(2, 2 + top_k, device=self.device) % experts
            selected = one.expand(tokens, top_k).clone()
        elif kind == "duplicates":
            selected = selected[:, :1].expand(tokens, top_k).clone()
            selected[::3, -1] = (selected[::3, -1] + 1) % experts
        elif kind == "padding":
            selected[tokens // 2 :] = -1
            selected[: tokens // 2 : 4, 0] = -1
        elif kind == "out of range":
            selected[::3, 0] = experts
            selected[1::3, -1] = 2**31 - 1
            selected[2::3, 0] = -(2**31)
        elif kind == "nowhere":
            selected = torch.full_like(selected, -1)
        return selected.to(torch.int32)


@dataclass(frozen=True)
class _Part:
    """What one expert adds to its tokens: the product before it is rounded, and its error."""

    token: torch.Tensor
    product: torch.Tensor
    error: torch.Tensor
    bias: torch.Tensor | float
    weight: torch.Tensor


class Model:
    """What a call must return, in float64, and how far a correct result may be away.

    Its products are computed once, whichever way they are added up.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        first = mixture.options.get("ep_rank", 0) * mixture.experts
        local = mixture.token_selected_experts.long() - first
        inside = local[(local >= 0) & (local < mixture.experts)]
        self._parts = [self._part(local, expert) for expert in inside.unique().tolist()]

    def expected(self, fused_finalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result `[T, H]` and the largest error of each element.

        Tactics that may add up inside the second product need not: either way must be right.
        """
        ways = (False, True) if fused_finalize else (False,)
        (total, bound), *others = [self._added_up(way) for way in ways]
        for _, other in others:
            bound = torch.maximum(bound, other)
        return total, bound

    def _added_up(self, fused_finalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
        mixture, dtype = self._mixture, self._mixture.dtype
        shape = (mixture.tokens, mixture.hidden_size)
        total, error, magnitude = (
            torch.zeros(shape, dtype=torch.float64, device=mixture.input.device) for _ in range(3)
        )
        for part in self._parts:
            value = (part.product + part.bias) * part.weight
            own = part.error * part.weight.abs() + 2.0**-22 * (value.abs() + part.product.abs())
            if fused_finalize:
                own += half_unit(value.abs() + own, dtype)
            else:
                rounding = half_unit(part.product.abs() + part.error, dtype)
                own += rounding * part.weight.abs()
            # A token may have selected the expert several times.
            total.index_add_(0, part.token, value)
            error.index_add_(0, part.token, own)
            magnitude.index_add_(0, part.token, value.abs() + own)
        error += 2.0**-22 * magnitude
        if fused_finalize:  # each addition is in the output dtype
            error += (mixture.top_k - 1) * half_unit(magnitude, dtype)
        else:
            error += half_unit(total.abs() + error, dtype)
        return total, torch.where(magnitude > 0, error, 0.0)

    def check(
        self, details: Details, got: torch.Tensor, fused_finalize: bool, what: str = ELEMENTS
    ) -> None:
        """Hold a result against the model."""
        expected, bound = self.expected(fused_finalize)
        assert got.shape == expected.shape, f"shape {list(got.shape)}"
        assert got.dtype == self._mixture.dtype, f"{got.dtype}"
        error = (got.double() - expected).abs()
        wrong = int((~(error <= bound)).sum())  # NaN is wrong
        details.compared(what, got.numel(), wrong)
        assert wrong == 0, (
            f"{wrong} of {got.numel()} are off by more than the bound, the worst by "
            f"{float((error / bound).nan_to_num(posinf=1e30).max()):.3g} times the bound; "
            f"{int(got.isnan().sum())} are NaN"
        )
        norm = float(expected.norm())
        if got.numel() >= _FEWEST_ELEMENTS and norm > 0:
            relative = float(error.norm()) / norm
            details.error(FROBENIUS, relative)
            details.error(BOUND, float(bound.norm()) / norm)
            assert relative < _LARGEST_FROBENIUS[got.dtype], f"relative error {relative:.2g}"

    def _part(self, local: torch.Tensor, expert: int) -> _Part:
        mixture = self._mixture
        token, choice = (local == expert).nonzero(as_tuple=True)
        hidden = self._hidden(token, expert)
        activated, error = self._quantized(self._activated(hidden, expert), expert)
        weights = _weights(mixture.fc2_expert_weights, mixture.fc2_weight_block_scales, expert)
        alpha = mixture.fc2_alpha[expert].double()
        product = activated @ weights.t() * alpha
        magnitude = (activated.abs() + error) @ weights.t().abs() * alpha.abs()
        moved = error @ weights.t().abs() * alpha.abs()
        moved += sum_error(mixture.inter_size) * magnitude + 2.0**-23 * product.abs()
        bias: torch.Tensor | float = 0.0
        if "fc2_expert_biases" in mixture.options and mixture.options.get("tp_rank", 0) == 0:
            bias = mixture.options["fc2_expert_biases"][expert].double()
        weight = torch.ones_like(product[:, :1])
        if mixture.token_final_scales is not None:
            weight = mixture.token_final_scales[token, choice].double().unsqueeze(1)
        return _Part(token, product, moved, bias, weight)

    def _hidden(self, token: torch.Tensor, expert: int) -> torch.Tensor:
        """Return the first product's smallest, own and largest values, rounded, `[3, rows, n]`."""
        mixture = self._mixture
        left = self._input(token, expert)
        weights = _weights(mixture.fc1_expert_weights, mixture.fc1_weight_block_scales, expert)
        alpha = mixture.fc1_alpha[expert].double()
        product = left @ weights.t() * alpha
        magnitude = left.abs() @ weights.t().abs() * alpha.abs()
        error = sum_error(mixture.hidden_size) * magnitude + 2.0**-23 * product.abs()
        return _rounded(torch.stack([product - error, product, product + error]), mixture.dtype)

    def _input(self, token: torch.Tensor, expert: int) -> torch.Tensor:
        mixture = self._mixture
        if "input_sf" not in mixture.options:
            rows = blocks.split(mixture.input[token], _BLOCK)
            scale = _scale_of(mixture.fc1_act_global_scale, expert)
            quantized = nvfp4.quantize(rows, scales.row_factors(scale))
            return _values(quantized.codes.flatten(1), quantized.scale_codes)
        packed = _bytes(mixture.input)
        columns = mixture.hidden_size // _BLOCK
        layout = _layouts.layout_from_flags(mixture.options.get("swizzled_input_sf", True), False)
        codes = _row_major(mixture.options["input_sf"], mixture.tokens, columns, layout)
        return _values(e2m1.unpack(packed[token]), codes[token])

    def _activated(self, hidden: torch.Tensor, expert: int) -> torch.Tensor:
        """Return the activation's smallest, own and largest values, rounded."""
        mixture = self._mixture
        if "fc1_expert_biases" in mixture.options:
            hidden = hidden + mixture.options["fc1_expert_biases"][expert].double()
        activation = mixture.activation
        parameters = _parameters(mixture, expert)
        if activation is ActivationType.Swiglu and parameters:
            activation = ActivationType.SwigluBias
        if activation.is_gated:
            up, gate = hidden.chunk(2, dim=-1)
            function = GATED[activation]
            corners = torch.stack([function(g, u, parameters) for g in gate for u in up])
            own = function(gate[1], up[1], parameters)
            scale = gate.abs().amax(0) * (up.abs().amax(0) + 1.0)
        else:
            corners = torch.stack([PLAIN[activation](h) for h in hidden])
            own = PLAIN[activation](hidden[1])
            scale = hidden.abs().amax(0)
        smallest, largest = corners.amin(0), corners.amax(0)
        error = _ACTIVATION_ERROR * torch.maximum(smallest.abs(), largest.abs())
        error += _CANCELLATION_ERROR * scale
        if activation is ActivationType.GegluTanh:
            error += _TANH_ERROR * scale
        if activation in _EXACT:
            error = torch.zeros_like(error)
        return _rounded(torch.stack([smallest - error, own, largest + error]), mixture.dtype)

    def _quantized(self, activated: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the activations are after quantization, and how far they may be from it."""
        factor = _scale_of(self._mixture.fc2_act_global_scale, expert)
        smallest, own, largest = activated
        crossing = smallest * largest < 0
        ends = torch.stack([smallest.abs(), largest.abs()])
        low, high = ends.amin(0).masked_fill(crossing, 0.0), ends.amax(0)

        def encode(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            split = blocks.split(values.float(), _BLOCK)
            quantized = nvfp4.quantize(split, scales.row_factors(factor))
            codes = quantized.codes.flatten(1)
            repeated = scales.decode_e4m3(quantized.scale_codes).double()
            return _values(codes, quantized.scale_codes), repeated.repeat_interleave(_BLOCK, -1)

        value, _ = encode(own)
        (value_low, scale_low), (value_high, scale_high) = encode(low), encode(high)
        apart = torch.where(crossing, 2 * value_high, value_high - value_low)
        # Under another scale a code is off by half its distance to the next, as under this one.
        steps = (value_high / scale_high.clamp(min=2.0**-9)).clamp(min=1.0)
        distance = torch.exp2(torch.floor(torch.log2(steps * 1.2)) - 1).clamp(0.5, 2.0)
        other = (high - low) * factor.double() + distance * scale_high * 1.2
        error = torch.where(scale_low == scale_high, apart, torch.maximum(apart, other))
        return value, error


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.float().to(dtype).double()


def _values(codes: torch.Tensor, scale_codes: torch.Tensor) -> torch.Tensor:
    return blocks.scale(e2m1.decode(codes), scales.decode_e4m3(scale_codes)).double()


def _bytes(packed: torch.Tensor) -> torch.Tensor:
    return packed.contiguous().view(torch.uint8)


def _weights(packed: torch.Tensor, block_scales: torch.Tensor, expert: int) -> torch.Tensor:
    codes = e2m1.unpack(_bytes(packed[expert]))
    rows, columns = codes.shape
    own = _row_major(block_scales[expert], rows, columns // _BLOCK, _LAYOUT)
    return _values(codes, own)


def _row_major(
    buffer: torch.Tensor, rows: int, columns: int, layout: _layouts.SfLayout
) -> torch.Tensor:
    shape = _layouts.scale_shape(rows, columns, layout)
    return _layouts.unswizzle(_bytes(buffer).reshape(shape), layout)[:rows, :columns]


def _scale_of(scale: torch.Tensor, expert: int) -> torch.Tensor:
    return scale[expert] if scale.numel() > 1 else scale.reshape(())


def _parameters(mixture: Mixture, expert: int) -> dict[str, float]:
    names = ("swiglu_alpha", "swiglu_beta", "swiglu_limit")
    return {
        name.removeprefix("swiglu_"): float(mixture.options[name][expert])
        for name in names
        if mixture.options.get(name) is not None
    }


def _silu(values: torch.Tensor) -> torch.Tensor:
    return values * values.sigmoid()


def _gelu(values: torch.Tensor) -> torch.Tensor:
    return 0.5 * values * (1 + torch.erf(values / math.sqrt(2)))


def _gelu_tanh(values: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * values * (1 + 0.044715 * values * values)
    return 0.5 * values * (1 + torch.tanh(inner))


def _swiglu_bias(
    gate: torch.Tensor, up: torch.Tensor, parameters: Mapping[str, float]
) -> torch.Tensor:
    limit = parameters.get("limit", math.inf)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    steepness = parameters.get("alpha", 1.0)
    return gate * (steepness * gate).sigmoid() * (up + parameters.get("beta", 0.0))


def _swiglu_step(
    gate: torch.Tensor, up: torch.Tensor, parameters: Mapping[str, float]
) -> torch.Tensor:
    limit = parameters.get("limit", 7.0)
    return _silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


PLAIN: Mapping[ActivationType, Callable[[torch.Tensor], torch.Tensor]] = {
    ActivationType.Gelu: _gelu,
    ActivationType.Relu: torch.relu,
    ActivationType.Silu: _silu,
    ActivationType.Relu2: lambda values: values.relu() ** 2,
    ActivationType.Identity: lambda values: values,
}
GATED: Mapping[ActivationType, Callable[..., torch.Tensor]] = {
    ActivationType.Swiglu: lambda gate, up, _: _silu(gate) * up,
    ActivationType.Geglu: lambda gate, up, _: _gelu(gate) * up,
    ActivationType.GegluTanh: lambda gate, up, _: _gelu_tanh(gate) * up,
    ActivationType.SwigluBias: _swiglu_bias,
    ActivationType.SwigluStep: _swiglu_step,
}
_EXACT = (ActivationType.Relu, ActivationType.Identity)


def as_flashinfer_takes_it(call: Mixture) -> Mixture:
    """View packed values sixteen at a time, and scales four: other dtypes mean other formats."""
    changes = {
        name: call.tensors[name].view(torch.int64)
        for name in ("fc1_expert_weights", "fc2_expert_weights")
    }
    changes |= {
        name: call.tensors[name].view(torch.int32)
        for name in ("fc1_weight_block_scales", "fc2_weight_block_scales")
    }
    if call.input.dtype == torch.uint8:
        changes["input"] = call.input.view(torch.int64)
    return call.changed(**changes)
