"""Run compilers: as many as cores and memory allow, the longest first.

Ninja counts jobs, not bytes. Here a job is started when what it is expected to take fits beside
what runs, and what it really took is measured for the next build. One that runs out of memory is
run once more alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from aot import measure
from aot.compile import events, failure
from aot.compile.admission import Limits, check_fits, choose, in_order, seconds_together
from aot.compile.events import Listener
from aot.compile.failure import Failure
from aot.compile.job import Job
from aot.compile.record import JobRecord, Origin
from aot.compile.store import ObjectStore
from aot.errors import BuildError, DiskFullError, OutOfMemoryError, is_disk_full

_SECONDS_BETWEEN_LOOKS: Final = 0.1
_SECONDS_BETWEEN_REPORTS: Final = 1.0
_SECONDS_TO_STOP: Final = 5.0
_OBJECTS: Final = "objects"


@dataclass(frozen=True)
class Settings:
    """How jobs are run.

    Parameters
    ----------
    limits
        Compilers at once, and their memory.
    launcher
        Command before each compiler: the object cache.
    scratch
        Folder for what is being made; one build at a time uses it.
    logs
        Folder for what the compilers print.
    environ
        The compilers' environment.
    """

    limits: Limits
    launcher: tuple[str, ...]
    scratch: Path
    logs: Path
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What the scheduler did.

    Parameters
    ----------
    jobs
        Every job, in the order in which they were given.
    samples
        Memory of all compilers over time.
    seconds
        How long it took.
    """

    jobs: tuple[JobRecord, ...]
    samples: tuple[tuple[float, int], ...]
    seconds: float


@dataclass
class _Running:
    """One compiler at work."""

    job: Job
    process: subprocess.Popen[bytes]
    made: Path
    log: Path
    worker: int
    attempt: int
    start: float
    kills_before: int


