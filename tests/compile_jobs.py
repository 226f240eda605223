"""Jobs for the tests of `aot.compile`, and a program that stands in for a compiler.

The stand-in is run as a compiler is, ``PROGRAM -c SOURCE -o OBJECT``. Its sources are lines of
shell that say what it does: they find the place of the object in ``$object``, a folder of the test
in ``$folder``, and how often this source was compiled before in ``$earlier``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aot.compile.admission import RESERVE_MEGABYTES, Limits
from aot.compile.job import Group, Job
from aot.compile.job_list import JobList
from aot.compile.scheduler import Settings

_PROGRAM = """#!/bin/sh
folder={folder}
source=$2
object=$4
earlier=$(grep -c "^begin $source " $folder/log)
stamp() {{ read up idle < /proc/uptime; echo "$1 $source $up $$" >> $folder/log; }}
make() {{ echo "object of $source $*" > "$object"; }}
stamp begin
( . "$source" )
code=$?
stamp end
exit $code
"""


def make_job(
    name: str = "m/a",
    *,
    key: str | None = None,
    group: Group = "unit",
    source: Path | None = None,
    command: tuple[str, ...] = ("true",),
    compiler: str = "cicc",
    targets: Iterable[str] = ("120f",),
    megabytes: int = 100,
    seconds: float = 1.0,
) -> Job:
    """Make a job of which only the name matters."""
    return Job(
        name=name,
        group=group,
        source=source or Path(f"/sources/{name}.cu"),
        command=command,
        key=key or hashlib.sha256(name.encode()).hexdigest(),
        compiler=compiler,
        targets=frozenset(targets),
        megabytes=megabytes,
        seconds=seconds,
    )


def limits(workers: int = 2, megabytes: int = 1000) -> Limits:
    """Limits whose compilers may take `megabytes` together."""
    return Limits(workers, megabytes + RESERVE_MEGABYTES)


@dataclass(frozen=True)
class Run:
    """One run of the stand-in.

    Parameters
    ----------
    job
        Name of the job.
    begin, end
        Seconds after the machine's start; `end` is None where it was stopped before.
    process
        Its number.
    """

    job: str
    begin: float
    end: float | None
    process: int


class Compiler:
    """The stand-in, with its sources and its log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = folder / "sources"
        self.program = folder / "compiler"
        self.log = folder / "log"
        self.log.touch()
        self.program.write_text(_PROGRAM.format(folder=folder))
        self.program.chmod(0o755)

    def job(
        self, name: str, what: str = "make", *, megabytes: int = 100, seconds: float = 1.0
    ) -> Job:
        """Write a source, and return the job that compiles it; its key is by what is in it."""
        source = self.sources / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f"{what}\n")
        key = hashlib.sha256(f"{name} {what}".encode()).hexdigest()
        job = make_job(name, key=key, source=source, megabytes=megabytes, seconds=seconds)
        return replace(job, command=(str(self.program),))

    def runs(self) -> list[Run]:
        """List what was run so far; what was started together comes in any order."""
        found: dict[int, Run] = {}
        for line in self.log.read_text().splitlines():
            what, source, time, process = line.split()
            number = int(process)
            if what == "begin":
                job = str(Path(source).relative_to(self.sources))
                found[number] = Run(job, float(time), None, number)
            else:
                found[number] = replace(found[number], end=float(time))
        return list(found.values())

    def names(self) -> list[str]:
        """Name what was run so far; what was started together comes in any order."""
        return [run.job for run in self.runs()]

    def settings(
        self,
        within: Limits | None = None,
        *,
        launcher: tuple[str, ...] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> Settings:
        """Run in this folder."""
        return Settings(
            limits=within or limits(),
            launcher=launcher,
            scratch=self.folder / "scratch",
            logs=self.folder / "logs",
            environ=environ,
        )

    def job_list(self, jobs: Iterable[Job], launcher: tuple[str, ...] = ()) -> JobList:
        """Put jobs together with the folders of this one."""
        return JobList(
            jobs=tuple(jobs),
            objects=self.folder / "objects",
            scratch=self.folder / "scratch",
            logs=self.folder / "logs",
            costs=self.folder / "costs.json",
            launcher=launcher,
        )
