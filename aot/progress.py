"""What a person sees while ninja runs: units done, what is left, and when it will be over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

NINJA_STATUS = "[aot %f/%t] "
_LINE = re.compile(r"\[aot (?P<finished>\d+)/(?P<total>\d+)\] (?P<text>.*)")


@dataclass(frozen=True)
class Finished:
    """One step that ninja reports as finished."""

    finished: int
    total: int
    text: str


def parse_line(line: str) -> Finished | None:
    """Read one line of ninja's output; None when it is something else."""
    match = _LINE.match(line.strip())
    if match is None:
        return None
    return Finished(int(match["finished"]), int(match["total"]), match["text"])


class Estimate:
    """Seconds left, from the estimates of all steps.

    A build takes as long as its longest step, or as all steps together divided by the compilers at
    once. The estimates are for one machine: they are scaled once half of the work is finished.
    """

    def __init__(self, seconds: Mapping[str, int], jobs: int) -> None:
        self._left = dict(seconds)
        self._total = sum(seconds.values())
        self._makespan = max(self._total / jobs, max(seconds.values(), default=0))
        self._start = time.monotonic()

    def finish(self, text: str) -> None:
        """Take the unit that this step names off the list."""
        self._left.pop(text.removeprefix("compile "), None)

    def seconds_left(self) -> float:
        """Return the current estimate."""
        left = sum(self._left.values())
        if left == 0:
            return 0.0
        done = self._total - left
        elapsed = time.monotonic() - self._start
        if done >= self._total / 2:
            return elapsed / done * left
        return max(self._makespan - elapsed, 1.0)


def follow(lines: Iterable[str], estimate: Estimate, console: Console) -> None:
    """Show ninja's progress: a bar on a terminal, a line a step elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("about {task.fields[left]} left"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("building", total=None, left="?")
        for line in lines:
            step = parse_line(line)
            if step is None:
                continue
            estimate.finish(step.text)
            # Ninja counts only what is not up to date: an earlier build's units are not among them.
            over = step.finished == step.total
            left = clock(0.0 if over else estimate.seconds_left())
            bar.update(
                task, completed=step.finished, total=step.total, description=step.text, left=left
            )
            if not console.is_terminal:
                console.print(
                    f"[{step.finished}/{step.total}] {step.text} (about {left} left)",
                    markup=False,
                    highlight=False,
                )


@contextmanager
def reading(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Show how far the audit is with the machine code: a bar on a terminal, a few lines elsewhere.

    Yields
    ------
    Callable[[int, int, str], None]
        Takes how many images have been read, of how many, and the module of the last one.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading machine code", total=None)

        def show(done: int, total: int, module: str) -> None:
            bar.update(task, completed=done, total=total, description=f"reading {module}")
            # A tenth at a time.
            if not console.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                console.print(f"machine code: {done} of {total} images read", highlight=False)

        yield show


def clock(seconds: float) -> str:
    """Write a duration: ``1:05``."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
