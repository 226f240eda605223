"""Run checks one after the other, and keep what each printed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aot.release_check.checks import Check
from aot.release_check.elsewhere import Elsewhere

_SHOWN_LINES: Final = 15


@dataclass(frozen=True)
class Outcome:
    """How a check ended.

    Parameters
    ----------
    check
        The check.
    command
        What was run.
    exit_code
        Of the command; None when it did not start.
    seconds
        How long it took.
    output
        The end of what it printed.
    """

    check: Check
    command: tuple[str, ...]
    exit_code: int | None
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        """Whether its command ended well."""
        return self.exit_code == 0


@dataclass(frozen=True)
class Summary:
    """How a release stands: checks that were run, were not asked for, and cannot be run here."""

    outcomes: tuple[Outcome, ...]
    left_out: tuple[Check, ...]
    elsewhere: tuple[Elsewhere, ...]

    @property
    def passed(self) -> bool:
        """Whether all that was run passed, and something was."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines."""
        return {
            "passed": self.passed,
            "checks": [
                {
                    "name": outcome.check.name,
                    "shows": outcome.check.shows,
                    "command": list(outcome.command),
                    "passed": outcome.passed,
                    "exit_code": outcome.exit_code,
                    "seconds": round(outcome.seconds, 1),
                    "output": "" if outcome.passed else outcome.output,
                }
                for outcome in self.outcomes
            ],
            "left_out": [check.name for check in self.left_out],
            "not_run_here": [vars(item) for item in self.elsewhere],
        }


def run_checks(
    checks: Iterable[Check], folder: Path, tag: str, tell: Callable[[str], None] = lambda _: None
) -> tuple[Outcome, ...]:
    """Run all checks, also those behind one that failed: the list is for a person to work through.

    Parameters
    ----------
    checks
        In this order.
    folder
        The checkout.
    tag
        The release's tag.
    tell
        Is told the name of each check before it runs.
    """
    outcomes = []
    for check in checks:
        tell(check.name)
        outcomes.append(_run(check, folder, tag))
    return tuple(outcomes)


def _run(check: Check, folder: Path, tag: str) -> Outcome:
    command = check.command_for(tag)
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as cause:
        return Outcome(check, command, None, time.monotonic() - start, str(cause))
    tail = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
    return Outcome(check, command, done.returncode, time.monotonic() - start, tail)
