"""The tables of a run, in plain text: nothing but Python is expected of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.results import Measurement, Report
from benchmarks.targets import Verdict

LOWERED = "lowered: numerics, not Blackwell speed"


def render(report: Report, verdicts: Iterable[Verdict]) -> str:
    """Return all tables of a run."""
    parts = [_head(report)]
    parts += [_group(report, group) for group in report.groups()]
    if report.kernels:
        rows = [
            (one["group"], one["family"], f"{one['kernels_per_call']:g}", " ".join(one["names"]))
            for one in report.kernels
        ]
        parts.append(columns("Kernels that the GPU ran for a call", rows, "llrl"))
    rows = [
        (v.target.name, _value(v), f"≤ {v.target.limit:g} {v.unit}".rstrip(), v.word)
        for v in verdicts
    ]
    parts.append(columns("Speed to reach", rows, "lrrl"))
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    wheel, machine = report.wheel, report.machine
    beside = f", FlashInfer {report.flashinfer['flashinfer']} beside" if report.flashinfer else ""
    label = f"  [{LOWERED}]" if report.is_lowered else ""
    if absent := (report.flashinfer or {}).get("absent_dependencies"):
        label += (
            f"\nFlashInfer runs without {', '.join(absent)}, which it declares as needed: its "
            "import takes longer with them."
        )
    return (
        f"fp4aot {wheel['version']}{beside}; {machine['device']}, driver {machine['driver']}, "
        f"torch {machine['torch']}, {report.date}{label}"
    )


def _group(report: Report, group: str) -> str:
    members = [one for one in report.measurements if one.group == group]
    base = next((one for one in members if one.family == "fp4aot"), None)
    unit = members[0].unit if members else ""
    rows = [("", f"median {unit}", "quartiles", "ratio")]
    rows += [_row(one, base) for one in members]
    lines = [columns(group, rows, "lrrr")]
    for one in report.failures:
        if one.group == group:
            lines.append(f"  {one.contender} failed: {one.reason.strip().splitlines()[0][:100]}")
    return "\n".join(lines)


def _row(one: Measurement, base: Measurement | None) -> tuple[str, str, str, str]:
    ratio = f"{one.median / base.median:.2f}" if base else ""
    return (one.contender, number(one.median), f"{number(one.q1)} to {number(one.q3)}", ratio)


def number(value: float) -> str:
    """Write a time with three significant digits, and no fewer than its whole ones."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _value(verdict: Verdict) -> str:
    return "" if verdict.value is None else f"{verdict.value:.3g} {verdict.unit}".rstrip()


def columns(title: str, rows: Sequence[Sequence[str]], align: str) -> str:
    """Lay out rows below a title; `align` has "l" or "r" for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    lines = [title]
    for row in rows:
        cells = [
            text.ljust(width) if side == "l" else text.rjust(width)
            for text, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
