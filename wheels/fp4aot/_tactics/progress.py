"""How far a long command is: one line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """Counts steps and estimates when they will be over.

    Parameters
    ----------
    total
        How many steps there are.
    stream
        Where to write; standard error, so that results can be piped.
    clock
        Seconds.
    """

    def __init__(
        self, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._done = 0
        self._width = 0

    def step(self, text: str) -> None:
        """Say that one step is over."""
        self._done += 1
        elapsed = self._clock() - self._start
        left = elapsed / self._done * (self._total - self._done)
        line = f"[{self._done}/{self._total}] {text}  about {clock_text(left)} left"
        if self._stream.isatty():
            # Blanks over the end of a longer line before.
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End the line that changes."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0


def clock_text(seconds: float) -> str:
    """Write a duration: ``1:05``, or ``2:03:04``."""
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
