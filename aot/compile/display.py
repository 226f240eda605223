"""What a person sees while compilers run: what is done, what runs, memory, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aot.compile import events
from aot.compile.events import Event, Listener
from aot.progress import clock

_SECONDS_BETWEEN_LINES: Final = 60.0
_SHOWN_RUNNING: Final = 12


@contextmanager
def shown(console: Console) -> Iterator[Listener]:
    """Show the events of a build: a live picture on a terminal, a line an object elsewhere.

    Yields
    ------
    Listener
        Takes the events.
    """
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield _Picture(console, live)


class _Lines:
    """For logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0.0

    def __call__(self, event: Event) -> None:
        text = line_of(event)
        if isinstance(event, events.Working):
            if event.seconds - self._told < _SECONDS_BETWEEN_LINES:
                return
            names = ", ".join(f"{name} ({clock(since)})" for name, since, _ in event.running)
            text = (
                f"    {len(event.running)} running, {event.megabytes} MB, "
                f"about {clock(event.seconds_left)} left: {names}"
            )
        if text:
            self._told = event.seconds
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Picture:
    """For a terminal."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._limit = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.Began):
            self._limit = event.limit_megabytes
        if isinstance(event, events.Working):
            self._live.update(picture(event, self._limit))
        elif text := line_of(event):
            self._console.print(text, markup=False, highlight=False)


def line_of(event: Event) -> str | None:
    """Say in one line what happened; None for what is only shown live."""
    if isinstance(event, events.Began):
        if event.kept == event.jobs:
            return f"all {event.jobs} objects are there already"
        kept = f", {event.kept} are there already" if event.kept else ""
        return (
            f"{event.jobs} objects{kept}; {event.workers} compilers at once, "
            f"{event.limit_megabytes} MB, about {clock(event.seconds_left)}"
        )
    if isinstance(event, events.Finished):
        memory = f", {event.peak_megabytes} MB" if event.peak_megabytes else ""
        cached = " from the cache" if event.origin == "cache" else ""
        return (
            f"[{event.done}/{event.total}] {event.job}{cached} in {clock(event.job_seconds)}"
            f"{memory} (about {clock(event.seconds_left)} left)"
        )
    if isinstance(event, events.Retried):
        return f"{event.job}: {event.reason}; once more, with nothing beside it"
    if isinstance(event, events.Failed):
        return f"{event.job}: {event.reason}; what runs is finished, nothing new is started"
    if isinstance(event, events.Discarded):
        return f"{event.job}: the object that was kept is damaged; it is compiled anew"
    return None


def picture(event: events.Working, limit_megabytes: int) -> Group:
    """Draw the present state.

    Parameters
    ----------
    event
        How things are.
    limit_megabytes
        For all compilers together.
    """
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(total=max(1, event.total), completed=event.done, width=40),
        f"{event.done}/{event.total} objects",
        f"{event.megabytes / 1000:.1f} of {limit_megabytes / 1000:.1f} GB",
        f"about {clock(event.seconds_left)} left",
    )
    rows = Table.grid(padding=(0, 2))
    for name, since, expected in event.running[:_SHOWN_RUNNING]:
        bar = ProgressBar(total=max(1.0, expected), completed=min(since, expected), width=20)
        rows.add_row(bar, f"{clock(since)} of about {clock(expected)}", Text(name, overflow="fold"))
    more = len(event.running) - _SHOWN_RUNNING
    return Group(head, rows, *([Text(f"and {more} more")] if more > 0 else []))
