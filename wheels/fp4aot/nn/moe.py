"""`NVFP4MoE`: a mixture of experts with NVFP4 weights and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fp4aot import _activations
from fp4aot.fused_moe import ActivationType, cutlass_fused_moe
from fp4aot.nn import expert_tensors, quantizing
from fp4aot.nn.ranges import MULTIPLE
from fp4aot.nn.routing import Scoring, route
from fp4aot.nn.stacked_experts import StackedExperts

_Amax = float | torch.Tensor


class NVFP4MoE(StackedExperts):
    """The experts of a mixture: weights are NVFP4, and inputs are quantized in every call.

    The state dict is that of the experts in an NVFP4 checkpoint of ModelOpt, `0.gate_proj.weight`
    and so on, so `load_state_dict` takes their tensors as they are; a rank takes its part. Between
    load and use they are turned once into what the kernels read (`prepare`): that happens in every
    `load_state_dict`. Who writes to the tensors in another way calls `prepare` afterwards.

    Parameters
    ----------
    num_experts
        Of all ranks.
    hidden_size
        H, a multiple of 32.
    intermediate_size
        Of all ranks; I, that of one rank, is a multiple of 32.
    activation_type
        Between an expert's two products: see `fp4aot.cutlass_fused_moe`. A plain one has no
        `gate_proj`.
    tp_size, tp_rank, ep_size, ep_rank
        Ranks of tensor and expert parallelism. Their results have to be added up.
    per_expert_input_scale
        Whether each expert's inputs are quantized with a scale of its own, instead of the largest
        of this rank's experts.
    use_fused_finalize
        Whether a GPU may add up the experts in any order: see `fp4aot.cutlass_fused_moe`.
    device
        Where the tensors are.
    dtype
        Of the input and the output: bfloat16 (the default) or float16.

    Attributes
    ----------
    fc1_weight, fc2_weight : torch.Tensor
        Packed e2m1 of this rank's E experts, uint8 `[E, 2 I, H / 2]`, up rows before gate rows
        (`[E, I, H / 2]` without a gate), and `[E, H, I / 2]`.
    fc1_weight_scale, fc2_weight_scale : torch.Tensor
        float8_e4m3fn, the linear layout: `[E, 2 I, H / 16]` and `[E, H, I / 16]`.
    fc1_weight_scale_2, fc2_weight_scale_2, fc1_input_scale, fc2_input_scale : torch.Tensor
        float32 `[E, 2]` (up, gate) and `[E, 1]`: amax / (448 * 6) of weights and of inputs. Larger
        inputs saturate. 0 until loaded.
    fc1_weight_block_scales, fc1_alpha, fc1_act_global_scale : torch.Tensor
        Made by `prepare`, as the same three of fc2: what `cutlass_fused_moe` reads. The first takes
        an eighth of the weight's memory.

    Notes
    -----
    All tensors are buffers: the experts cannot be trained. `.to()` moves them between devices and
    never changes their dtypes. What `state_dict` returns are views of the stacked tensors.

    The kernels have one alpha for an expert's gate and up: their `weight_scale_2` have to be equal,
    as ModelOpt exports them. Where they are not, loading is refused; rescaling would round again.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation_type: int = ActivationType.Swiglu,
        tp_size: int = 1,
        tp_rank: int = 0,
        ep_size: int = 1,
        ep_rank: int = 0,
        per_expert_input_scale: bool = False,
        use_fused_finalize: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dtype = torch.bfloat16 if dtype is None else dtype
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"fp4aot.nn.NVFP4MoE: dtype={dtype}; pass torch.bfloat16 or torch.float16"
            )
        if int(activation_type) not in tuple(_activations.COMPILED):
            raise ValueError(
                f"fp4aot.nn.NVFP4MoE: activation_type={activation_type!r} is not in this package; "
                "pass one of " + ", ".join(known.name for known in _activations.COMPILED)
            )
        for kind, size, rank in (("tp", tp_size, tp_rank), ("ep", ep_size, ep_rank)):
            if size < 1 or not 0 <= rank < size:
                raise ValueError(
                    f"fp4aot.nn.NVFP4MoE: {kind}_rank={rank} of {kind}_size={size}; pass the "
                    "number of ranks, and a rank below it"
                )
        for name, value, multiple, what in (
            ("num_experts", num_experts, ep_size, "ep_size"),
            ("hidden_size", hidden_size, MULTIPLE, str(MULTIPLE)),
            ("intermediate_size", intermediate_size, MULTIPLE * tp_size, "32 * tp_size"),
        ):
            if value <= 0 or value % multiple != 0:
                raise ValueError(
                    f"fp4aot.nn.NVFP4MoE: {name}={value} is not a positive multiple of {what}; "
                    "pass the size of all ranks, padded with zeros where it has to be"
                )
        super().__init__(
            num_experts,
            hidden_size,
            intermediate_size,
            ActivationType(int(activation_type)).is_gated,
            tp_size,
            tp_rank,
            ep_size,
            ep_rank,
            per_expert_input_scale,
            device,
        )
        self.activation_type = int(activation_type)
        self.use_fused_finalize = use_fused_finalize
        self.dtype = dtype

    def forward(
        self,
        x: torch.Tensor,
        token_selected_experts: torch.Tensor,
        token_final_scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return `[T, H]` for an input `[T, H]` of the module's dtype.

        Parameters
        ----------
        x
            The tokens.
        token_selected_experts
            int32 `[T, k]`, numbers among the experts of all ranks. Other numbers, such as -1 for
            padding, contribute nothing.
        token_final_scales
            float32 `[T, k]`, the weight of each; None for 1.
        """
        return cutlass_fused_moe(
            x,
            token_selected_experts,
            token_final_scales,
            self.fc1_weight,
            self.fc2_weight,
            self.dtype,
            self.quant_scales,
            tp_size=self.tp_size,
            tp_rank=self.tp_rank,
            ep_size=self.ep_size,
            ep_rank=self.ep_rank,
            activation_type=self.activation_type,
            use_fused_finalize=self.use_fused_finalize,
        )

    def routed(
        self,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        scoring: Scoring = "softmax",
        renormalize: bool = True,
        correction_bias: torch.Tensor | None = None,
        routed_scaling_factor: float | torch.Tensor = 1.0,
    ) -> torch.Tensor:
        """Return `[T, H]` for an input and its router's logits: `route`, then `forward`."""
        if router_logits.shape[-1] != self.num_experts:
            raise ValueError(
                f"fp4aot.nn.NVFP4MoE.routed: router_logits of shape {list(router_logits.shape)} "
                f"with {self.num_experts} experts; pass the logits of all ranks' experts"
            )
        routing = route(
            router_logits, top_k, scoring, renormalize, correction_bias, routed_scaling_factor
        )
        mixture: torch.Tensor = self(x, *routing)
        return mixture

    @property
    def quant_scales(self) -> tuple[torch.Tensor, ...]:
        """The six tensors that `cutlass_fused_moe` takes under this name."""
        return (
            self.fc1_act_global_scale,
            self.fc1_weight_block_scales,
            self.fc1_alpha,
            self.fc2_act_global_scale,
            self.fc2_weight_block_scales,
            self.fc2_alpha,
        )

    @classmethod
    def from_modelopt(
        cls, tensors: Mapping[str, torch.Tensor], prefix: str = "", **options: Any
    ) -> NVFP4MoE:
        """Make a module of the experts in an NVFP4 checkpoint of ModelOpt.

        Parameters
        ----------
        tensors
            The checkpoint's, or a part of it that holds all tensors of the experts.
        prefix
            Of the experts' names, such as `model.layers.3.mlp.experts`.
        options
            Of the constructor, without the sizes. By default the module is where the first weight
            is.

        Raises
        ------
        ValueError
            There are no experts under the prefix.
        RuntimeError
            Tensors are missing or do not fit; the message names all of them.
        """
        start = f"{prefix.rstrip('.')}." if prefix else ""
        own = {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
        known = expert_tensors.projections(is_gated=True)
        places = {name: place for name in own if (place := expert_tensors.place_of(name, known))}
        up = [
            n for n, p in places.items() if p.tensor == "weight" and p.projection.name == "up_proj"
        ]
        if not up:
            raise ValueError(
                "fp4aot.nn.NVFP4MoE.from_modelopt: no expert's up_proj.weight or w3.weight under "
                f"{start!r}; pass the prefix of names such as '{start}0.up_proj.weight'"
            )
        first = own[up[0]]
        options.setdefault("device", first.device)
        count = 1 + max(place.expert for place in places.values())
        module = cls(count, first.shape[1] * 2, first.shape[0], **options)
        module.load_state_dict(own)
        return module

    @classmethod
    @torch.no_grad()
    def from_linears(
        cls,
        experts: Sequence[torch.nn.Module],
        input_amax: tuple[_Amax, _Amax],
        **options: Any,
    ) -> NVFP4MoE:
        """Quantize experts that are modules of linear layers.

        Parameters
        ----------
        experts
            Those of all ranks, with `gate_proj`, `up_proj` and `down_proj`, or `w1`, `w3` and `w2`,
            or `gate_up_proj` (gate rows first) and `down_proj`; no biases.
        input_amax
            Largest magnitude of the inputs of the two products, each a number for all experts or
            a tensor `[experts]`; larger inputs will saturate.
        options
            Of the constructor, without the sizes. By default the module is where the first weight
            is, and has its dtype where that is bfloat16 or float16.

        Raises
        ------
        ValueError
            A layer is missing, or sizes do not fit.
        """
        activation = ActivationType(int(options.get("activation_type", ActivationType.Swiglu)))
        name = "fp4aot.nn.NVFP4MoE.from_linears: expert"
        if len(experts) == 0:
            raise ValueError(f"{name}s is empty; pass the modules of all ranks")
        weights = (
            quantizing.weights_of(expert, activation.is_gated, f"{name} {number}")
            for number, expert in enumerate(experts)
        )
        return cls._quantized(len(experts), weights, input_amax, options)

    @classmethod
    @torch.no_grad()
    def from_weights(
        cls,
        gate: torch.Tensor | None,
        up: torch.Tensor,
        down: torch.Tensor,
        input_amax: tuple[_Amax, _Amax],
        **options: Any,
    ) -> NVFP4MoE:
        """Quantize stacked weights.

        Parameters
        ----------
        gate, up
            `[experts, intermediate size, hidden size]`, of all ranks; no gate for a plain
            activation.
        down
            `[experts, hidden size, intermediate size]`.
        input_amax, options
            As in `from_linears`.

        Raises
        ------
        ValueError
            Shapes do not fit together.
        """
        stacks = [up, down] if gate is None else [gate, up, down]
        expected = [*up.shape[:1], *up.shape[:0:-1]]
        if (
            up.dim() != 3
            or up.shape[0] == 0
            or list(down.shape) != expected
            or (gate is not None and gate.shape != up.shape)
        ):
            raise ValueError(
                "fp4aot.nn.NVFP4MoE.from_weights: got shapes "
                f"{[list(stack.shape) for stack in stacks]}; pass gate and up as [experts, "
                "intermediate size, hidden size], down as [experts, hidden size, intermediate size]"
            )
        rows = zip(*(stack.detach() for stack in stacks), strict=True)
        return cls._quantized(up.shape[0], map(list, rows), input_amax, options)

    @classmethod
    def _quantized(
        cls,
        count: int,
        experts: Iterable[list[torch.Tensor]],
        input_amax: tuple[_Amax, _Amax],
        options: dict[str, Any],
    ) -> NVFP4MoE:
        amaxes = [torch.as_tensor(amax, dtype=torch.float32).reshape(-1) for amax in input_amax]
        if len(amaxes) != 2 or any(len(amax) not in (1, count) for amax in amaxes):
            raise ValueError(
                f"fp4aot.nn.NVFP4MoE: input_amax has {[len(amax) for amax in amaxes]} values; pass "
                f"those of both products, each one number or {count}"
            )
        first, second = (amax.detach().expand(count) for amax in amaxes)
        module = None
        for number, weights in enumerate(experts):
            if module is None:
                up = weights[-2]
                options = {"device": up.device} | options
                if up.dtype in (torch.bfloat16, torch.float16):
                    options = {"dtype": up.dtype} | options
                module = cls(count, up.shape[1], up.shape[0], **options)
            module._quantize(number, weights, (first[number], second[number]))
        assert module is not None  # noqa: S101 (callers refuse 0 experts)
        module.prepare()
        return module

    def _quantize(
        self, number: int, weights: list[torch.Tensor], amaxes: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        names = [projection.name for projection in self._projections]
        if len(weights) != len(names):
            raise ValueError(
                f"fp4aot.nn.NVFP4MoE: expert {number} has {len(weights)} weights, but activation "
                f"{ActivationType(self.activation_type).name} needs {', '.join(names)}"
            )
        if not self.is_here(number):
            return
        tensors = quantizing.quantize(dict(zip(names, weights, strict=True)), amaxes)
        for name, tensor in tensors.items():
            place = expert_tensors.place_of(f"{number}.{name}", self._projections)
            if place is not None and (problem := self.take(place, tensor)):
                raise ValueError(f"fp4aot.nn.NVFP4MoE: expert {number}, {name}: {problem}")

    def extra_repr(self) -> str:
        """Say what the printed model shows."""
        ranks = "".join(
            f", {kind}_rank={rank} of {size}"
            for kind, size, rank in (
                ("tp", self.tp_size, self.tp_rank),
                ("ep", self.ep_size, self.ep_rank),
            )
            if size > 1
        )
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, "
            f"activation={ActivationType(self.activation_type).name}{ranks}, dtype={self.dtype}"
        )
