"""Show a report to a person or to a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aot.audit.findings import Finding, shortened
from aot.audit.library import LibraryReport
from aot.audit.wheel import WheelReport
from aot.errors import AuditError

Report = LibraryReport | WheelReport

__all__ = ["Finding", "Report", "as_json", "print_report", "require_passed"]


def as_json(report: Report) -> dict[str, Any]:
    """Turn a report into what `json.dumps` takes, with ``"passed"`` added."""
    data: dict[str, Any] = _plain(report)
    return {"passed": report.passed, **data}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def print_report(report: Report, console: Console) -> None:
    """Print one line a library and one a module and target, and each finding."""
    libraries = report.libraries if isinstance(report, WheelReport) else (report,)
    table = Table(title=f"Audit of {report.name}", title_justify="left")
    for heading in ("Library", "Size", "Images", "PTX", "Needs"):
        table.add_column(heading, overflow="fold")
    for library in libraries:
        table.add_row(
            library.name,
            f"{library.size / 1e6:.1f} MB",
            _counts(library.images),
            _counts(library.ptx),
            ", ".join(library.needed),
        )
    console.print(table)
    for library in libraries:
        if library.modules:
            console.print(_machine_code(library))
    for library in libraries:
        symbols = shortened(library.c_library_symbols)
        console.print(
            f"{library.name} needs C library {library.c_library or 'none'}: {symbols}",
            markup=False,
            highlight=False,
        )
    if isinstance(report, WheelReport):
        console.print(f"Runs from: {report.platform}", highlight=False)
    for finding in report.findings:
        # Not markup: a symbol may hold brackets.
        console.print(
            f"{finding.severity}: {finding.where} {finding.what}", markup=False, highlight=False
        )
    console.print("Audit passed" if report.passed else "Audit failed")


def _machine_code(library: LibraryReport) -> Table:
    table = Table(title=f"Machine code of {library.name}", title_justify="left")
    for heading in ("Module", "Target", "Images", "Holds"):
        table.add_column(heading, overflow="fold")
    for one in library.modules:
        holds = " ".join(one.instructions)
        table.add_row(one.module, one.architecture, str(one.images), holds)
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{target} x {count}" for target, count in counts.items()) or "none"


def require_passed(report: Report) -> None:
    """Stop when the audit failed.

    Raises
    ------
    AuditError
        With every finding that is an error.
    """
    if report.passed:
        return
    errors = "\n".join(
        f"  {finding.where} {finding.what}"
        for finding in report.findings
        if finding.severity == "error"
    )
    raise AuditError(f"{report.name} is not what its plan says:\n{errors}")
