"""Measures the tactics of `mm_fp4` for one shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fp4aot._layouts import SfLayout, scale_shape
from fp4aot._tactics.bench import Bench, Operands
from fp4aot._tactics.buckets import start_of
from fp4aot._tactics.entries import Entry
from fp4aot._tactics.shapes import Shape
from fp4aot._tactics.trials import Difference, Times, Trial, describe, parts_of, prepare, try_all

# Correct kernels differ in the order of float32 additions and in the last bit of the result. A
# hundredth of the results' root mean square is far above what that order gives, and far below what
# one tile of K that is left out gives.
_ABSOLUTE = 0.01


@dataclass(frozen=True)
class Case:
    """What one measurement is of: a weight's shape, an output dtype, and the bucket of M."""

    shape: Shape
    out_dtype: str
    bucket: int

    def __str__(self) -> str:
        return f"{self.shape} M={self.bucket} {self.out_dtype}"


@dataclass(frozen=True)
class Measurement(Times):
    """What was found for one case.

    Parameters
    ----------
    case
        Which.
    """

    case: Case

    def entry(self) -> Entry:
        """Return the table's entry."""
        return Entry(
            n=self.case.shape.n,
            k=self.case.shape.k,
            out_dtype=self.case.out_dtype,
            m=start_of(self.case.bucket),
            tactic=self.tactic,
            measured_m=self.case.bucket,
            microseconds=round(self.best, 3),
            default_microseconds=round(self.default, 3),
        )


def random_operands(case: Case, device: torch.device) -> Operands:
    """Make operands, the same for each run: every FP4 value, and scales from 0.5 to 3.75.

    Random, because zeros take less power and so higher clocks than real data.
    """
    generator = torch.Generator(device).manual_seed(0)
    m, n, k = case.bucket, case.shape.n, case.shape.k

    def random(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, dtype=torch.uint8, device=device, generator=generator)

    def scales(rows: int) -> torch.Tensor:
        # Bytes of E4M3: 0x30 is 0.5, 0x47 is 3.75.
        return random(0x30, 0x48, *scale_shape(rows, k // 16, SfLayout.layout_128x4))

    a, b = random(0, 256, m, k // 2), random(0, 256, n, k // 2)
    # The products' root mean square is about 30; with this, that of the results is about 1.
    alpha = torch.full((1,), 1 / (30 * k**0.5), dtype=torch.float32, device=device)
    out = torch.empty(m, n, dtype=getattr(torch, case.out_dtype), device=device)
    return Operands((a, b.t(), scales(m), scales(n).t(), alpha), out)


def measure(case: Case, tactics: Sequence[int], bench: Bench) -> Measurement:
    """Check and measure the default and the given tactics.

    Parameters
    ----------
    case
        What to measure.
    tactics, bench
        As in `try_all`.

    Raises
    ------
    CaseError, DeviceLostError
        As in `try_all`.
    """
    trial = prepare(str(case), lambda: make_trial(case, bench), bench)
    times = try_all(trial, tactics, bench)
    return Measurement(times.microseconds, times.excluded, case)


def make_trial(case: Case, bench: Bench) -> Trial:
    """Make the operands of a case."""
    operands = random_operands(case, bench.device)

    def run(tactic: int) -> None:
        bench.call(*operands.arguments, tactic=tactic, out=operands.out)

    return Trial(str(case), run, operands.out, disagreement, exclude="--exclude")


def disagreement(result: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Compare two results of the same product; None when they agree.

    Parameters
    ----------
    result, reference
        `[M, N]` of the same dtype. The reference is finite.
    """
    tolerance = 2 * torch.finfo(reference.dtype).eps

    def differences() -> Iterator[Difference]:
        for part in parts_of(reference):
            truth = reference[part].float()
            limit = truth.abs() * tolerance + truth.square().mean().sqrt() * _ABSOLUTE
            yield (result[part].float() - truth).abs(), limit

    return describe(differences(), f"{reference.numel()} results")
