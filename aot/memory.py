"""How many compilers may run at once: capped by memory, not by cores alone.

An FP4 unit takes 1 to 7 GB. Ninja counts jobs, not bytes, so units are put into two pools, large
ones and the others, each so deep that full pools fit into memory together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.errors import BuildError
from aot.plan import Unit

_RESERVE_MEGABYTES = 512  # for the pipeline itself, the cache server and the linker


@dataclass(frozen=True)
class Schedule:
    """Depths of the two pools.

    Parameters
    ----------
    small_jobs, large_jobs
        How many small and how many large units may be compiled at once.
    large_megabytes
        A unit with at least this estimate is large; 0 when none is.
    """

    small_jobs: int
    large_jobs: int
    large_megabytes: int

    @property
    def jobs(self) -> int:
        """Compilers at once, all together."""
        return self.small_jobs + (self.large_jobs if self.large_megabytes else 0)

    def pool(self, unit: Unit) -> str:
        """Name of the ninja pool of a unit."""
        large = self.large_megabytes and unit.memory_megabytes >= self.large_megabytes
        return "large_units" if large else "small_units"


def available_megabytes() -> int:
    """Memory that this process may still take: the machine's, or its control group's if less."""
    limits = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) // 1024)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text()) - _reclaimable(group)
            limits.append((int(limit) - used) // 2**20)
    except (OSError, ValueError):
        pass  # no control group, or an old one: the machine's figure stands
    return max(0, min(limits)) if limits else 4096


def _reclaimable(group: Path) -> int:
    """Bytes of cached files: counted as used, and dropped when a program asks for more."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def make_schedule(
    units: Sequence[Unit], memory_megabytes: int, cores: int | None = None
) -> Schedule:
    """Choose limits such that the estimates of all running units together stay within memory.

    Parameters
    ----------
    units
        The units of the plan.
    memory_megabytes
        What all compilers together may take.
    cores
        Compilers at once at most; by default the cores this process may use.

    Raises
    ------
    BuildError
        When the largest unit alone does not fit.
    """
    cores = cores or len(os.sched_getaffinity(0))
    budget = memory_megabytes - _RESERVE_MEGABYTES
    largest = max(units, key=lambda unit: unit.memory_megabytes)
    if largest.memory_megabytes > budget:
        raise BuildError(
            f"{largest.name} needs about {largest.memory_megabytes} MB to compile and the limit is "
            f"{memory_megabytes} MB, of which {_RESERVE_MEGABYTES} MB stay free; close other "
            "programs, or raise --memory-limit"
        )
    share = budget // cores
    large = [unit.memory_megabytes for unit in units if unit.memory_megabytes > share]
    small = [unit.memory_megabytes for unit in units if unit.memory_megabytes <= share]
    if not large:
        return Schedule(small_jobs=cores, large_jobs=1, large_megabytes=0)
    for large_jobs in range(cores, 0, -1):
        small_jobs = max(1, cores - large_jobs)
        if large_jobs * max(large) + small_jobs * max(small, default=0) <= budget:
            return Schedule(small_jobs, large_jobs, min(large))
    # The largest unit leaves no room for another: one compiler at a time, whatever it compiles.
    return Schedule(small_jobs=1, large_jobs=1, large_megabytes=1)
