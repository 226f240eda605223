"""Measures the tactics of one product: are they right, how long do they take, which is the best.

Nothing here knows CUDA or an operator: what is called, and what takes the time, are given.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from fp4aot._tactics.bench import Bench
from fp4aot._tactics.entries import DEFAULT_TACTIC

ROUNDS = 5
"""The tactics take turns, so that a clock that drifts slows all of them alike."""
REPETITIONS = 5
"""Calls of a tactic in a round."""
WORTHWHILE = 0.99
"""The default stays unless another tactic takes less than this part of its time."""
_CHUNK = 2**24


@dataclass(frozen=True)
class Trial:
    """A product whose tactics are tried.

    Parameters
    ----------
    name
        For messages.
    run
        Runs a tactic, which writes to `out`.
    out
        The result.
    disagreement
        Says what differs between a result and the default tactic's; None where they agree.
    exclude
        The option that leaves a tactic out.
    """

    name: str
    run: Callable[[int], object]
    out: torch.Tensor
    disagreement: Callable[[torch.Tensor, torch.Tensor], str | None]
    exclude: str


@dataclass(frozen=True)
class Times:
    """What a trial found.

    Parameters
    ----------
    microseconds
        Median time of each tactic that gave the right result.
    excluded
        The other tactics, and why.
    """

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


class CaseError(Exception):
    """One case cannot be measured; the others can."""


class DeviceLostError(Exception):
    """The device answers nothing any more. Nothing else can be measured in this process."""


_Made = TypeVar("_Made")


def prepare(name: str, make: Callable[[], _Made], bench: Bench) -> _Made:
    """Make the operands of a case.

    Parameters
    ----------
    name
        Of the case.
    make
        Makes them.
    bench
        The device.

    Raises
    ------
    CaseError
        When the memory is not enough.
    DeviceLostError
        When the device is lost.
    """
    try:
        return make()
    except RuntimeError as error:
        try:
            bench.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(
                f"the device was lost before {name} ({first_line(error)}); what was measured "
                "before is kept"
            ) from lost
        raise CaseError(first_line(error)) from error


def try_all(trial: Trial, tactics: Sequence[int], bench: Bench) -> Times:
    """Check and measure the default and the given tactics.

    Parameters
    ----------
    trial
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
        reference = _reference(trial, bench)
    except RuntimeError as error:
        _raise_if_lost(trial, DEFAULT_TACTIC, bench, error)
        raise CaseError(first_line(error)) from error
    excluded: dict[int, str] = {}
    good = [DEFAULT_TACTIC]
    for tactic in tactics:
        if tactic == DEFAULT_TACTIC:
            continue
        reason = _check(trial, tactic, reference, bench)
        if reason is None:
            good.append(tactic)
        else:
            excluded[tactic] = reason
    del reference
    return Times(_times(trial, good, bench), excluded)


def result(trial: Trial, tactic: int, bench: Bench) -> torch.Tensor:
    """Return what a tactic writes; a kernel that writes nothing leaves NaN."""
    # It must not be taken for the one before it.
    trial.out.fill_(float("nan"))
    trial.run(tactic)
    bench.synchronize()
    return trial.out


Difference = tuple[torch.Tensor, torch.Tensor | float]
"""Magnitudes of differences, and their limits."""


def parts_of(matrix: torch.Tensor) -> list[slice]:
    """Divide rows: the float32 copies of a large result need memory that there may not be."""
    rows = max(1, _CHUNK // matrix.shape[1])
    return [slice(start, start + rows) for start in range(0, len(matrix), rows)]


def describe(differences: Iterable[Difference], results: str, unit: str = "") -> str | None:
    """Say how many results differ by more than their limit; None when there are none."""
    count, largest = 0, 0.0
    for difference, limit in differences:
        # Written so that NaN, which is not within anything, counts.
        count += int((~(difference <= limit)).sum())
        largest = max(largest, float(difference.nan_to_num(nan=float("inf")).max()))
    if count == 0:
        return None
    return f"{count} of {results} differ from the default tactic's, by up to {largest:.3g}{unit}"


def first_line(error: BaseException) -> str:
    """Return what an error says, shortly."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _reference(trial: Trial, bench: Bench) -> torch.Tensor:
    reference = result(trial, DEFAULT_TACTIC, bench).clone()
    if not bool(reference.isfinite().all()):
        raise CaseError("the default tactic's result has NaN or infinity, or was not written")
    return reference


def _check(trial: Trial, tactic: int, reference: torch.Tensor, bench: Bench) -> str | None:
    try:
        return trial.disagreement(result(trial, tactic, bench), reference)
    except RuntimeError as error:
        _raise_if_lost(trial, tactic, bench, error)
        return first_line(error)


def _times(trial: Trial, tactics: Sequence[int], bench: Bench) -> dict[int, float]:
    times: dict[int, list[float]] = {tactic: [] for tactic in tactics}
    for _ in range(ROUNDS):
        for tactic in tactics:
            try:
                found = bench.timer(partial(trial.run, tactic), REPETITIONS)
            except RuntimeError as error:
                _raise_if_lost(trial, tactic, bench, error)
                raise CaseError(f"tactic {tactic}: {first_line(error)}") from error
            times[tactic] += found
    return {tactic: statistics.median(found) for tactic, found in times.items()}


def _raise_if_lost(trial: Trial, tactic: int, bench: Bench, error: RuntimeError) -> None:
    """After an error: a device whose kernel crashed refuses everything, another goes on."""
    try:
        bench.synchronize()
    except RuntimeError as lost:
        raise DeviceLostError(
            f"tactic {tactic} of {trial.name} crashed the device ({first_line(error)}); what was "
            f"measured before is kept. Run again with {trial.exclude} {tactic}"
        ) from lost
