"""The contenders of ``mm_fp4`` and ``fp4_linear``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

import fp4aot
from benchmarks import names
from benchmarks.graphs import chain, replayed, with_own_code
from benchmarks.timing import Contender

CHAIN = 16
# FlashInfer has no function for the layer: its callers write these two.
_LAYER = names.THEIRS_LAYER


@dataclass(frozen=True)
class Problem:
    """A linear layer with an NVFP4 weight, its input, and both quantized."""

    x: torch.Tensor
    weight: torch.Tensor
    weight_scale: torch.Tensor
    input_global_scale: torch.Tensor
    alpha: torch.Tensor
    a: torch.Tensor
    a_scale: torch.Tensor
    bf16_weight: torch.Tensor

    @classmethod
    def draw(cls, m: int, size: int, seed: int = 0) -> Problem:
        """Gaussian input and weight."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        x, w = (
            torch.randn(rows, size, generator=generator, device="cuda").to(torch.bfloat16)
            for rows in (m, size)
        )
        x_scale, w_scale = ((448 * 6 / t.float().abs().max()).reshape(1) for t in (x, w))
        weight, weight_scale = fp4aot.fp4_quantize(w, w_scale)
        a, a_scale = fp4aot.fp4_quantize(x, x_scale)
        return cls(x, weight, weight_scale, x_scale, 1 / (x_scale * w_scale), a, a_scale, w)

    def expected(self) -> list[torch.Tensor]:
        """What a call must return, from the ``out`` form into a poisoned buffer."""
        out = self.buffer()
        torch.ops.fp4aot.mm_fp4.out(*self.factors(), out=out)
        return [out]

    def factors(self) -> tuple[torch.Tensor, ...]:
        """The first five arguments of ``mm_fp4``, as FlashInfer's callers pass them."""
        return self.a, self.weight.T, self.a_scale, self.weight_scale.T, self.alpha

    def buffer(self) -> torch.Tensor:
        """A poisoned output."""
        shape = self.x.shape[0], self.weight.shape[0]
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def gemm_contenders(problem: Problem, flashinfer: ModuleType | None) -> list[Contender]:
    """Ways to multiply two quantized matrices."""
    factors, dtype = problem.factors(), torch.bfloat16
    buffer = problem.buffer()
    overload, out_overload = torch.ops.fp4aot.mm_fp4.default, torch.ops.fp4aot.mm_fp4.out

    def out() -> torch.Tensor:
        out_overload(*factors, out=buffer)
        return buffer

    def multiply() -> torch.Tensor:
        return fp4aot.mm_fp4(*factors, dtype)

    listed = [
        _ours(names.OURS, "mm_fp4", lambda: multiply),
        _ours(names.OURS_OVERLOAD, "mm_fp4", lambda: lambda: overload(*factors, dtype)),
        _ours(names.OURS_OUT, "mm_fp4", lambda: out),
        _ours(names.OURS_REPLAY_CHAIN, "mm_fp4", lambda: replayed(chain(CHAIN, multiply)), CHAIN),
    ]
    if flashinfer is not None:
        theirs = flashinfer.mm_fp4

        def call(**keywords: Any) -> Callable[[], Any]:
            return lambda: theirs(*factors, dtype, **keywords)

        own = problem.buffer()
        listed += [
            _theirs(names.THEIRS, "mm_fp4", lambda: call(backend="cutlass")),
            _theirs(names.THEIRS_OUT, "mm_fp4", lambda: call(out=own, backend="cutlass")),
            _theirs(names.THEIRS_AUTO, "mm_fp4", lambda: call(backend="auto"), may_fail=True),
        ]
    return listed


def linear_contenders(problem: Problem, flashinfer: ModuleType | None) -> list[Contender]:
    """Ways to apply the layer."""
    x, weight = problem.x, problem.weight
    layer = (weight, problem.weight_scale, problem.alpha, problem.input_global_scale)

    def ours() -> torch.Tensor:
        return fp4aot.fp4_linear(x, *layer)

    def compiled() -> Callable[[], Any]:
        def function(x: torch.Tensor) -> torch.Tensor:
            return fp4aot.fp4_linear(x, *layer)

        own = with_own_code(function, f"linear_{x.shape[0]}_{weight.shape[0]}")
        graph = torch.compile(own, fullgraph=True, dynamic=False)
        return lambda: graph(x)

    listed = [
        _ours(names.OURS, "fp4_linear", lambda: ours),
        _ours(names.OURS_COMPILED, "fp4_linear", compiled),
        _ours(names.OURS_REPLAY_CHAIN, "fp4_linear", lambda: replayed(chain(CHAIN, ours)), CHAIN),
        Contender(
            "torch.nn.functional.linear, bfloat16",
            "torch",
            lambda: lambda: torch.nn.functional.linear(x, problem.bf16_weight),
            checked=False,
        ),
    ]
    if flashinfer is not None:
        quantize, multiply = flashinfer.fp4_quantize, flashinfer.mm_fp4
        transposed, scale = weight.T, problem.weight_scale.T

        def theirs(backend: str) -> Callable[[], Any]:
            def call() -> torch.Tensor:
                a, a_scale = quantize(x, problem.input_global_scale)
                return multiply(
                    a, transposed, a_scale, scale, problem.alpha, x.dtype, backend=backend
                )

            return call

        listed += [
            _theirs(names.THEIRS, _LAYER, lambda: theirs("cutlass")),
            _theirs(names.THEIRS_AUTO, _LAYER, lambda: theirs("auto"), may_fail=True),
        ]
    return listed


def _ours(
    name: str, function: str, make: Callable[[], Callable[[], Any]], calls: int = 1
) -> Contender:
    return Contender(name.format(function), "fp4aot", make, calls)


def _theirs(
    name: str, function: str, make: Callable[[], Callable[[], Any]], may_fail: bool = False
) -> Contender:
    return Contender(name.format(function), "flashinfer", make, may_fail=may_fail)
