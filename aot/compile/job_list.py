"""The jobs of one build with everything that they are run with: written for CMake, and run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot import costs
from aot.compile import events
from aot.compile.admission import Limits
from aot.compile.events import Listener
from aot.compile.job import Job
from aot.compile.scheduler import Outcome, Settings, run_jobs
from aot.compile.store import ObjectStore


@dataclass(frozen=True)
class JobList:
    """What `aot.steps compile` reads.

    Parameters
    ----------
    jobs
        Every compiler run of the build.
    objects, scratch, logs, costs
        Folders and file, as in `aot.pipeline.Folders`.
    launcher
        Command before each compiler: the object cache.
    """

    jobs: tuple[Job, ...]
    objects: Path
    scratch: Path
    logs: Path
    costs: Path
    launcher: tuple[str, ...]

    @property
    def store(self) -> ObjectStore:
        """Where the objects are kept."""
        return ObjectStore(self.objects)

    def run(
        self,
        limits: Limits,
        listen: Listener = events.nobody,
        keep: Callable[[Outcome], None] = lambda _: None,
    ) -> Outcome:
        """Make what is missing, and keep what it has cost, also when not all of it was made.

        Parameters
        ----------
        limits
            Compilers at once, and their memory.
        listen
            Is told what happens.
        keep
            Is given the outcome, also of a build that failed or was interrupted.

        Raises
        ------
        BuildError
            Of the kind of the failure, when a job failed.
        """
        settings = Settings(
            limits=limits,
            launcher=self.launcher,
            scratch=self.scratch,
            logs=self.logs,
            environ=os.environ,
        )

        def finish(outcome: Outcome) -> None:
            self._record(outcome)
            keep(outcome)

        return run_jobs(self.jobs, self.store, settings, listen, finish)

    def _record(self, outcome: Outcome) -> None:
        known = costs.read_costs(self.costs)
        costs.record_costs(self.costs, known, self.jobs, outcome.jobs)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        paths = {n: str(getattr(self, n)) for n in ("objects", "scratch", "logs", "costs")}
        jobs = [
            {**asdict(job), "source": str(job.source), "targets": sorted(job.targets)}
            for job in self.jobs
        ]
        return {"jobs": jobs, **paths, "launcher": self.launcher}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobList:
        """Read what `to_json` wrote."""
        jobs = tuple(
            Job(
                **{
                    **job,
                    "source": Path(job["source"]),
                    "command": tuple(job["command"]),
                    "targets": frozenset(job["targets"]),
                }
            )
            for job in data["jobs"]
        )
        paths = {n: Path(data[n]) for n in ("objects", "scratch", "logs", "costs")}
        return cls(jobs=jobs, **paths, launcher=tuple(data["launcher"]))
