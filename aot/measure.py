"""Look at the compilers at work, and tell how much memory each job takes.

A compiler is a chain of programs, and the object cache starts some of them itself, in folders of
its own: no parent is common to them. So every compiler process of this machine is looked at, and
its command line tells the unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot.compile.job import Job

COMPILERS: Final = frozenset({"cudafe++", "cicc", "ptxas", "cc1plus"})
_TARGET = re.compile(r"(?:^| )-arch (?:compute_|sm_)(\w+)")


@dataclass(frozen=True)
class Process:
    """One running program, with the most memory that it has had so far, and what it has now."""

    name: str
    arguments: tuple[str, ...]
    peak_megabytes: int
    megabytes: int = 0


def running_compilers(proc: Path = Path("/proc")) -> Iterator[Process]:
    """List the compiler processes of this machine, as far as this user may see them."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "comm").read_text().strip()
            if name not in COMPILERS:
                continue
            status = (folder / "status").read_text()
            sizes = dict(re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", status, re.MULTILINE))
            line = (folder / "cmdline").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        if "VmHWM" in sizes:
            arguments = tuple(line.rstrip("\0").split("\0"))
            peak, now = (int(sizes.get(key, 0)) // 1024 for key in ("VmHWM", "VmRSS"))
            yield Process(name, arguments, peak, now)


class Watch:
    """Collects the peak of every job.

    Attributes
    ----------
    peaks
        Megabytes of the largest process, by name of the job. A job that was only preprocessed,
        which the object cache does to look it up, is not among them.
    compiled
        The jobs whose compiler proper was at work. The object cache also keeps the results of
        single programs: a job can have a peak and still come from the cache for the most part.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.peaks: dict[str, int] = {}
        self.compiled: set[str] = set()
        self._jobs = tuple(jobs)
        self._sources = {str(job.source) for job in self._jobs}

    def observe(self, processes: Iterable[Process]) -> int:
        """Look at what is running now.

        Returns
        -------
        int
            Megabytes that the compilers of these jobs take at the moment.
        """
        total = 0
        for process in processes:
            job = self._job_of(process)
            if job or not self._sources.isdisjoint(process.arguments):
                total += process.megabytes
            if job and "-E" not in process.arguments:
                self.peaks[job.name] = max(self.peaks.get(job.name, 0), process.peak_megabytes)
                if process.name == job.compiler:
                    self.compiled.add(job.name)
        return total

    def _job_of(self, process: Process) -> Job | None:
        """Name the job that a process works on; None for one of somebody else's.

        Also None for a program that says too little, such as ``cudafe++`` on a source that several
        modules share. None of those is the largest of its unit.
        """
        line = " ".join(process.arguments)
        target = _TARGET.search(line)
        # The host compiler is given a generated file, and the name of the object.
        found = [
            job
            for job in self._jobs
            if f"/units/{job.module}/ " in line and f" {job.unit}." in line
        ] or [
            job
            for job in self._jobs
            if str(job.source) in process.arguments and (target is None or target[1] in job.targets)
        ]
        return found[0] if len(found) == 1 else None
