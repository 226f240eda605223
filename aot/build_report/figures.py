"""The numbers of a build's report, counted from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aot.compile.record import BuildRecord, JobRecord

Outcome = Literal["failed", "compiled", "cache", "kept", "imported", "not finished", "not started"]
"""What became of a job: where its object is from, or why there is none."""

OUTCOMES: Final[Mapping[Outcome, str]] = {
    "failed": "failed",
    "compiled": "compiled",
    "cache": "from the cache",
    "kept": "kept",
    "imported": "imported",
    "not finished": "not finished",
    "not started": "not started",
}
"""Each in words, in the order in which they are shown."""


def outcome(job: JobRecord) -> Outcome:
    """Say what became of a job."""
    if job.failure is not None:
        return "failed"
    if job.origin is not None:
        return job.origin
    return "not started" if job.start is None else "not finished"


def ratio(measured: float | None, expected: float) -> float | None:
    """Return how much more was measured than expected; None where one of them is missing."""
    return measured / expected if measured is not None and expected > 0 else None


@dataclass(frozen=True)
class Totals:
    """The whole build in numbers.

    Parameters
    ----------
    counts
        Jobs by what became of them; those without any are left out.
    started_again
        Jobs that were started more than once.
    busy_share
        Of the workers' time, the share in which they ran something, from 0 to 1; None where
        nothing ran. Only the last attempt of each job is known.
    hit_share
        Of the look-ups in the object cache, the share of hits; None without a look-up.
    memory_share
        Peak memory as a share of the limit; None where nothing was measured.
    """

    counts: Mapping[Outcome, int]
    started_again: int
    busy_share: float | None
    hit_share: float | None
    memory_share: float | None


def totals(record: BuildRecord) -> Totals:
    """Count."""
    counts = Counter(map(outcome, record.jobs))
    times = [job.seconds for job in record.jobs if job.seconds is not None]
    room = record.workers * record.seconds
    lookups = (record.cache_hits or 0) + (record.cache_misses or 0)
    peak = record.peak_megabytes
    return Totals(
        counts={name: counts[name] for name in OUTCOMES if counts[name]},
        started_again=sum(job.attempts > 1 for job in record.jobs),
        busy_share=min(1.0, sum(times) / room) if times and room > 0 else None,
        hit_share=(record.cache_hits or 0) / lookups if lookups else None,
        memory_share=peak / record.limit_megabytes if peak and record.limit_megabytes else None,
    )


@dataclass(frozen=True)
class Group:
    """The units of one module, or of the operators, or of the TVM-FFI runtime.

    Parameters
    ----------
    name
        Its name.
    counts
        Its units by what became of them.
    seconds
        Wall time of all that ran, together; None where nothing did.
    peak_megabytes
        Of its largest compiler process; None where none was seen.
    started
        Whether any of its units was started.
    """

    name: str
    counts: Mapping[Outcome, int]
    seconds: float | None
    peak_megabytes: int | None
    started: bool

    @property
    def units(self) -> int:
        """How many units it has."""
        return sum(self.counts.values())


def groups(record: BuildRecord) -> tuple[Group, ...]:
    """Return all groups, the one that took most time first, else in the order of the plan."""
    members: dict[str, list[JobRecord]] = {}
    for job in record.jobs:
        members.setdefault(job.group, []).append(job)
    found = [_group(name, jobs) for name, jobs in members.items()]
    return tuple(sorted(found, key=lambda group: -(group.seconds or 0)))


def _group(name: str, jobs: list[JobRecord]) -> Group:
    counts = Counter(map(outcome, jobs))
    times = [job.seconds for job in jobs if job.seconds is not None]
    peaks = (job.peak_megabytes for job in jobs if job.peak_megabytes is not None)
    return Group(
        name=name,
        counts={one: counts[one] for one in OUTCOMES if counts[one]},
        seconds=sum(times) if times else None,
        peak_megabytes=max(peaks, default=None),
        started=any(job.start is not None for job in jobs),
    )


def slowest(record: BuildRecord, count: int) -> tuple[JobRecord, ...]:
    """Return the jobs that ran longest, the longest first."""
    ran = [job for job in record.jobs if job.seconds is not None]
    return tuple(sorted(ran, key=lambda job: -(job.seconds or 0))[:count])
