"""The lanes of the workers as SVG, with a bar for each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aot.build_report import axis, words
from aot.build_report.axis import Axis
from aot.build_report.colours import DEFINITIONS, filled
from aot.build_report.figures import OUTCOMES, outcome
from aot.build_report.marks import cross, number
from aot.build_report.timeline import Bar, Lane

# Names in bars: what fits is reckoned for the narrowest page that shows them.
_PIXELS_FOR_BARS: Final = 840
_PIXELS_OF_A_LETTER: Final = 6.8
_FEWEST_LETTERS: Final = 10
_LOWEST_BAR_WITH_NAME: Final = 18
_THIN: Final = 1.0  # percent: an edge between two bars would take most of them on a narrow screen
_SAYS_NOTHING: Final = ".generated"
"""FlashInfer ends the names of some rendered sources so."""


def lane_height(lanes: int) -> int:
    """Return the height of a lane in pixels: many are drawn low, so that all fit on a screen."""
    return 36 if lanes <= 4 else 24 if lanes <= 16 else 15


def lanes_drawing(lanes: Sequence[Lane], time: Axis, colours: Mapping[str, str]) -> str:
    """Draw a lane for each worker, with a bar for each job.

    Parameters
    ----------
    lanes, time
        What is drawn.
    colours
        Classes of the bars, by group.
    """
    high = lane_height(len(lanes))
    gap = 3 if high > 30 else 2
    height = axis.HEIGHT + high * len(lanes) + 2
    tops = [axis.HEIGHT + high * index for index in range(len(lanes))]
    names = "".join(
        axis.named(top + high / 2 + 4, f'<tspan class="wide">worker </tspan>{lane.worker}')
        for top, lane in zip(tops, lanes, strict=True)
    )
    body = [
        DEFINITIONS,
        time.labels(axis.HEIGHT - 9),
        *(f'<rect class="lane" y="{top + 1}" width="100%" height="{high - 2}"/>' for top in tops),
        time.lines(axis.HEIGHT - 5, height),
    ]
    for top, lane in zip(tops, lanes, strict=True):
        body += [_bar(bar, top + gap, high - 2 * gap, colours[bar.job.group]) for bar in lane.bars]
        # Above all bars of the lane: a mark is wider than a narrow bar.
        body += [_mark(bar, top + high / 2, high) for bar in lane.bars if _is_marked(bar)]
    return axis.framed(names, "".join(body), height)


def _bar(bar: Bar, top: float, height: float, classes: str) -> str:
    what = outcome(bar.job)
    if what in {"cache", "not finished"}:
        classes += f" {what.replace(' ', '-')}"
    if bar.width < _THIN:
        classes += " thin"
    return (
        f'<a href="#unit-{bar.number}" tabindex="-1"><svg class="bar {classes}" x="{bar.left}%" '
        f'y="{top:g}" width="{bar.width}%" height="{height:g}">'
        f"{filled(classes, _tooltip(bar))}{_name(bar, height)}</svg></a>"
    )


def _name(bar: Bar, height: float) -> str:
    """Write the end of the unit's name, as much as fits: that is where names differ."""
    if height < _LOWEST_BAR_WITH_NAME or _is_marked(bar):
        return ""
    room = int((bar.width / 100 * _PIXELS_FOR_BARS - 9) / _PIXELS_OF_A_LETTER)
    unit = (bar.job.name.partition("/")[2] or bar.job.name).removesuffix(_SAYS_NOTHING)
    if room < min(_FEWEST_LETTERS, len(unit)):
        return ""
    shown = unit if len(unit) <= room else f"\N{HORIZONTAL ELLIPSIS}{unit[1 - room :]}"
    return f'<text x="5" y="{height / 2 + 4:g}">{words.safe(shown)}</text>'


def _tooltip(bar: Bar) -> str:
    """Describe a job in a few lines."""
    job = bar.job
    lines = [job.name, f"{OUTCOMES[outcome(job)]}, worker {job.worker}"]
    if job.seconds is None:
        lines.append(f"started after {words.duration(job.start)}")
    else:
        lines.append(
            f"{words.duration(job.seconds)} ({words.duration(job.expected_seconds)} expected), "
            f"from {words.duration(job.start)} to {words.duration(job.end)}"
        )
    lines.append(
        f"memory {words.size(job.peak_megabytes)} ({words.size(job.expected_megabytes)} expected)"
    )
    if job.attempts > 1:
        lines.append(f"started {job.attempts} times; this is the last")
    if job.failure is not None:
        lines.append(job.failure)
    return words.safe("\n".join(lines))


def _is_marked(bar: Bar) -> bool:
    return bar.job.failure is not None or bar.job.attempts > 1


def _mark(bar: Bar, middle: float, lane: int) -> str:
    radius = 7 if lane > 20 else 5.5
    failed = bar.job.failure is not None
    drawing = cross(radius) if failed else number(bar.job.attempts, radius)
    return axis.at(round((bar.left + bar.right) / 2, 3), middle, drawing)
