"""The contenders of ``fp4_quantize``: torch, fp4aot and FlashInfer on one input."""

from __future__ import annotations

import functools
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
NAME = "fp4_quantize"


@dataclass(frozen=True)
class Problem:
    """One input, and buffers of the results' shapes."""

    x: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def draw(cls, rows: int, columns: int, seed: int = 0) -> Problem:
        """Gaussian values, and the global scale that uses the whole range."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        x = torch.randn(rows, columns, generator=generator, device="cuda").to(torch.bfloat16)
        return cls(x, (448 * 6 / x.float().abs().max()).reshape(1))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Poisoned outputs for the ``out`` form."""
        values, block_scales = torch.ops.fp4aot.fp4_quantize.default(self.x, self.scale)
        return {
            "values": torch.full_like(values, 0xA5),
            "block_scales": torch.full_like(block_scales, 0xA5),
        }

    def expected(self) -> list[torch.Tensor]:
        """What a call must return, from the ``out`` form into poisoned buffers."""
        buffers = self.buffers()
        torch.ops.fp4aot.fp4_quantize.out(self.x, self.scale, **buffers)
        return [buffers["values"], buffers["block_scales"]]


def contenders(problem: Problem, flashinfer: ModuleType | None) -> list[Contender]:
    """List all of them; FlashInfer's where it is given."""
    listed = [*_ours(problem), *_torch(problem)]
    if flashinfer is not None:
        listed += _theirs(problem, flashinfer)
    return listed


def _torch(problem: Problem) -> list[Contender]:
    x = problem.x
    other, out = torch.randn_like(x), torch.empty_like(x)
    shapes = [tuple(tensor.shape) for tensor in problem.expected()]

    def two_empty() -> None:
        torch.empty(shapes[0], dtype=torch.uint8, device=x.device)
        torch.empty(shapes[1], dtype=torch.uint8, device=x.device)

    return [
        Contender(
            names.ONE_KERNEL, "torch", lambda: lambda: torch.add(x, other, out=out), checked=False
        ),
        Contender(names.TWO_EMPTY, "torch", lambda: two_empty, checked=False),
    ]


def _ours(problem: Problem) -> list[Contender]:
    x, scale = problem.x, problem.scale
    overload = torch.ops.fp4aot.fp4_quantize.default
    out_overload = torch.ops.fp4aot.fp4_quantize.out

    def out() -> Callable[[], Any]:
        buffers = problem.buffers()
        values, block_scales = buffers.values()

        def call() -> tuple[torch.Tensor, torch.Tensor]:
            out_overload(x, scale, values=values, block_scales=block_scales)
            return values, block_scales

        return call

    def listed(name: str, make: Callable[[], Callable[[], Any]], calls: int = 1) -> Contender:
        return Contender(name.format(NAME), "fp4aot", make, calls)

    def reduced(count: int) -> Callable[[], Any]:
        return compiled(problem, count, "reduce-overhead")

    return [
        listed(names.OURS, lambda: lambda: fp4aot.fp4_quantize(x, scale)),
        listed(names.OURS_OVERLOAD, lambda: lambda: overload(x, scale)),
        listed(names.OURS_OUT, out),
        listed(names.OURS_COMPILED, lambda: compiled(problem, 1)),
        listed(names.OURS_COMPILED_CHAIN, lambda: compiled(problem, CHAIN), CHAIN),
        listed(names.OURS_REDUCED, lambda: reduced(1)),
        listed(names.OURS_REDUCED_CHAIN, lambda: reduced(CHAIN), CHAIN),
        listed(
            names.OURS_REPLAY, lambda: replayed(chain(1, lambda: fp4aot.fp4_quantize(x, scale)))
        ),
        listed(
            names.OURS_REPLAY_CHAIN,
            lambda: replayed(chain(CHAIN, lambda: fp4aot.fp4_quantize(x, scale))),
            CHAIN,
        ),
    ]


def compiled(problem: Problem, count: int, mode: str | None = None) -> Callable[[], Any]:
    """Compile a function of `count` calls, each on a copy of the input, or they would be merged."""
    inputs, scale = [problem.x.clone() for _ in range(count)], problem.scale

    def function(inputs: list[torch.Tensor], scale: torch.Tensor) -> Any:
        return [fp4aot.fp4_quantize(x, scale) for x in inputs]

    shape = "x".join(map(str, problem.x.shape))
    own = with_own_code(function, f"quantize_{count}_{shape}_{mode}")
    graph = torch.compile(own, fullgraph=True, dynamic=False, mode=mode)
    return lambda: graph(inputs, scale)


def _theirs(problem: Problem, flashinfer: ModuleType) -> list[Contender]:
    x, scale = problem.x, problem.scale
    public = flashinfer.fp4_quantize
    public(x, scale)  # loads its module
    capability = "".join(map(str, torch.cuda.get_device_capability(x.device)))
    inner = flashinfer.get_fp4_quantization_module(capability).fp4_quantize_sm100

    library, custom = registered(public)

    def compile_it() -> Callable[[], Any]:
        graph = torch.compile(public, fullgraph=True)
        return lambda: graph(x, scale)

    def listed(
        name: str, make: Callable[[], Callable[[], Any]], may_fail: bool = False
    ) -> Contender:
        return Contender(name.format(NAME), "flashinfer", make, may_fail=may_fail)

    return [
        listed(
            names.THEIRS_INNER,
            lambda: lambda: inner(x, scale, 16, False, True, False, False, True, 0),
        ),
        listed(names.THEIRS, lambda: lambda: public(x, scale)),
        listed(names.THEIRS_OP, lambda: lambda: torch.ops.flashinfer.fp4_quantize(x, scale)),
        listed(names.THEIRS_LIBRARY, lambda: lambda: library(x, scale)),
        listed(names.THEIRS_CUSTOM, lambda: lambda: custom(x, scale)),
        listed(names.THEIRS_COMPILED, compile_it, may_fail=True),
    ]


@functools.cache
def registered(public: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Put a Python function behind `torch.library`, in the two ways that there are."""
    # It undoes its registrations when it is collected: it goes with the function that uses it.
    library = torch.library.Library("fp4aot_benchmarks", "DEF")
    library.define("fp4_quantize(Tensor input, Tensor? scale) -> (Tensor, Tensor)")
    library.impl("fp4_quantize", public, "CUDA")

    @torch.library.custom_op("fp4aot_benchmarks_custom::fp4_quantize", mutates_args=())
    def custom(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return public(x, scale)

    custom.library = library
    return torch.ops.fp4aot_benchmarks.fp4_quantize, custom