def run_jobs(
    jobs: Sequence[Job],
    store: ObjectStore,
    settings: Settings,
    listen: Listener = events.nobody,
    keep: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Make every object that is not in the store.

    Parameters
    ----------
    jobs
        What is wanted.
    store
        Has what is there, and gets what is made, object by object.
    settings
        How to run it.
    listen
        Is told what happens.
    keep
        Is given the outcome, also of a run that failed or was interrupted.

    Raises
    ------
    BuildError
        When another build uses the same folder, a job does not fit into memory even alone, or one
        failed, of the kind of its failure; what ran beside it was finished and kept.
    """
    with _alone(settings.scratch):
        run = _Run(jobs, store, settings, listen)
        run.prepare()
        try:
            run.work()
        finally:
            run.stop()
            outcome = run.outcome()
            keep(outcome)
        run.check()
        return outcome


class _Run:
    """The state of one run."""

    def __init__(
        self, jobs: Sequence[Job], store: ObjectStore, settings: Settings, listen: Listener
    ) -> None:
        self.jobs = jobs
        self.store = store
        self.settings = settings
        self.listen = listen
        self.zero = time.monotonic()
        self.watch = measure.Watch(jobs)
        self.records: dict[str, JobRecord] = {}
        self.samples: list[tuple[float, int]] = []
        self.running: list[_Running] = []
        self.waiting: list[Job] = []
        self.alone: list[Job] = []  # ran out of memory: once more, with nothing beside
        self.failed: tuple[Job, Failure] | None = None
        self.total = 0
        self.expected_done = self.real_done = 0.0

    @property
    def now(self) -> float:
        return time.monotonic() - self.zero

    def prepare(self) -> None:
        self._take_stock()
        check_fits(self.waiting, self.settings.limits)
        self._tell_begin()

    def work(self) -> None:
        while self.running or (not self.failed and (self.waiting or self.alone)):
            self._start_what_fits()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._look()
            for one in [one for one in self.running if one.process.poll() is not None]:
                self.running.remove(one)
                self._end(one)

    def stop(self) -> None:
        """End what runs; something does only when the work was interrupted."""
        _stop([one.process for one in self.running])
        for one in self.running:
            record = self.records[one.job.name]
            self.records[one.job.name] = replace(record, end=self.now, failure="interrupted")

    def outcome(self) -> Outcome:
        records = tuple(self.records[job.name] for job in self.jobs)
        return Outcome(records, tuple(self.samples), self.now)

    def check(self) -> None:
        if self.failed:
            raise self._error(*self.failed)

    # -- What is there already --

    def _take_stock(self) -> None:
        for job in self.jobs:
            traces = self.store.has_traces(job)
            stored = self.store.find(job)
            if stored is None:
                if traces:
                    self.listen(events.Discarded(self.now, job.name))
                self.waiting.append(job)
                origin: Origin | None = None
            else:
                origin = "imported" if stored.origin == "imported" else "kept"
            self.records[job.name] = JobRecord(
                job.name, origin, None, None, None, job.megabytes, job.seconds
            )
        self.waiting = list(in_order(self.waiting))
        self.total = len(self.waiting)

    def _tell_begin(self) -> None:
        limits = self.settings.limits
        kept = len(self.jobs) - self.total
        self.listen(
            events.Began(
                self.now,
                *(len(self.jobs), kept, limits.workers, limits.megabytes),
                self._seconds_left(),
            )
        )

    # -- Starting --

    def _start_what_fits(self) -> None:
        if self.failed:
            return
        if self.alone:
            if not self.running:
                self._start(self.alone.pop(0))
            return
        if any(self.records[one.job.name].attempts > 1 for one in self.running):
            return  # one runs alone
        while True:
            job = choose(self.waiting, [one.job for one in self.running], self.settings.limits)
            if job is None:
                return
            self.waiting.remove(job)
            self._start(job)

    def _start(self, job: Job) -> None:
        record = self.records[job.name]
        attempt = record.attempts + 1
        worker = next(
            number
            for number in range(len(self.running) + 1)
            if number not in {one.worker for one in self.running}
        )
        # Compilers name the object in their command lines: that is how they are told apart. The
        # key: what a killed build left running must not write where another object is made.
        folder = self.settings.scratch / _OBJECTS / job.key[:16]
        made = folder / "units" / job.module / f"{job.unit}.o"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.unlink(missing_ok=True)
        log = self.settings.logs / job.module / f"{job.unit}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        launcher = self.settings.launcher if job.cached else ()
        command = [*launcher, *job.command, "-c", str(job.source), "-o", str(made)]
        kills = failure.memory_kills()
        with log.open("wb") as stream:
            process = _popen(command, stream, self.settings.environ, job.name)
        start = self.now
        self.records[job.name] = replace(
            record, worker=worker, start=start, end=None, attempts=attempt
        )
        self.running.append(_Running(job, process, made, log, worker, attempt, start, kills))
        self.listen(events.Started(start, job.name, worker, attempt, job.seconds, job.megabytes))

    # -- Watching --

    def _look(self) -> None:
        megabytes = self.watch.observe(measure.running_compilers())
        now = self.now
        if not self.samples or now - self.samples[-1][0] >= _SECONDS_BETWEEN_REPORTS:
            self.samples.append((round(now, 1), megabytes))
            running = tuple(
                (one.job.name, now - one.start, one.job.seconds) for one in self.running
            )
            done = self._done()
            left = self._seconds_left()
            self.listen(events.Working(now, running, megabytes, done, self.total, left))
        elif megabytes > self.samples[-1][1]:
            # A peak between two reports is not lost.
            self.samples[-1] = (self.samples[-1][0], megabytes)

    # -- Ending --

    def _end(self, one: _Running) -> None:
        job, end = one.job, self.now
        code = one.process.returncode
        if code == 0 and one.made.is_file():
            self._keep(one, end)
            return
        _signal(one.process, signal.SIGKILL)  # what it started: nothing may run beside a retry
        output = one.log.read_text(errors="replace")
        if code == 0:
            output += f"\nerror: the compiler succeeded and left no {one.made.name}"
        killed = failure.memory_kills() > one.kills_before
        found = failure.classify(code, output, killed_for_memory=killed)
        one.made.unlink(missing_ok=True)
        record = replace(
            self.records[job.name],
            end=end,
            peak_megabytes=self.watch.peaks.get(job.name),
            failure=found.reason,
        )
        self.records[job.name] = record
        if found.may_be_retried and one.attempt == 1 and not self.failed:
            self.alone.append(job)
            self.listen(events.Retried(end, job.name, found.reason))
            return
        self.failed = self.failed or (job, found)
        self.listen(events.Failed(end, job.name, found.reason))

    def _keep(self, one: _Running, end: float) -> None:
        job = one.job
        name = job.name
        has_cache = bool(self.settings.launcher) and job.cached
        compiled = not has_cache or name in self.watch.compiled
        try:
            self.store.put(job, one.made, "compiled" if compiled else "cache")
        except OSError as cause:
            if not is_disk_full(cause):
                raise BuildError(f"cannot keep the object of {name}: {cause}") from cause
            found = Failure("disk", str(cause))
            one.made.unlink(missing_ok=True)
            self.records[name] = replace(self.records[name], end=end, failure=found.reason)
            self.failed = self.failed or (job, found)
            self.listen(events.Failed(end, name, found.reason))
            return
        peak = self.watch.peaks.get(name)
        record = replace(
            self.records[name],
            origin="compiled" if compiled else "cache",
            end=end,
            peak_megabytes=peak,
            failure=None,
        )
        self.records[name] = record
        if compiled:
            self.expected_done += job.seconds
            self.real_done += end - one.start
        self.listen(
            events.Finished(
                end,
                *(name, "compiled" if compiled else "cache", end - one.start, peak),
                *(self._done(), self.total, self._seconds_left()),
            )
        )

    # -- Telling --

    def _done(self) -> int:
        return self.total - len(self.waiting) - len(self.alone) - len(self.running)

    def _seconds_left(self) -> float:
        """Play through what is left; estimates are scaled by how true they were so far."""
        now = self.now
        pace = self.real_done / self.expected_done if self.expected_done > 60 else 1.0
        left = [
            replace(one.job, seconds=max(0.0, one.job.seconds - (now - one.start) / pace))
            for one in self.running
        ]
        return pace * seconds_together([*left, *self.waiting, *self.alone], self.settings.limits)

    def _error(self, job: Job, found: Failure) -> BuildError:
        record = self.records[job.name]
        log = self.settings.logs / job.module / f"{job.unit}.log"
        limit = self.settings.limits.megabytes
        alone = " also alone, with nothing beside it" if record.attempts > 1 else ""
        text = f"{job.name}: {found.reason}{alone}; the whole log is in {log}\n{found.text}"
        if found.kind == "disk":
            return DiskFullError(
                f"{text}\nFree some space below {self.settings.scratch} and start again: what is "
                "finished is kept"
            )
        if found.kind in {"memory", "killed"}:
            seen = f"{record.peak_megabytes} MB" if record.peak_megabytes else "an unknown amount"
            return OutOfMemoryError(
                f"{text}\nIt was seen to take {seen} ({job.megabytes} MB were expected; the limit "
                f"is {limit} MB). Give the build more memory, or close other programs: what is "
                "finished is kept"
            )
        return BuildError(text)


def _popen(
    command: Sequence[str], log: IO[bytes], environ: Mapping[str, str], name: str
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,  # so that its whole chain can be stopped
        )
    except OSError as cause:
        raise BuildError(f"cannot compile {name}: {command[0]} does not start: {cause}") from cause


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a compiler and to all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _SECONDS_TO_STOP
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _signal(process, signal.SIGKILL)
        process.wait()


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Hold the folder for as long as the block runs."""
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildError(
                f"another build is compiling in {scratch}; wait for it, or pass another "
                "--build-root"
            ) from None
        shutil.rmtree(scratch / _OBJECTS, ignore_errors=True)  # left by a build that was killed
        yield
