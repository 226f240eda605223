"""Turns the records of a run into a table for people, JSON for machines, and an exit status."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpusuite.records import DID_NOT_RUN, FAILED, NOT_APPLICABLE, PASSED

LOWERED = "lowered: numerics, not Blackwell speed"
EXIT_PASSED, EXIT_FAILED, EXIT_MISSING = 0, 1, 3

# pytest's exit status where it found no test.
_NO_TESTS = 5

# Capabilities whose FP4 GEMM computes with tcgen05 in tensor memory.
_TCGEN05 = ((10, 0), (10, 3), (11, 0))


@dataclass(frozen=True)
class Test:
    """One test: what became of it, and what it compared."""

    name: str
    subject: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    __test__ = False  # no test of pytest's


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes
    ----------
    environment
        Wheel, devices, versions, date.
    tests
        In the order in which they ran.
    crashed
        The test in which the process died, or a sentence; empty where it ended by itself.
    status
        pytest's own exit status, before what did not run changed it.
    """

    environment: Mapping[str, Any]
    tests: tuple[Test, ...]
    crashed: str
    status: int

    def count(self, outcome: str) -> int:
        return sum(test.outcome == outcome for test in self.tests)

    @property
    def is_lowered(self) -> bool:
        return bool(self.environment.get("wheel", {}).get("lowered"))

    def exit_status(self, allow_missing: bool = False) -> int:
        """0: everything ran and passed. 1: a failure, a crash or no test at all. 3: gaps alone."""
        ran = self.count(PASSED) + self.count(FAILED)
        if self.count(FAILED) or self.crashed or self.status != 0:
            return EXIT_FAILED
        if not self.tests or (ran == 0 and self.count(DID_NOT_RUN) == 0):
            return EXIT_FAILED
        return EXIT_MISSING if self.count(DID_NOT_RUN) and not allow_missing else EXIT_PASSED


def read(lines: Iterable[str]) -> Report:
    """Read the records of a run, however it ended."""
    environment: dict[str, Any] = {}
    tests: list[Test] = []
    running: dict[str, str] = {}
    status: int | None = None
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the process died while it wrote this line
        event = record.pop("event")
        if event == "environment":
            environment = record
        elif event == "start":
            running[record["name"]] = record["subject"]
        elif event == "test":
            running.pop(record["name"], None)
            tests.append(Test(**record))
        elif event == "finish":
            status = record["status"]
    crashed = ""
    if status is None:
        crashed = ", ".join(running) or "the test process ended before it finished"
        tests += [
            Test(name, subject, FAILED, reason="the test process died in this test")
            for name, subject in running.items()
        ]
    elif status not in (0, 1, _NO_TESTS):
        crashed = f"pytest ended early, with status {status}"
    return Report(environment, tuple(tests), crashed, -1 if status is None else status)


def cannot_be_shown(report: Report) -> list[str]:
    """List what no test of this run can show, on these devices with this wheel."""
    capabilities = [tuple(device["capability"]) for device in report.environment.get("devices", ())]
    silicon = not report.is_lowered and any(major >= 10 for major, _ in capabilities)
    absent = [
        f"{major}.{minor}"
        for major, minor in _TCGEN05
        if report.is_lowered or (major, minor) not in capabilities
    ]
    found = []
    if absent:
        found.append(
            f"the tcgen05/TMEM FP4 GEMMs of compute capability {', '.join(absent)}: they ran on no "
            "device here, and cannot be lowered"
        )
    if not silicon:
        found.append("agreement with Blackwell silicon: no Blackwell device ran these kernels")
    found.append("Blackwell speed: nothing here measures it")
    return found


def summary(report: Report) -> str:
    """Say in one line how it went."""
    parts = [
        f"{report.count(outcome)} {outcome}"
        for outcome in (PASSED, FAILED, DID_NOT_RUN, NOT_APPLICABLE)
    ]
    return f"{', '.join(parts)} in {sum(test.seconds for test in report.tests):.0f} s"


def to_json(report: Report, allow_missing: bool = False) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        **report.environment,
        "label": LOWERED if report.is_lowered else "",
        "exit_status": report.exit_status(allow_missing),
        "summary": summary(report),
        "crashed": report.crashed,
        "subjects": [asdict(row) for row in rows(report)],
        "did_not_run": _named(report, DID_NOT_RUN),
        "not_applicable": _named(report, NOT_APPLICABLE),
        "cannot_be_shown_here": cannot_be_shown(report),
        "tests": [asdict(test) for test in report.tests],
    }


