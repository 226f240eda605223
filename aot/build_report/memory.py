"""The curve of memory over time, in percent of its width and height."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aot.build_report.timeline import span
from aot.compile.record import BuildRecord

_POINTS_AT_MOST: Final = 800
_HEADROOM: Final = 1.15
"""Above the highest line: its label stands there."""

_FAR_LIMIT: Final = 4
"""A limit so many times the peak is not drawn: the curve would lie on the ground."""

_GRID_LINES_AT_MOST: Final = 4
_HIGHEST_MARK: Final = 0.95
"""Of the height: a number above would be cut off."""


@dataclass(frozen=True)
class Curve:
    """Memory over time.

    Parameters
    ----------
    points
        Time and memory, each from 0 to 100; memory counts upwards.
    peak
        Its highest point.
    limit
        Height of the limit; None where it lies far above.
    grid
        Megabytes that are marked, and their heights.
    """

    points: tuple[tuple[float, float], ...]
    peak: tuple[float, float]
    limit: float | None
    grid: tuple[tuple[int, float], ...]


def curve(record: BuildRecord) -> Curve | None:
    """Return the curve; None where nothing was measured."""
    peak = record.peak_megabytes
    if not peak:
        return None
    near = 0 < record.limit_megabytes <= _FAR_LIMIT * peak
    top = max(peak, record.limit_megabytes if near else 0) * _HEADROOM
    whole = span(record)

    def place(sample: tuple[float, float]) -> tuple[float, float]:
        time, megabytes = sample
        return (
            round(min(max(time / whole, 0.0), 1.0) * 100, 3),
            round(max(megabytes, 0) / top * 100, 3),
        )

    samples = sorted(record.samples)
    return Curve(
        points=tuple(map(place, thinned(samples))),
        peak=place(max(samples, key=lambda sample: sample[1])),
        limit=round(record.limit_megabytes / top * 100, 3) if near else None,
        grid=tuple((mark, round(mark / top * 100, 3)) for mark in _grid(top)),
    )


def thinned(samples: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Leave out what could not be seen; of samples side by side, the highest stays.

    Parameters
    ----------
    samples
        In the order of time.
    """
    if len(samples) <= _POINTS_AT_MOST:
        return tuple(samples)
    inner = samples[1:-1]
    side = -(-len(inner) // (_POINTS_AT_MOST - 2))
    parts = (inner[index : index + side] for index in range(0, len(inner), side))
    highest = (max(part, key=lambda sample: sample[1]) for part in parts)
    return (samples[0], *highest, samples[-1])


def _grid(top: float) -> tuple[int, ...]:
    """Return round amounts of memory below the top."""
    step, factors = 100, (2.0, 2.5, 2.0)  # 100, 200, 500, 1000, ...
    index = 0
    while top / step > _GRID_LINES_AT_MOST + 1:
        step = int(step * factors[index % 3])
        index += 1
    return tuple(range(0, int(top * _HIGHEST_MARK) + 1, step))
