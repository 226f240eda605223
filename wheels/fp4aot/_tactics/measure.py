"""Measures the tactics of one shape: are they right, how long do they take, which is the best.

Nothing here knows CUDA: what is called, and what takes the time, are given.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from fp4aot._layouts import SfLayout, scale_shape
from fp4aot._tactics.buckets import start_of
from fp4aot._tactics.shapes import Shape
from fp4aot._tactics.table import DEFAULT_TACTIC, Entry

ROUNDS = 5
"""The tactics take turns, so that a clock that drifts slows all of them alike."""
REPETITIONS = 5
"""Calls of a tactic in a round."""
WORTHWHILE = 0.99
"""The default stays unless another tactic takes less than this part of its time."""

# Correct kernels differ in the order of float32 additions and in the last bit of the result. A
# hundredth of the results' root mean square is far above what that order gives, and far below what
# one tile of K that is left out gives.
_ABSOLUTE = 0.01
_CHUNK = 2**24


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


Timer = Callable[[Callable[[], object], int], list[float]]
"""Takes what to run and how often; returns microseconds, one for each run, with a cold cache."""


@dataclass(frozen=True)
class Bench:
    """The device as the measurement sees it.

    Parameters
    ----------
    call
        The operator.
    timer
        The clock.
    synchronize
        Waits for the device, and raises when it is lost.
    device
        Where operands are made.
    """

    call: Call
    timer: Timer
    synchronize: Callable[[], object]
    device: torch.device


@dataclass(frozen=True)
class Case:
    """What one measurement is of: a weight's shape, an output dtype, and the bucket of M."""

    shape: Shape
    out_dtype: str
    bucket: int

    def __str__(self) -> str:
        return f"{self.shape} M={self.bucket} {self.out_dtype}"


@dataclass(frozen=True)
class Measurement:
    """What was found for one case.

    Parameters
    ----------
    case
        Which.
    microseconds
        Median time of each tactic that gave the right result.
    excluded
        The other tactics, and why.
    """

    case: Case
    microseconds: dict[int, float]
    excluded: dict[int, str]

    @property
    def default(self) -> float:
        """Median time of the default tactic."""
        return self.microseconds[DEFAULT_TACTIC]

    @property
    def tactic(self) -> int:
        """The fastest tactic, or the default where no other is clearly faster."""
        best = min(self.microseconds, key=lambda tactic: (self.microseconds[tactic], tactic))
        faster = self.microseconds[best] < self.default * WORTHWHILE
        return best if faster else DEFAULT_TACTIC

    @property
    def best(self) -> float:
        """Median time of the chosen tactic."""
        return self.microseconds[self.tactic]

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


class CaseError(Exception):
    """One case cannot be measured; the others can."""


class DeviceLostError(Exception):
    """The device answers nothing any more. Nothing else can be measured in this process."""


