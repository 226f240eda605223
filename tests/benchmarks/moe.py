"""The contenders of ``cutlass_fused_moe``: host time of a mixture of experts."""

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
NAME = "cutlass_fused_moe"
_SCALE_RANGE = 448.0 * 6.0
# Rows are added up in order: every call gives the same bits, and the checks can be exact.
_FIXED: dict[str, Any] = {"use_fused_finalize": False}


@dataclass(frozen=True)
class Problem:
    """Experts as FlashInfer's callers hold them (packed values eight bytes at a time), and tokens.

    Parameters
    ----------
    arguments
        The tensors before the output dtype.
    scales
        The six scales.
    """

    arguments: tuple[torch.Tensor, ...]
    scales: list[torch.Tensor]

    @classmethod
    def draw(cls, tokens: int, seed: int = 0) -> Problem:
        """Gaussian weights and tokens."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        size, experts = names.MOE_SIZE, names.MOE_EXPERTS

        def gaussian(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda")

        weights, block_scales, factors = [], [], []
        for rows in (2 * size, size):
            values = (gaussian(experts, rows, size) / size**0.5).to(torch.bfloat16)
            scale = (_SCALE_RANGE / values.float().abs().max()).reshape(1)
            parts = [fp4aot.fp4_quantize(matrix, scale) for matrix in values]
            weights.append(torch.stack([part[0] for part in parts]).view(torch.int64))
            shape = (experts, rows, size // 16)
            stacked = torch.stack([part[1].view(torch.uint8) for part in parts]).reshape(shape)
            block_scales.append(stacked.view(torch.int32))
            factors.append(scale)
        x = gaussian(tokens, size).to(torch.bfloat16)
        scores = gaussian(tokens, experts).softmax(dim=-1)
        top, selected = scores.topk(names.MOE_TOP_K)
        scales = []
        for largest, block, factor in zip((6.0, 16.0), block_scales, factors, strict=True):
            own = torch.full((), _SCALE_RANGE / largest, device="cuda")
            scales += [own, block, (1 / (own * factor)).expand(experts).contiguous()]
        return cls((x, selected.to(torch.int32), top, *weights), scales)

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.arguments[0].shape[0]

    def expected(self) -> list[torch.Tensor]:
        """What a call must return, from the ``out`` form into a poisoned buffer."""
        out = self.buffer()
        torch.ops.fp4aot.cutlass_fused_moe.out(*self.arguments, *self.scales, **_FIXED, out=out)
        return [out]

    def buffer(self) -> torch.Tensor:
        """A poisoned output."""
        return torch.full_like(self.arguments[0], float("nan"))

    def workspace(self, size_of: Callable[..., int]) -> torch.Tensor:
        """Memory for the calls, of the size that a package asks for."""
        size = size_of(
            self.tokens,
            *(names.MOE_SIZE, names.MOE_SIZE, names.MOE_EXPERTS, names.MOE_TOP_K),
            x_dtype=torch.bfloat16,
            weight_dtype=torch.int64,
            **_FIXED,
        )
        return torch.empty(size, dtype=torch.uint8, device="cuda")


def runs_here() -> bool:
    """Tell whether the wheel holds the operator for this device."""
    capability = torch.cuda.get_device_capability(0)
    return any(target.runs_on(capability) for target in fp4aot._MANIFEST.targets_of(NAME))


def contenders(problem: Problem, flashinfer: ModuleType | None) -> list[Contender]:
    """Ways to apply the experts; FlashInfer's where it is given."""
    listed = _ours(problem)
    if flashinfer is not None:
        listed += _theirs(problem, flashinfer)
    return listed


def _ours(problem: Problem) -> list[Contender]:
    arguments, scales, dtype = problem.arguments, problem.scales, torch.bfloat16
    overload = torch.ops.fp4aot.cutlass_fused_moe.default
    out_overload = torch.ops.fp4aot.cutlass_fused_moe.out
    out = problem.buffer()
    workspace = problem.workspace(fp4aot.cutlass_fused_moe_workspace_size)

    def ours() -> torch.Tensor:
        return fp4aot.cutlass_fused_moe(*arguments, dtype, scales, **_FIXED)

    def with_buffers() -> torch.Tensor:
        return fp4aot.cutlass_fused_moe(
            *arguments, dtype, scales, **_FIXED, output=out, workspace_buffer=workspace
        )

    def into() -> torch.Tensor:
        out_overload(*arguments, *scales, **_FIXED, workspace_buffer=workspace, out=out)
        return out

    def compiled() -> Callable[[], Any]:
        def function(x: torch.Tensor) -> torch.Tensor:
            return fp4aot.cutlass_fused_moe(x, *arguments[1:], dtype, scales, **_FIXED)

        own = with_own_code(function, f"experts_{problem.tokens}")
        graph = torch.compile(own, fullgraph=True, dynamic=False)
        return lambda: graph(arguments[0])

    return [
        _contender(names.OURS, "fp4aot", lambda: ours),
        _contender(names.OURS_BUFFERS, "fp4aot", lambda: with_buffers),
        _contender(
            names.OURS_OVERLOAD,
            "fp4aot",
            lambda: lambda: overload(*arguments, *scales, dtype, **_FIXED),
        ),
        _contender(names.OURS_OUT, "fp4aot", lambda: into),
        _contender(names.OURS_COMPILED, "fp4aot", compiled),
        _contender(
            names.OURS_REPLAY_CHAIN, "fp4aot", lambda: replayed(chain(CHAIN, ours)), calls=CHAIN
        ),
    ]


def _theirs(problem: Problem, flashinfer: ModuleType) -> list[Contender]:
    arguments, scales, dtype = problem.arguments, problem.scales, torch.bfloat16
    function = flashinfer.cutlass_fused_moe
    out = problem.buffer()
    workspace = problem.workspace(flashinfer.fused_moe.cutlass_fused_moe_workspace_size)

    def call(**keywords: Any) -> Callable[[], Any]:
        # The first of four is the output; the others are for a mode that is not asked for.
        return lambda: function(*arguments, dtype, scales, **_FIXED, **keywords)[0]

    return [
        _contender(names.THEIRS, "flashinfer", call),
        _contender(
            names.THEIRS_BUFFERS,
            "flashinfer",
            lambda: call(output=out, workspace_buffer=workspace),
        ),
    ]


def _contender(
    name: str, family: str, make: Callable[[], Callable[[], Any]], calls: int = 1
) -> Contender:
    return Contender(name.format(NAME), family, make, calls)
