"""The contenders of a stack of linear layers: what a compiled model looks like from the host.

One input and one graph for all layers, so that what a graph costs by itself (guards, inputs) is
paid once, as in a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import fp4aot
from benchmarks import names
from benchmarks.graphs import replayed, with_own_code
from benchmarks.timing import Contender

_SCALE_RANGE = 448.0 * 6.0


@dataclass(frozen=True)
class Problem:
    """Layers, each as the last four arguments of ``fp4_linear``, and an input."""

    x: torch.Tensor
    layers: tuple[tuple[torch.Tensor, ...], ...]

    @classmethod
    def draw(cls, size: int, seed: int = 0) -> Problem:
        """Gaussian input; weights that keep its magnitude from layer to layer."""
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def gaussian(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda")

        input_scale = torch.tensor([_SCALE_RANGE / 8], device="cuda")
        layers = []
        for _ in range(names.STACK_LAYERS):
            weight = (gaussian(size, size) / math.sqrt(size)).to(torch.bfloat16)
            scale = (_SCALE_RANGE / weight.float().abs().max()).reshape(1)
            packed = fp4aot.fp4_quantize(weight, scale)
            layers.append((*packed, 1 / (input_scale * scale), input_scale))
        return cls(gaussian(1, size).to(torch.bfloat16), tuple(layers))

    def expected(self) -> list[torch.Tensor]:
        """What the last layer must return, from the ``out`` forms into poisoned buffers."""
        return [self.with_buffers()()]

    def with_buffers(self) -> Callable[[], torch.Tensor]:
        """Apply the layers through the ``out`` forms, with buffers and views made beforehand."""
        quantize, multiply = torch.ops.fp4aot.fp4_quantize.out, torch.ops.fp4aot.mm_fp4.out
        steps = []
        for weight, weight_scale, alpha, input_scale in self.layers:
            values, scales = (
                torch.full_like(tensor, 0x7F) for tensor in fp4aot.fp4_quantize(self.x, input_scale)
            )
            out = torch.full((1, weight.shape[0]), float("nan"), dtype=self.x.dtype, device="cuda")
            steps.append((input_scale, values, scales, weight.t(), weight_scale, alpha, out))

        def call() -> torch.Tensor:
            hidden = self.x
            for input_scale, values, scales, weight, weight_scale, alpha, out in steps:
                quantize(hidden, input_scale, values=values, block_scales=scales)
                multiply(values, weight, scales, weight_scale, alpha, out=out)
                hidden = out
            return hidden

        return call


class Model(torch.nn.Module):
    """The layers as a module, as models are: what it holds does not move between calls.

    `torch.compile` then need not look at each tensor in every call, nor copy it into a graph.
    """

    def __init__(self, layers: tuple[tuple[torch.Tensor, ...], ...]) -> None:
        super().__init__()
        for index, layer in enumerate(layers):
            for name, tensor in zip(names.LAYER, layer, strict=True):
                self.register_buffer(f"{name}_{index}", tensor)
        self.count = len(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layers."""
        for index in range(self.count):
            x = fp4aot.fp4_linear(x, *(getattr(self, f"{name}_{index}") for name in names.LAYER))
        return x


def contenders(problem: Problem, flashinfer: ModuleType | None) -> list[Contender]:
    """Ways to apply the stack."""
    x, layers = problem.x, problem.layers

    def model(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = fp4aot.fp4_linear(x, *layer)
        return x

    def compiled(mode: str | None = None) -> Callable[[], Any]:
        # Dynamo looks through all that it has compiled of one code object: a class for each.
        own = type(f"Model_{mode}", (Model,), {"forward": with_own_code(Model.forward, f"{mode}")})
        graph = torch.compile(own(layers), fullgraph=True, dynamic=False, mode=mode)

        def call() -> torch.Tensor:
            with torch.no_grad():
                return graph(x)

        return call

    listed = [
        _contender(names.STACK_EAGER, "fp4aot", lambda: lambda: model(x)),
        _contender(names.STACK_OUT, "fp4aot", problem.with_buffers),
        _contender(names.STACK_COMPILED, "fp4aot", compiled),
        _contender(names.STACK_REDUCED, "fp4aot", lambda: compiled("reduce-overhead")),
        _contender(names.STACK_REPLAY, "fp4aot", lambda: replayed(lambda: model(x))),
    ]
    if flashinfer is not None:
        quantize, multiply = flashinfer.fp4_quantize, flashinfer.mm_fp4

        def theirs() -> torch.Tensor:
            hidden = x
            for weight, weight_scale, alpha, input_scale in layers:
                a, a_scale = quantize(hidden, input_scale)
                hidden = multiply(
                    a, weight.t(), a_scale, weight_scale.t(), alpha, x.dtype, backend="cutlass"
                )
            return hidden

        listed.append(_contender(names.STACK_THEIRS, "flashinfer", lambda: theirs))
    return listed


def _contender(name: str, family: str, make: Callable[[], Callable[[], Any]]) -> Contender:
    return Contender(name, family, make, calls=names.STACK_LAYERS, results=1)