@dataclass(frozen=True)
class Operands:
    """Random arguments of one call.

    Parameters
    ----------
    a, b, a_descale, b_descale, alpha
        As `mm_fp4` takes them: `b` and its scales are transposed views.
    out
        A buffer for the result.
    """

    a: torch.Tensor
    b: torch.Tensor
    a_descale: torch.Tensor
    b_descale: torch.Tensor
    alpha: torch.Tensor
    out: torch.Tensor


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

    return Operands(
        a=random(0, 256, m, k // 2),
        b=random(0, 256, n, k // 2).t(),
        a_descale=scales(m),
        b_descale=scales(n).t(),
        # The products' root mean square is about 30; with this, that of the results is about 1.
        alpha=torch.full((1,), 1 / (30 * k**0.5), dtype=torch.float32, device=device),
        out=torch.empty(m, n, dtype=getattr(torch, case.out_dtype), device=device),
    )


def measure(case: Case, tactics: Sequence[int], bench: Bench) -> Measurement:
    """Check and measure the default and the given tactics.

    Parameters
    ----------
    case
        What to measure.
    tactics
        Numbers of tactics; the default is measured in any case.
    bench
        The device.

    Raises
    ------
    CaseError
        When the default tactic fails, or the memory is not enough.
    DeviceLostError
        When the device is lost.
    """
    try:
        operands = random_operands(case, bench.device)
        reference = _reference(operands, bench)
    except RuntimeError as error:
        _raise_if_lost(bench, DEFAULT_TACTIC, case, error)
        raise CaseError(_first_line(error)) from error
    excluded: dict[int, str] = {}
    good = [DEFAULT_TACTIC]
    for tactic in tactics:
        if tactic == DEFAULT_TACTIC:
            continue
        reason = _check(tactic, operands, reference, bench, case)
        if reason is None:
            good.append(tactic)
        else:
            excluded[tactic] = reason
    del reference
    return Measurement(case, _times(good, operands, bench, case), excluded)


def disagreement(result: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Compare two results of the same product; None when they agree.

    Parameters
    ----------
    result, reference
        `[M, N]` of the same dtype. The reference is finite.
    """
    tolerance = 2 * torch.finfo(reference.dtype).eps
    rows = max(1, _CHUNK // reference.shape[1])
    different = 0
    largest = 0.0
    # By parts: the float32 copies of a large result need memory that there may not be.
    for start in range(0, reference.shape[0], rows):
        got, expected = result[start : start + rows], reference[start : start + rows]
        truth = expected.float()
        limit = truth.abs() * tolerance + truth.square().mean().sqrt() * _ABSOLUTE
        difference = (got.float() - truth).abs()
        # Written so that NaN, which is not within anything, counts.
        different += int((~(difference <= limit)).sum())
        largest = max(largest, float(difference.nan_to_num(nan=float("inf")).max()))
    if different == 0:
        return None
    return (
        f"{different} of {reference.numel()} results differ from the default tactic's, "
        f"by up to {largest:.3g}"
    )


def _reference(operands: Operands, bench: Bench) -> torch.Tensor:
    reference = _result(DEFAULT_TACTIC, operands, bench).clone()
    if not bool(reference.isfinite().all()):
        raise CaseError("the default tactic's result has NaN or infinity, or was not written")
    return reference


def _check(
    tactic: int, operands: Operands, reference: torch.Tensor, bench: Bench, case: Case
) -> str | None:
    try:
        return disagreement(_result(tactic, operands, bench), reference)
    except RuntimeError as error:
        _raise_if_lost(bench, tactic, case, error)
        return _first_line(error)


def _times(
    tactics: Sequence[int], operands: Operands, bench: Bench, case: Case
) -> dict[int, float]:
    times: dict[int, list[float]] = {tactic: [] for tactic in tactics}
    for _ in range(ROUNDS):
        for tactic in tactics:
            try:
                found = bench.timer(partial(_run, tactic, operands, bench), REPETITIONS)
            except RuntimeError as error:
                _raise_if_lost(bench, tactic, case, error)
                raise CaseError(f"tactic {tactic}: {_first_line(error)}") from error
            times[tactic] += found
    return {tactic: statistics.median(found) for tactic, found in times.items()}


def _result(tactic: int, operands: Operands, bench: Bench) -> torch.Tensor:
    # A kernel that writes nothing must not be taken for the one before it.
    operands.out.fill_(float("nan"))
    _run(tactic, operands, bench)
    bench.synchronize()
    return operands.out


def _run(tactic: int, operands: Operands, bench: Bench) -> None:
    bench.call(
        operands.a,
        operands.b,
        operands.a_descale,
        operands.b_descale,
        operands.alpha,
        tactic,
        out=operands.out,
    )


def _raise_if_lost(bench: Bench, tactic: int, case: Case, error: RuntimeError) -> None:
    """After an error: a device whose kernel crashed refuses everything, another goes on."""
    try:
        bench.synchronize()
    except RuntimeError as lost:
        raise DeviceLostError(
            f"tactic {tactic} of {case} crashed the device ({_first_line(error)}); what was "
            f"measured before is kept. Run again with --exclude {tactic}"
        ) from lost


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