def _named(report: Report, outcome: str) -> list[dict[str, Any]]:
    """List tests by why they did not run."""
    by_reason: dict[str, list[str]] = {}
    for test in report.tests:
        if test.outcome == outcome:
            by_reason.setdefault(test.reason, []).append(test.name)
    return [{"reason": reason, "tests": names} for reason, names in by_reason.items()]


@dataclass(frozen=True)
class Row:
    """What the table says of one operator or subject."""

    subject: str
    run: int
    passed: int
    failed: int
    did_not_run: int
    not_applicable: int
    compared: tuple[str, ...]


def rows(report: Report) -> list[Row]:
    """Sum up the tests of each subject, in the order in which subjects came up."""
    by_subject: dict[str, list[Test]] = {}
    for test in report.tests:
        by_subject.setdefault(test.subject, []).append(test)
    return [_row(subject, tests) for subject, tests in by_subject.items()]


def _row(subject: str, tests: list[Test]) -> Row:
    counts = {
        outcome: sum(test.outcome == outcome for test in tests)
        for outcome in (PASSED, FAILED, DID_NOT_RUN, NOT_APPLICABLE)
    }
    return Row(
        subject,
        counts[PASSED] + counts[FAILED],
        counts[PASSED],
        counts[FAILED],
        counts[DID_NOT_RUN],
        counts[NOT_APPLICABLE],
        tuple(_compared(tests)),
    )


def _compared(tests: list[Test]) -> list[str]:
    totals: dict[str, list[int]] = {}
    errors: dict[str, float] = {}
    for test in tests:
        for against, counts in test.details.get("comparisons", {}).items():
            total = totals.setdefault(against, [0, 0])
            total[0] += counts["compared"]
            total[1] += counts["differing"]
        for against, error in test.details.get("largest_errors", {}).items():
            errors[against] = max(errors.get(against, 0.0), error)
    lines = [
        f"{against}: {compared:,}, {differing:,} differ"
        for against, (compared, differing) in totals.items()
    ]
    lines += [f"{against}: largest error {error:.2g}" for against, error in errors.items()]
    return lines


def render(report: Report) -> str:
    """Write the run as a table, with everything that it does not show."""
    label = [LOWERED] if report.is_lowered else []
    heads = ("subject", "run", "passed", "failed", "did not run", "n/a", "what was compared")
    cells = [heads]
    for row in rows(report):
        counts = (row.run, row.passed, row.failed, row.did_not_run, row.not_applicable)
        first, *rest = row.compared or ("",)
        cells.append((row.subject, *map(str, counts), first))
        cells += [("", "", "", "", "", "", line) for line in rest]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads) - 1)]
    lines = [_line(line, widths) for line in cells]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) + len(heads[-1])))
    return "\n".join(
        [
            *label,
            *_environment_lines(report.environment),
            "",
            *lines,
            *_failures(report),
            *_reasons("DID NOT RUN", _named(report, DID_NOT_RUN)),
            *_reasons("Not applicable", _named(report, NOT_APPLICABLE)),
            "",
            "Cannot be shown by any test here:",
            *(f"  {text}" for text in cannot_be_shown(report)),
            "",
            *([f"CRASHED: {report.crashed}"] if report.crashed else []),
            summary(report),
            *label,
        ]
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    subject, *counts, compared = cells
    numbers = [cell.rjust(width) for cell, width in zip(counts, widths[1:], strict=True)]
    return "  ".join([subject.ljust(widths[0]), *numbers, compared]).rstrip()


def _environment_lines(environment: Mapping[str, Any]) -> list[str]:
    if not environment:
        return ["the test process wrote nothing about its environment"]
    wheel = environment["wheel"]
    devices = [
        "cuda:{index} {name} ({capability[0]}.{capability[1]})".format(**device)
        for device in environment["devices"]
    ]
    return [
        f"fp4aot {wheel['version']}, preset {wheel['preset']}, plan {wheel['plan_hash'][:12]}, "
        f"library {wheel['library_sha256'][:12]}",
        f"Python {environment['python']}, torch {environment['torch']} (CUDA "
        f"{environment['torch_cuda']}), driver {environment['driver']} (CUDA "
        f"{environment['driver_cuda']}), {environment['date']}",
        *(devices or ["no GPU"]),
    ]


def _failures(report: Report) -> list[str]:
    failed = [test for test in report.tests if test.outcome == FAILED]
    lines = []
    for test in failed:
        lines += ["", f"FAILED {test.name}", *(f"  {line}" for line in test.reason.splitlines())]
    return lines


def _reasons(title: str, named: list[dict[str, Any]]) -> list[str]:
    if not named:
        return []
    lines = ["", f"{title}:"]
    for entry in named:
        names = entry["tests"]
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        lines.append(f"  {entry['reason']} ({shown})")
    return lines
