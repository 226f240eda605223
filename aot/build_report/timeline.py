"""Where the bars of the timeline lie, in percent of its width, and the ticks of its axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from aot.compile.record import BuildRecord, JobRecord

_NARROWEST: Final = 0.15
"""A bar that is narrower could not be seen: it is widened where there is room beside it."""

_TICKS_AT_MOST: Final = 8
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
)


@dataclass(frozen=True)
class Bar:
    """One job's last attempt.

    Parameters
    ----------
    number
        The job's place in the plan.
    job
        The job.
    left, right
        In percent of the width.
    """

    number: int
    job: JobRecord
    left: float
    right: float

    @property
    def width(self) -> float:
        """In percent of the width."""
        return round(self.right - self.left, 4)


@dataclass(frozen=True)
class Lane:
    """What one worker did, in the order of time."""

    worker: int
    bars: tuple[Bar, ...]


def span(record: BuildRecord) -> float:
    """Return how many seconds the axis shows: all of the build, and never nothing."""
    times = [record.seconds, *(time for time, _ in record.samples)]
    times += [time for job in record.jobs for time in (job.start, job.end) if time is not None]
    return max(times) or 1.0


def lanes(record: BuildRecord) -> tuple[Lane, ...]:
    """Return a lane for each worker that ran something, and for those below it."""
    whole = span(record)
    found: dict[int, list[Bar]] = {}
    for number, job in enumerate(record.jobs):
        if job.worker is not None and job.start is not None:
            # Without an end it was still running when the record was made.
            end = whole if job.end is None else job.end
            left, right = (_percent(time, whole) for time in (job.start, end))
            found.setdefault(job.worker, []).append(Bar(number, job, left, max(left, right)))
    last = max(found, default=-1)
    return tuple(Lane(worker, _widened(found.get(worker, []))) for worker in range(last + 1))


def _percent(time: float, whole: float) -> float:
    return round(min(max(time / whole, 0.0), 1.0) * 100, 4)


def _widened(bars: list[Bar]) -> tuple[Bar, ...]:
    """Make narrow bars visible, without covering a neighbour."""
    ordered = sorted(bars, key=lambda bar: (bar.left, bar.right))
    result: list[Bar] = []
    ends = [*(bar.left for bar in ordered), 100.0][1:]
    for bar, end in zip(ordered, ends, strict=True):
        right = max(bar.right, round(min(bar.left + _NARROWEST, end), 4))
        begin = result[-1].right if result else 0.0
        left = min(bar.left, round(max(right - _NARROWEST, begin), 4))
        result.append(replace(bar, left=left, right=right))
    return tuple(result)


def ticks(whole: float) -> tuple[float, ...]:
    """Return the times of the axis that are marked: round ones, a few, from 0."""
    step = next((step for step in _STEPS if whole / step <= _TICKS_AT_MOST), None)
    if step is None:
        step = _DAY * (int(whole / _DAY / _TICKS_AT_MOST) + 1)
    # Tenths are made of whole numbers: 3 * 0.1 is not 0.3.
    return tuple(round(index * step, 6) for index in range(int(whole / step) + 1))
