"""Random inputs on the GPU, by seed: distinct magnitudes in every block, never zeros."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from fp4aot._selftest.case import Case
from fp4aot._selftest.inputs import cases

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


def name_of(value: Any) -> str:
    """Name a dtype or a layout in a test's id."""
    return str(value).removeprefix("torch.")


def values(
    *shape: int, dtype: torch.dtype = BF16, seed: int = 0, device: str = "cuda"
) -> torch.Tensor:
    """Gaussian values whose blocks of 16 differ in magnitude by up to 2**8."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, device=device)
    columns = -(-shape[-1] // 16)
    powers = torch.randint(-4, 5, (*shape[:-1], columns), generator=generator, device=device)
    magnitudes = torch.exp2(powers).repeat_interleave(16, dim=-1)[..., : shape[-1]]
    return (drawn * magnitudes).to(dtype)


def global_scale(tensor: torch.Tensor, e4m3_max: float = 448.0) -> torch.Tensor:
    """Return a scale that uses nearly the whole range, and whose mantissa is not short.

    Under a scale of few bits many scaled values lie exactly on a tie, where correctly rounded
    reciprocals and the GPU's choose differently: up to half a percent of them.
    """
    largest = tensor.float().abs().max() if tensor.numel() else torch.ones((), device=tensor.device)
    return (e4m3_max * 6 / (1.0173 * largest)).reshape(1)


def special(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Values with NaN, infinities, zeros, huge and subnormal blocks among them."""
    drawn = values(rows, columns, dtype=torch.float32, seed=seed)
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    limits = torch.finfo(dtype)

    def some(share: float, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device="cuda") < share

    blocks = drawn.view(rows, columns // 16, 16)
    shape = blocks.shape[:2]
    blocks[some(0.04, *shape)] *= limits.max / 64  # huge, some of them beyond the range
    blocks[some(0.04, *shape)] *= limits.smallest_normal / 64  # subnormal and underflowing
    blocks[some(0.02, *shape)] = 0.0
    blocks[some(0.02, *shape)] = -0.0
    blocks[some(0.02, *shape)] = float("nan")
    drawn[some(0.01, rows, columns)] = float("nan")
    if dtype != FP8:
        drawn[some(0.01, rows, columns)] = float("inf")
        drawn[some(0.01, rows, columns)] = float("-inf")
    drawn[some(0.02, rows, columns)] = 0.0
    if dtype == FP8:
        drawn = torch.where(drawn.isnan(), drawn, drawn.clamp(-448, 448))
    return drawn.to(dtype)


@lru_cache(maxsize=4)
def _cases(seed: int) -> tuple[Case, ...]:
    return tuple(cases(seed))


def calls(operator: str, seed: int = 0) -> list[Case]:
    """Return the self-test's calls of an operator, their tensors on the CPU."""
    return [case for case in _cases(seed) if case.operator == operator]


def arguments(operator: str, seed: int = 0, device: str = "cuda") -> tuple[Any, ...]:
    """Return the arguments of one good call of an operator."""
    return moved(calls(operator, seed)[0].arguments, device)


def moved(arguments: tuple[Any, ...], device: str = "cuda") -> tuple[Any, ...]:
    """Copy the tensors among some arguments to a device, strides and all."""
    return tuple(
        a.to(device) if isinstance(a, torch.Tensor) else a  # keeps strides of dense tensors
        for a in arguments
    )
