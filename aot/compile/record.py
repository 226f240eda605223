"""What happened in a build, as its report shows it: every job, its worker and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Origin = Literal["compiled", "cache", "kept", "imported"]
"""Compiled in this build, taken from the object cache, kept from an earlier build in the build
folder, or imported from a shard."""


@dataclass(frozen=True)
class JobRecord:
    """One compiler run, or one that was not needed.

    Parameters
    ----------
    name
        ``module/unit``, ``operators/source`` or ``tvm_ffi/source``.
    origin
        Where its object is from; None for one that failed or was never started.
    worker
        Which of the compilers that ran side by side, from 0; None where nothing ran.
    start, end
        Seconds after the start of the build; None where nothing ran.
    expected_megabytes, expected_seconds
        What it was admitted with: measured earlier, or estimated.
    peak_megabytes
        Peak memory of its largest compiler process; None where none was seen.
    attempts
        How often it was started: 2 after one retry alone.
    failure
        Why its last attempt failed, in words; None where it did not.
    """

    name: str
    origin: Origin | None
    worker: int | None
    start: float | None
    end: float | None
    expected_megabytes: int
    expected_seconds: float
    peak_megabytes: int | None = None
    attempts: int = 0
    failure: str | None = None

    @property
    def group(self) -> str:
        """The module, or ``operators`` or ``tvm_ffi``."""
        return self.name.partition("/")[0]

    @property
    def seconds(self) -> float | None:
        """Wall time of its last attempt."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True)
class BuildRecord:
    """One run of the scheduler.

    Parameters
    ----------
    preset, plan_hash, versions, machine
        What was built: as in `aot.plan.BuildPlan`.
    started
        When, in ISO 8601 with a time zone.
    seconds
        How long all of it took.
    workers
        Compilers at once, at most.
    limit_megabytes
        For all compilers together.
    jobs
        In the order of the plan.
    samples
        Pairs of seconds after the start and megabytes of all compilers together at that time.
    cache_hits, cache_misses
        Of the object cache; None without one.
    """

    preset: str
    plan_hash: str
    versions: Mapping[str, str]
    machine: str
    started: str
    seconds: float
    workers: int
    limit_megabytes: int
    jobs: tuple[JobRecord, ...]
    samples: tuple[tuple[float, int], ...] = ()
    cache_hits: int | None = None
    cache_misses: int | None = None

    @property
    def peak_megabytes(self) -> int:
        """The most that all compilers together were seen to take; 0 where none ran."""
        return max((megabytes for _, megabytes in self.samples), default=0)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BuildRecord:
        """Read what `to_json` wrote."""
        jobs = tuple(JobRecord(**job) for job in data["jobs"])
        samples = tuple((float(time), int(size)) for time, size in data["samples"])
        return cls(**{**data, "jobs": jobs, "samples": samples})
