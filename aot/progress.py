"""What a person sees while ninja links and while the audit reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
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


def follow(lines: Iterable[str], console: Console) -> None:
    """Show ninja's progress: a bar on a terminal, a line a step elsewhere."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("linking", total=None)
        for line in lines:
            step = parse_line(line)
            if step is None:
                continue
            # Ninja counts only what is not up to date: an earlier build's steps are not among them.
            bar.update(task, completed=step.finished, total=step.total, description=step.text)
            if not console.is_terminal:
                console.print(
                    f"[{step.finished}/{step.total}] {step.text}", markup=False, highlight=False
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
