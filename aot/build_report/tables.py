"""The tables of a build's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aot.build_report import words
from aot.build_report.colours import swatch
from aot.build_report.figures import OUTCOMES, Group, outcome, ratio
from aot.compile.record import JobRecord

_TOO_MUCH: Final = 1.25
"""A ratio from which on an estimate was far too low."""

_OBJECTS: Final = "Objects"
_SHARE: Final = "Share of the time"
_TEXT_COLUMNS: Final = {_OBJECTS, _SHARE}
_TEXT: Final = ' class="text"'


def slowest_table(jobs: Iterable[JobRecord], colours: Mapping[str, str]) -> str:
    """Write a table of jobs that ran: time and memory beside what was expected of them."""
    heads = ("Unit", "Time", "expected", "ratio", "Memory", "expected", "ratio")
    return _table(heads, (_slow_row(job, colours) for job in jobs))


def _slow_row(job: JobRecord, colours: Mapping[str, str]) -> str:
    what = outcome(job)
    note = "" if what == "compiled" else f' <span class="note">{OUTCOMES[what]}</span>'
    # What came from the cache was not compiled: its estimates say nothing about it.
    compared = what != "cache"
    time = ratio(job.seconds, job.expected_seconds) if compared else None
    memory = ratio(job.peak_megabytes, job.expected_megabytes) if compared else None
    return _row(
        _head(job.name, swatch(colours[job.group]), note),
        _cell("time", words.duration(job.seconds)),
        _cell("expected", words.duration(job.expected_seconds)),
        _ratio_cell(time),
        _cell("memory", words.size(job.peak_megabytes)),
        _cell("expected", words.size(job.expected_megabytes)),
        _ratio_cell(memory),
    )


def groups_table(groups: Sequence[Group], colours: Mapping[str, str]) -> str:
    """Write a table of the groups: how many units, the time of all, the largest memory."""
    heads = ("Group", "Units", _OBJECTS, "Time of all", _SHARE, "Largest memory")
    whole = sum(group.seconds or 0 for group in groups)
    return _table(heads, (_group_row(group, colours.get(group.name), whole) for group in groups))


def _group_row(group: Group, classes: str | None, whole: float) -> str:
    return _row(
        _head(group.name, swatch(classes) if classes else ""),
        _cell("units", str(group.units)),
        f"<td{_TEXT}>{words.counts_in_words(group.counts)}</td>",
        _cell("time of all", words.duration(group.seconds)),
        f"<td{_TEXT}>{_share(group.seconds / whole)}</td>"
        if group.seconds is not None and whole
        else "<td></td>",
        _cell("largest memory", words.size(group.peak_megabytes)),
    )


def _share(share: float) -> str:
    return (
        '<span class="share"><svg width="112" height="10" aria-hidden="true">'
        '<rect class="lane" width="100%" height="100%"/>'
        f'<rect class="part" width="{share * 100:.2f}%" height="100%"/></svg>'
        f"{words.percent(share)}</span>"
    )


def units_table(jobs: Iterable[JobRecord]) -> str:
    """Write a table of all jobs; the bars of the timeline refer to its rows."""
    heads = ("Unit", _OBJECTS, "Worker", "Started after", "Time", "Memory", "Starts")
    return _table(heads, (_unit_row(number, job) for number, job in enumerate(jobs)))


def _unit_row(number: int, job: JobRecord) -> str:
    what = outcome(job)
    mark = ' class="text bad"' if what == "failed" else _TEXT
    return _row(
        _head(job.name),
        f"<td{mark}>{OUTCOMES[what]}</td>",
        _cell("worker", words.MISSING if job.worker is None else str(job.worker)),
        _cell("started after", words.duration(job.start)),
        _cell("time", words.duration(job.seconds)),
        _cell("memory", words.size(job.peak_megabytes)),
        _cell("starts", str(job.attempts)),
        identifier=f"unit-{number}",
    )


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    cells = "".join(
        f'<th scope="col"{_TEXT if head in _TEXT_COLUMNS else ""}>{head}</th>' for head in heads
    )
    return f"<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n"


def _row(*cells: str, identifier: str = "") -> str:
    start = f'<tr id="{identifier}">' if identifier else "<tr>"
    return f"{start}{''.join(cells)}</tr>\n"


def _head(name: str, mark: str = "", note: str = "") -> str:
    """Begin a row; the name beside the square may break anywhere, the square stays with it."""
    shown = f"<span>{words.safe(name)}{note}</span>"
    return f'<th scope="row"><span class="name">{mark}{shown}</span></th>'


def _cell(label: str, text: str) -> str:
    return f'<td data-label="{label}">{text}</td>'


def _ratio_cell(value: float | None) -> str:
    kind = ' class="high"' if value is not None and value >= _TOO_MUCH else ""
    return f'<td data-label="ratio"{kind}>{words.factor(value)}</td>'
