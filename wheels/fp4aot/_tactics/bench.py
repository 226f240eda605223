"""The device as the measurement sees it. Nothing here knows CUDA: everything is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

Timer = Callable[[Callable[[], object], int], list[float]]
"""Takes what to run and how often; returns microseconds, one for each run, with a cold cache."""


class Call(Protocol):
    """The signature of `torch.ops.fp4aot.mm_fp4.out`."""

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor | None,
        tactic: int,
        *,
        out: torch.Tensor,
    ) -> object:
        """Write the product to `out`."""


class MoeCall(Protocol):
    """`torch.ops.fp4aot.cutlass_fused_moe.out`."""

    def __call__(self, *arguments: object, out: torch.Tensor, **options: object) -> object:
        """Write the mixture to `out`."""


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
    call_moe: MoeCall
    timer: Timer
    synchronize: Callable[[], object]
    device: torch.device
