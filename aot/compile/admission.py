"""Which job is started next: the longest that fits into the memory that is left.

An FP4 unit takes 1 to 9 GB, so memory decides how many compilers may run, not cores alone. The
longest first keeps the end of a build short: what is left for one worker alone is small.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aot import memory
from aot.compile.job import Job
from aot.errors import BuildError

RESERVE_MEGABYTES: Final = 512  # for the pipeline itself, the cache server and the linker


@dataclass(frozen=True)
class Limits:
    """What a build may take.

    Parameters
    ----------
    workers
        Compilers at once.
    megabytes
        For everything together.
    """

    workers: int
    megabytes: int

    @property
    def budget(self) -> int:
        """What the compilers may take."""
        return self.megabytes - RESERVE_MEGABYTES


def make_limits(megabytes: int | None = None, workers: int | None = None) -> Limits:
    """Take the limits that a person gave, or what there is.

    Parameters
    ----------
    megabytes
        By default the memory that is free now.
    workers
        By default the cores that this process may use.
    """
    return Limits(
        workers or len(os.sched_getaffinity(0)), megabytes or memory.available_megabytes()
    )


def in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Sort jobs as they are started: the longest first, then the largest, then by name."""
    return tuple(sorted(jobs, key=lambda job: (-job.seconds, -job.megabytes, job.name)))


def choose(waiting: Sequence[Job], running: Sequence[Job], limits: Limits) -> Job | None:
    """Pick the next job.

    Parameters
    ----------
    waiting
        What is left, in the order of `in_order`.
    running
        What is being compiled.
    limits
        Of the build.

    Returns
    -------
    Job or None
        The first that fits beside what runs; None while there is none.
    """
    if len(running) >= limits.workers:
        return None
    left = limits.budget - sum(job.megabytes for job in running)
    return next((job for job in waiting if job.megabytes <= left), None)


def check_fits(jobs: Sequence[Job], limits: Limits) -> None:
    """Refuse a build whose largest job does not fit even alone.

    Raises
    ------
    BuildError
        Naming it, with both figures.
    """
    largest = max(jobs, key=lambda job: job.megabytes, default=None)
    if largest is not None and largest.megabytes > limits.budget:
        raise BuildError(
            f"{largest.name} needs about {largest.megabytes} MB to compile and the limit is "
            f"{limits.megabytes} MB, of which {RESERVE_MEGABYTES} MB stay free; close other "
            "programs, or raise --memory-limit"
        )


def seconds_together(jobs: Sequence[Job], limits: Limits) -> float:
    """Estimate how long some jobs take, by playing the admission through."""
    waiting = list(in_order(jobs))
    running: list[tuple[float, Job]] = []
    now = 0.0
    while waiting or running:
        while True:
            job = choose(waiting, [one for _, one in running], limits)
            if job is None and waiting and not running:
                job = waiting[0]  # does not fit at all: counted as if it were compiled alone
            if job is None:
                break
            waiting.remove(job)
            running.append((now + job.seconds, job))
        now, done = min(running, key=lambda pair: pair[0])
        running.remove((now, done))
    return now
