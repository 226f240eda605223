"""The frame of a drawing: names on the left, the time along the rest.

The names keep their width, and what happened takes all the width there is. Positions along the time
are in percent, so that text keeps its size on any screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aot.build_report import words
from aot.build_report.timeline import ticks

HEIGHT: Final = 22
"""Of the line with the times, in pixels."""

_NAMES_WIDTH: Final = 76


@dataclass(frozen=True)
class Axis:
    """The time axis; `whole` is the seconds that it shows."""

    whole: float

    def lines(self, top: float, bottom: float) -> str:
        """Draw a line for each tick."""
        return "".join(
            f'<line class="grid" x1="{x}%" x2="{x}%" y1="{top:g}" y2="{bottom:g}"/>'
            for x in map(self._place, ticks(self.whole))
        )

    def labels(self, baseline: float) -> str:
        """Write the time at each tick; narrow screens leave out every second one."""
        times = enumerate(ticks(self.whole))
        return "".join(self._label(index, time, baseline) for index, time in times)

    def _label(self, index: int, time: float, baseline: float) -> str:
        x = self._place(time)
        anchor = "start" if index == 0 else "end" if x > 97 else "middle"
        odd = ' class="odd"' if index % 2 else ""
        return (
            f'<text{odd} x="{x}%" y="{baseline:g}" text-anchor="{anchor}">{words.tick(time)}</text>'
        )

    def _place(self, time: float) -> float:
        return round(time / self.whole * 100, 3)


def named(y: float, text: str) -> str:
    """Write a name on the left."""
    return f'<text x="100%" dx="-8" y="{y:g}" text-anchor="end">{text}</text>'


def at(x: float, y: float, drawing: str) -> str:
    """Put a drawing whose middle is its origin to a place: percent along the time, and pixels."""
    return f'<svg class="over" x="{x}%" y="{y:g}" width="1" height="1">{drawing}</svg>'


def framed(names: str, body: str, height: float) -> str:
    """Put the two parts beside each other."""
    return (
        f'<svg class="names" width="{_NAMES_WIDTH}" height="{height:g}">{names}</svg>\n'
        f'<svg class="plot" width="100%" height="{height:g}">{body}</svg>\n'
    )
