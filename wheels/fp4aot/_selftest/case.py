"""One call of one operator, and what random values look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fp4aot.operators.structured import Operator


@dataclass(frozen=True)
class Case:
    """One call of one operator.

    Parameters
    ----------
    reference
        The operator in plain PyTorch, which the result must equal.
    variant
        Formats, layouts and shapes, for the report.
    arguments
        Positional arguments, on the CPU.
    tie_tolerance
        Share of bytes that may differ: a GPU's approximate reciprocal decides some ties otherwise.
    devices
        ``"any"`` or ``"cpu"``.
    largest_error
        Where results are sums of what ties may change: how large the difference from the reference
        may be, as a share of the reference's Frobenius norm. None where elements are compared.
    writes_all
        Whether every byte of the buffers is written. Else what is left keeps what they held, and
        the functional form has zeros there.
    """

    reference: Operator
    variant: str
    arguments: tuple[Any, ...]
    tie_tolerance: float = 0.0
    devices: str = "any"
    writes_all: bool = True
    largest_error: float | None = None

    @property
    def operator(self) -> str:
        """The operator's name."""
        return self.reference.name


def blocks(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Gaussian values whose blocks of 16 differ in magnitude by up to 2**8."""
    values = torch.randn(*shape, generator=generator)
    magnitudes = torch.exp2(
        torch.randint(-4, 5, (*shape[:-1], shape[-1] // 16), generator=generator)
    )
    return values * magnitudes.repeat_interleave(16, dim=-1)
