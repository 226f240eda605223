"""Tables of what was measured, from the reports in docs/measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from _site.page import Page
from _site.source import ROOT, table

_REPORT = "docs/measurements/h200-lowered/benchmarks.json"
_OTHER = "docs/measurements/h200-lowered/benchmarks-other-machine.json"
_BUILD_TIME = "docs/measurements/build_time.json"
_BLANK = "\N{NO-BREAK SPACE}"  # a number stays with its unit


def _read(path: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return data


def speeds(_: Sequence[str]) -> Page:
    """Write the speeds to reach, and what two machines said of them."""
    here, there = (_read(path)["targets"] for path in (_REPORT, _OTHER))
    elsewhere = {target["name"]: target for target in there}
    rows = [
        (
            target["name"],
            f"≤{_BLANK}{_with_unit(target['limit'], target['unit'])}",
            _verdict(target),
            _verdict(elsewhere.get(target["name"])),
        )
        for target in here
    ]
    head = ("ratio or time", "to reach", "an H200", "another H200")
    return Page(table(head, rows), (_REPORT, _OTHER))


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.3g}{_BLANK}{'×' if unit == 'x' else unit}"  # noqa: RUF001 (it is meant)


def _verdict(target: dict[str, Any] | None) -> str:
    if target is None or target["value"] is None:
        return "not measured"
    value = _with_unit(target["value"], target["unit"])
    return f"{value}, {'reached' if target['reached'] else '**not reached**'}"


def host_times(_: Sequence[str]) -> Page:
    """Write every median with its quartiles."""
    report = _read(_REPORT)
    lines = []
    for group in dict.fromkeys(one["group"] for one in report["measurements"]):
        rows = [
            (
                one["contender"],
                f"{one['median']:.3g} {one['unit']}",
                f"{one['q1']:.3g} to {one['q3']:.3g}",
            )
            for one in report["measurements"]
            if one["group"] == group
        ]
        lines += [f"### {group}", "", table(("", "median", "quartiles"), rows)]
    return Page("\n".join(lines), (_REPORT,))


def build_time(_: Sequence[str]) -> Page:
    """Write what a build took beside FlashInfer's own."""
    report = _read(_BUILD_TIME)
    rows = [
        (one["module"], f"{one['ours']:.0f} s", f"{one['theirs']:.0f} s") for one in report["rows"]
    ]
    whole = f"whole build, {report['jobs']} compilers at once"
    rows.append((whole, f"{report['ours']:.0f} s", f"{report['theirs']:.0f} s"))
    head = (f"preset {report['preset']}, cold", "fp4aot", "FlashInfer's own ahead-of-time build")
    return Page(table(head, rows), (_BUILD_TIME,))
