"""What a build tells while it runs: for a terminal, for a log, and for machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, TextIO

from aot.compile.record import Origin

_SECONDS_BETWEEN_LINES: Final = 10.0


@dataclass(frozen=True)
class Event:
    """Something that happened, so many seconds after the start of the build."""

    name: ClassVar[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the name of the event."""
        return {"event": self.name, **asdict(self)}


@dataclass(frozen=True)
class Began(Event):
    """The build knows what it has to do.

    Parameters
    ----------
    jobs, kept
        How many objects it needs, and how many of them are there already.
    workers, limit_megabytes
        Compilers at once, and memory for all of them.
    seconds_left
        Estimate.
    """

    name: ClassVar[str] = "began"
    jobs: int
    kept: int
    workers: int
    limit_megabytes: int
    seconds_left: float


@dataclass(frozen=True)
class Started(Event):
    """A compiler was started."""

    name: ClassVar[str] = "started"
    job: str
    worker: int
    attempt: int
    expected_seconds: float
    expected_megabytes: int


@dataclass(frozen=True)
class Finished(Event):
    """An object is there."""

    name: ClassVar[str] = "finished"
    job: str
    origin: Origin
    job_seconds: float
    peak_megabytes: int | None
    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True)
class Retried(Event):
    """A compiler ran out of memory or was killed: it is started once more, with nothing beside."""

    name: ClassVar[str] = "retried"
    job: str
    reason: str


@dataclass(frozen=True)
class Failed(Event):
    """A compiler failed for good; what runs beside it is finished, nothing new is started."""

    name: ClassVar[str] = "failed"
    job: str
    reason: str


@dataclass(frozen=True)
class Discarded(Event):
    """A kept object was damaged; it is compiled anew."""

    name: ClassVar[str] = "discarded"
    job: str


@dataclass(frozen=True)
class Working(Event):
    """How things are.

    Parameters
    ----------
    running
        Names of the jobs, each with the seconds since its start and those that are expected.
    megabytes
        Memory of all compilers.
    """

    name: ClassVar[str] = "working"
    running: tuple[tuple[str, float, float], ...]
    megabytes: int
    done: int
    total: int
    seconds_left: float


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Ignore an event."""


def json_lines(stream: TextIO) -> Listener:
    """Write each event as a line of JSON; how things are, at most six times a minute."""
    told = 0.0

    def write(event: Event) -> None:
        nonlocal told
        if isinstance(event, Working):
            if event.seconds - told < _SECONDS_BETWEEN_LINES:
                return
            told = event.seconds
        stream.write(json.dumps(event.to_json()) + "\n")
        stream.flush()

    return write
