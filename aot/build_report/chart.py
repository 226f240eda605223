"""The section with the timeline, the memory below it on the same axis, and their legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aot.build_report import words
from aot.build_report.area import memory_drawing
from aot.build_report.axis import Axis
from aot.build_report.bars import lanes_drawing
from aot.build_report.colours import swatch
from aot.build_report.figures import outcome
from aot.build_report.marks import cross, key, number
from aot.build_report.memory import curve
from aot.build_report.timeline import Lane, lanes, span
from aot.compile.record import BuildRecord

_CROWDED: Final = ((150, "crowded"), (60, "full"))
"""Bars in a lane from which on the drawing is wider than a narrow screen, and is scrolled there."""


def chart(record: BuildRecord, colours: Mapping[str, str]) -> str:
    """Write the section.

    Parameters
    ----------
    record
        What happened.
    colours
        Classes of each group.
    """
    found = lanes(record)
    if not found:
        return (
            "<section><h2>Timeline</h2>\n<p>No compiler ran in this build: "
            "there is no timeline and no memory to show.</p></section>\n"
        )
    time = Axis(span(record))
    most = max(len(lane.bars) for lane in found)
    width = next((name for least, name in _CROWDED if most >= least), "")
    return (
        f"<section><h2>Timeline</h2>\n{_legend(found, colours)}"
        '<div class="scroll" tabindex="0" role="region" aria-label="Timeline and memory; '
        'the table of all units below says the same in text">\n'
        f'<div class="chart {width}">\n<p class="caption">Units by worker</p>\n'
        f"{lanes_drawing(found, time, colours)}{_memory(record, time)}</div></div>\n"
        f"{_notes(record, found, is_wide=bool(width))}</section>\n"
    )


def _memory(record: BuildRecord, time: Axis) -> str:
    found = curve(record)
    if found is None:
        return '<p class="caption">Memory was not measured in this build.</p>\n'
    limit = f"limit {words.size(record.limit_megabytes)}"
    heading = "Memory of all compilers together"
    if found.limit is None:
        heading += f" ({limit}, above the drawing)"
    peak = f"peak {words.size(record.peak_megabytes)}"
    return f'<p class="caption">{heading}</p>\n{memory_drawing(found, time, peak, limit)}'


def _legend(found: Sequence[Lane], colours: Mapping[str, str]) -> str:
    jobs = [bar.job for lane in found for bar in lane.bars]
    present = {job.group for job in jobs}
    items = [
        f"{swatch(classes)}{words.safe(name)}"
        for name, classes in colours.items()
        if name in present
    ]
    outcomes = {outcome(job) for job in jobs}
    if "cache" in outcomes:
        items.append(f"{swatch('plain cache')}from the cache")
    if "not finished" in outcomes:
        items.append(f"{swatch('plain not-finished')}not finished")
    if any(job.attempts > 1 and job.failure is None for job in jobs):
        items.append(f"{key(number(2, 7))}started again, so many times in all")
    if "failed" in outcomes:
        items.append(f"{key(cross(7))}failed")
    return f'<ul class="legend" role="list">{"".join(f"<li>{one}</li>" for one in items)}</ul>\n'


def _notes(record: BuildRecord, found: Sequence[Lane], *, is_wide: bool) -> str:
    notes = ["A bar leads to its unit in the table of all units."]
    if is_wide:
        notes.insert(0, '<span class="narrow">Scroll the timeline sideways. </span>')
    idle = record.workers - len(found)
    if idle > 0:
        last = record.workers - 1
        which = f"Worker {last}" if idle == 1 else f"Workers {len(found)} to {last}"
        notes.append(f"{which} ran nothing.")
    if any(job.attempts > 1 for job in record.jobs):
        notes.append("Of a unit that was started again, the last attempt alone is shown.")
    return f'<p class="soft">{" ".join(notes)}</p>\n'
