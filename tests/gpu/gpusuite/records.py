"""What a run of the suite writes down, one JSON object a line, so that a crash loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED = "passed", "failed"
DID_NOT_RUN, NOT_APPLICABLE = "did not run", "not applicable"

# How a test's skip says which of the two it is.
DID_NOT_RUN_PREFIX = "DID NOT RUN: "
NOT_APPLICABLE_PREFIX = "not applicable: "

_MOST_FAILURES = 12


class Writer:
    """Appends records to a file, each complete on the disk before the next test starts."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def outcome_of_skip(reason: str) -> tuple[str, str]:
    """Tell what a skipped test is. One that says neither counts as missing."""
    if reason.startswith(NOT_APPLICABLE_PREFIX):
        return NOT_APPLICABLE, reason.removeprefix(NOT_APPLICABLE_PREFIX)
    return DID_NOT_RUN, reason.removeprefix(DID_NOT_RUN_PREFIX)


@dataclass
class Details:
    """What one test compared, for the table and the JSON, and which of its cases failed.

    Attributes
    ----------
    comparisons
        By what it was compared with: how many elements (codes, scales), and how many differed.
    errors
        Largest error, by what it was measured against.
    notes
        Anything else worth a line.
    cases, failures
        How many cases the test went through, and what went wrong in which.
    """

    comparisons: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cases: int = 0
    failures: list[str] = field(default_factory=list)

    def compared(self, against: str, count: int, differing: int = 0) -> None:
        total = self.comparisons.setdefault(against, [0, 0])
        total[0] += count
        total[1] += differing

    def error(self, against: str, value: float) -> None:
        self.errors[against] = max(self.errors.get(against, 0.0), value)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def case(self, label: str) -> Iterator[None]:
        """Go on with the next case when one fails; the test fails at its end."""
        self.cases += 1
        try:
            yield
        except (AssertionError, RuntimeError) as error:
            first = (str(error) or type(error).__name__).strip()
            self.failures.append(f"{label}: {first[:1500]}")
            if len(self.failures) >= _MOST_FAILURES or "CUDA error" in first:
                self.raise_failures()

    def raise_failures(self) -> None:
        if self.failures:
            failed = "\n".join(self.failures)
            raise AssertionError(f"{len(self.failures)} of {self.cases} cases failed\n{failed}")

    def to_json(self) -> dict[str, Any]:
        return {
            "comparisons": {
                against: {"compared": compared, "differing": differing}
                for against, (compared, differing) in self.comparisons.items()
            },
            "largest_errors": self.errors,
            "notes": self.notes,
            "cases": self.cases,
        }
