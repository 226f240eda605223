"""The device as the measurement sees it. Nothing here knows CUDA: everything is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Timer = Callable[[Callable[[], object], int], list[float]]
"""Takes what to run and how often; returns microseconds, one for each run, with a cold cache."""


class Call(Protocol):
    """`torch.ops.fp4aot.mm_fp4.out` or `torch.ops.fp4aot.cutlass_fused_moe.out`."""

    def __call__(self, *arguments: object, out: torch.Tensor, **options: object) -> object:
        """Write the result to `out`."""


@dataclass(frozen=True)
class Operands:
    """Random arguments of one call.

    Parameters
    ----------
    arguments
        The tensors that the operator takes first, in its order.
    out
        A buffer for the result.
    options
        What follows, by name, but for tactics.
    """

    arguments: tuple[torch.Tensor, ...]
    out: torch.Tensor
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """The device as the measurement sees it.

    Parameters
    ----------
    call, call_moe
        The operators.
    timer
        The clock.
    synchronize
        Waits for the device, and raises when it is lost.
    device
        Where operands are made.
    """

    call: Call
    call_moe: Call
    timer: Timer
    synchronize: Callable[[], object]
    device: torch.device
