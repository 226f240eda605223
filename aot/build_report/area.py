"""The curve of memory over time as SVG."""

from __future__ import annotations

from typing import Final

from aot.build_report import axis, words
from aot.build_report.axis import Axis
from aot.build_report.memory import Curve

_HEIGHT: Final = 150
_NEAR_LIMIT: Final = 8  # percent of the height: the line would go through the label of the peak


def memory_drawing(curve: Curve, time: Axis, peak: str, limit: str) -> str:
    """Draw memory over time.

    Parameters
    ----------
    curve, time
        What is drawn.
    peak, limit
        What is written at the highest point and at the limit.
    """
    # The lowest number stands on its line, or it would be cut off.
    names = "".join(
        axis.named(_down(height) + (0 if height < 1 else 4), words.size(mark).replace(".0", ""))
        for mark, height in curve.grid
    )
    body = [
        *(_level("grid", height) for _, height in curve.grid),
        time.lines(0, _HEIGHT + 4),
        _filled(curve.points),
        time.labels(_HEIGHT + 17),
        *_limit(curve, limit),
        _peak(curve, peak),
    ]
    return axis.framed(names, "".join(body), _HEIGHT + axis.HEIGHT)


def _down(height: float) -> float:
    """Return the pixels from the top for percent from the ground."""
    return round((100 - height) / 100 * _HEIGHT, 2)


def _level(kind: str, height: float) -> str:
    y = _down(height)
    return f'<line class="{kind}" x1="0" x2="100%" y1="{y}" y2="{y}"/>'


def _filled(points: tuple[tuple[float, float], ...]) -> str:
    line = "L".join(f"{x:g} {100 - y:g}" for x, y in points)
    first, last = points[0][0], points[-1][0]
    return (
        f'<svg viewBox="0 0 100 100" width="100%" height="{_HEIGHT}" preserveAspectRatio="none">'
        f'<path class="area" d="M{first:g} 100L{line}L{last:g} 100Z"/>'
        f'<path class="curve" d="M{line}"/></svg>'
    )


def _is_right(curve: Curve) -> bool:
    return curve.peak[0] > 50


def _limit(curve: Curve, text: str) -> tuple[str, ...]:
    if curve.limit is None:
        return ()
    # On the other side than the label of the peak.
    side = 'x="4"' if _is_right(curve) else 'x="100%" text-anchor="end"'
    label = f'<text class="halo" {side} y="{_down(curve.limit) - 6:g}">{text}</text>'
    return _level("limit", curve.limit), label


def _peak(curve: Curve, text: str) -> str:
    x, y = curve.peak
    anchor, shift = ("end", -10) if _is_right(curve) else ("start", 10)
    below = 16 if curve.limit is not None and abs(curve.limit - y) < _NEAR_LIMIT else 4
    label = f'<text class="halo" x="{shift}" y="{below}" text-anchor="{anchor}">{text}</text>'
    return axis.at(x, _down(y), f'<circle class="peak" r="3.5"/>{label}')
