"""The scheduler with real processes: a shell script that does what its source says compiles."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compile_jobs import Compiler, Run, limits

from aot.compile import events, failure
from aot.compile import scheduler as scheduler_module
from aot.compile.events import Event, Listener
from aot.compile.job import Job
from aot.compile.record import JobRecord
from aot.compile.scheduler import Outcome, run_jobs
from aot.compile.store import ObjectStore, StoredObject, StoredOrigin
from aot.costs import read_costs
from aot.errors import BuildError, DiskFullError, OutOfMemoryError
from aot.files import sha256_of

ROOT = Path(__file__).resolve().parents[2]
KILLED_ONCE = 'if [ "$earlier" = 0 ]; then kill -9 $$; fi; sleep 0.3; make'


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def by_name(outcome: Outcome) -> dict[str, JobRecord]:
    return {record.name: record for record in outcome.jobs}


def fail(
    compiler: Compiler, jobs: list[Job], listen: Listener = events.nobody
) -> tuple[BuildError, Outcome]:
    """Compile what cannot be compiled; return the error that a person sees, and what was done."""
    seen: list[Outcome] = []
    with pytest.raises(BuildError) as caught:
        compiler.job_list(jobs).run(limits(), listen, seen.append)
    (outcome,) = seen
    return caught.value, outcome


def is_alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail(f"{what} did not come about within a minute")


def overlapping(runs: list[Run]) -> Iterator[list[Run]]:
    """For each run, all that were at work when it began."""
    for one in runs:
        yield [
            run
            for run in runs
            if run.begin <= one.begin and (run.end is None or one.begin < run.end)
        ]


# Compiling


def test_every_object_is_made_kept_and_recorded(compiler: Compiler, store: ObjectStore) -> None:
    jobs = [compiler.job(name) for name in ("m/a", "n/a", "operators/b")]
    outcome = run_jobs(jobs, store, compiler.settings())
    assert [record.name for record in outcome.jobs] == ["m/a", "n/a", "operators/b"]
    for job, record in zip(jobs, outcome.jobs, strict=True):
        content = f"object of {job.source} \n".encode()
        assert store.path(job).read_bytes() == content
        assert store.find(job) == StoredObject(
            job.name, sha256_of(store.path(job)), origin="compiled"
        )
        assert (record.origin, record.attempts, record.failure) == ("compiled", 1, None)
        assert (record.expected_megabytes, record.expected_seconds) == (100, 1.0)
        assert record.seconds is not None
        assert 0 <= record.seconds <= outcome.seconds
    # Nothing else is left where it was made.
    assert list((compiler.folder / "scratch").rglob("*.o")) == []


def test_the_compiler_is_called_with_source_and_object(
    compiler: Compiler, store: ObjectStore
) -> None:
    job = compiler.job("m/a", "make $FROM_LAUNCHER")
    launcher = ("env", "FROM_LAUNCHER=launched")
    environ = {"PATH": os.environ["PATH"]}
    run_jobs([job], store, compiler.settings(launcher=launcher, environ=environ))
    assert store.path(job).read_text().split()[-1] == "launched"


def test_a_compiler_that_the_cache_does_not_understand_is_run_without_it(
    compiler: Compiler, store: ObjectStore
) -> None:
    job = dataclasses.replace(compiler.job("m/a", "make [$FROM_LAUNCHER]"), cached=False)
    launcher = ("env", "FROM_LAUNCHER=launched")
    outcome = run_jobs([job], store, compiler.settings(launcher=launcher))
    assert store.path(job).read_text().split()[-1] == "[]"
    # So nothing but a compilation can have made it.
    assert outcome.jobs[0].origin == "compiled"


def test_what_is_there_is_not_compiled_again(compiler: Compiler, store: ObjectStore) -> None:
    jobs = [compiler.job("m/a"), compiler.job("m/b")]
    run_jobs(jobs[:1], store, compiler.settings())
    first = store.path(jobs[0]).stat().st_mtime_ns
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(), told.append)
    assert compiler.names() == ["m/a", "m/b"]
    assert [record.origin for record in outcome.jobs] == ["kept", "compiled"]
    kept = outcome.jobs[0]
    assert (kept.worker, kept.start, kept.end, kept.attempts) == (None, None, None, 0)
    assert store.path(jobs[0]).stat().st_mtime_ns == first
    began = told[0]
    assert isinstance(began, events.Began)
    assert (began.jobs, began.kept) == (2, 1)


def test_nothing_to_do_starts_nothing(compiler: Compiler, store: ObjectStore) -> None:
    outcome = run_jobs([], store, compiler.settings())
    assert (outcome.jobs, outcome.samples) == ((), ())
    jobs = [compiler.job("m/a")]
    run_jobs(jobs, store, compiler.settings())
    # Not even the memory for it has to be there.
    run_jobs(jobs, store, compiler.settings(limits(1, 1)))
    assert compiler.names() == ["m/a"]


def test_an_imported_object_is_told_apart(compiler: Compiler, store: ObjectStore) -> None:
    job = compiler.job("m/a")
    made = compiler.folder / "imported.o"
    made.write_bytes(b"object")
    store.put(job, made, "imported")
    (record,) = run_jobs([job], store, compiler.settings()).jobs
    assert record.origin == "imported"
    assert compiler.runs() == []


def test_a_changed_source_is_compiled_anew(compiler: Compiler, store: ObjectStore) -> None:
    before = compiler.job("m/a", "make before")
    run_jobs([before], store, compiler.settings())
    after = compiler.job("m/a", "make after")
    run_jobs([after], store, compiler.settings())
    assert store.path(before).read_text().split()[-1] == "before"
    assert store.path(after).read_text().split()[-1] == "after"


@pytest.mark.parametrize("damage", ["object", "record"])
def test_a_damaged_object_is_announced_and_compiled_anew(
    compiler: Compiler, store: ObjectStore, damage: str
) -> None:
    jobs = [compiler.job("m/a"), compiler.job("m/b")]
    run_jobs(jobs, store, compiler.settings())
    path = store.path(jobs[1])
    whole = path.read_bytes()
    (path if damage == "object" else path.with_suffix(".json")).write_bytes(whole[:-1])
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(), told.append)
    assert [type(event) for event in told[:2]] == [events.Discarded, events.Began]
    assert isinstance(told[0], events.Discarded)
    assert told[0].job == "m/b"
    assert [record.origin for record in outcome.jobs] == ["kept", "compiled"]
    assert path.read_bytes() == whole
    assert sorted(compiler.names()) == ["m/a", "m/b", "m/b"]


# Limits


def test_workers_and_memory_are_kept_to(compiler: Compiler, store: ObjectStore) -> None:
    sizes = {"m/a": 600, "m/b": 500, "m/c": 300, "m/d": 300, "m/e": 200, "m/f": 100, "m/g": 100}
    jobs = [
        compiler.job(name, "sleep 0.4; make", megabytes=size, seconds=float(size))
        for name, size in sizes.items()
    ]
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(limits(3, 1000)), told.append)
    runs = compiler.runs()
    assert sorted(run.job for run in runs) == sorted(sizes)
    together = [*overlapping(runs)]
    assert max(map(len, together)) <= 3
    assert max(sum(sizes[run.job] for run in group) for group in together) <= 1000
    # The longest first, and what fits beside it at once.
    started = [event.job for event in told if isinstance(event, events.Started)]
    assert started[:3] == ["m/a", "m/c", "m/f"]
    # A worker does one thing after the other.
    records = sorted(outcome.jobs, key=lambda one: one.start or 0.0)
    assert {one.worker for one in records} <= {0, 1, 2}
    for number in range(3):
        mine = [one for one in records if one.worker == number]
        for earlier, later in itertools.pairwise(mine):
            assert earlier.end is not None
            assert later.start is not None
            assert earlier.end <= later.start


def test_several_run_at_once_where_they_fit(compiler: Compiler, store: ObjectStore) -> None:
    # Each waits for the other: one after the other they would never end.
    what = "touch $folder/{0}; until [ -e $folder/{1} ]; do sleep 0.05; done; make"
    jobs = [compiler.job("m/a", what.format(1, 2)), compiler.job("m/b", what.format(2, 1))]
    outcome = run_jobs(jobs, store, compiler.settings(limits(2, 200)))
    assert {record.worker for record in outcome.jobs} == {0, 1}


def test_what_does_not_fit_even_alone_is_refused_before_anything_starts(
    compiler: Compiler, store: ObjectStore
) -> None:
    jobs = [compiler.job("m/a"), compiler.job("m/large", megabytes=2000)]
    with pytest.raises(BuildError, match="m/large needs about 2000 MB"):
        run_jobs(jobs, store, compiler.settings(limits(2, 1000)))
    assert compiler.runs() == []


# Memory that was really taken


def test_memory_is_measured(
    compiler: Compiler, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel knows a program by the name of its file.
    program = compiler.folder / "cicc"
    program.symlink_to(os.path.realpath(sys.executable))
    code = "import time; block = bytearray(120 << 20); time.sleep(1.5)"
    what = f"{program} -I -c '{code}' -arch compute_120f $source; make"
    monkeypatch.setattr(scheduler_module, "_SECONDS_BETWEEN_REPORTS", 0.2)
    jobs = [compiler.job("m/a", what, megabytes=50), compiler.job("m/b")]
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(), told.append)
    seen = by_name(outcome)
    assert seen["m/a"].peak_megabytes is not None
    assert 120 <= seen["m/a"].peak_megabytes < 400
    assert seen["m/b"].peak_megabytes is None
    assert max(megabytes for _, megabytes in outcome.samples) >= 120
    times = [second for second, _ in outcome.samples]
    assert times == sorted(times)
    working = [event for event in told if isinstance(event, events.Working)]
    assert max(event.megabytes for event in working) >= 120
    assert any(name == "m/a" for event in working for name, _, _ in event.running)
    (finished,) = [e for e in told if isinstance(e, events.Finished) and e.job == "m/a"]
    assert finished.peak_megabytes == seen["m/a"].peak_megabytes


def test_a_peak_between_two_reports_is_not_lost(
    compiler: Compiler, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_SECONDS_BETWEEN_REPORTS", 60.0)
    sizes = iter([10, 300, 20])
    observe = lambda *_: next(sizes, 0)  # noqa: E731 (what the kernel would say)
    monkeypatch.setattr(scheduler_module.measure.Watch, "observe", observe)
    outcome = run_jobs([compiler.job("m/a", "sleep 1; make")], store, compiler.settings())
    assert [megabytes for _, megabytes in outcome.samples] == [300]


def test_what_the_cache_returns_without_a_compiler_is_from_the_cache(
    compiler: Compiler, store: ObjectStore
) -> None:
    program = compiler.folder / "cicc"
    program.symlink_to(os.path.realpath(sys.executable))
    code = "import time; time.sleep(1)"
    jobs = [
        compiler.job("m/a", f"{program} -I -c '{code}' -arch compute_120f $source; make"),
        compiler.job("m/b"),
    ]
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(launcher=("env",)), told.append)
    assert [record.origin for record in outcome.jobs] == ["compiled", "cache"]
    origins = {e.job: e.origin for e in told if isinstance(e, events.Finished)}
    assert origins == {"m/a": "compiled", "m/b": "cache"}
    assert [store.find(job).origin for job in jobs] == ["compiled", "cache"]  # type: ignore[union-attr]


# Failures


def test_an_error_names_the_unit_its_reason_and_the_log(compiler: Compiler) -> None:
    what = "echo 'a.cu(5): error: no such thing'; for i in $(seq 300); do echo warning $i; done; "
    error, outcome = fail(compiler, [compiler.job("m/a", what + "exit 2")])
    assert type(error) is BuildError
    assert error.exit_code == 6
    log = compiler.folder / "logs/m/a.log"
    assert str(error).startswith("m/a: the compiler reported an error")
    assert str(log) in str(error)
    assert str(error).endswith("\na.cu(5): error: no such thing")
    assert "warning 300" in log.read_text()
    (record,) = outcome.jobs
    assert (record.origin, record.attempts) == (None, 1)
    assert record.failure == "the compiler reported an error"


def test_after_an_error_what_runs_is_finished_and_nothing_new_is_started(
    compiler: Compiler, store: ObjectStore
) -> None:
    jobs = [
        compiler.job("m/slow", "sleep 1.5; make", seconds=9),
        compiler.job("m/bad", "sleep 0.3; echo error; exit 1", seconds=8),
        compiler.job("m/later", seconds=7),
    ]
    error, outcome = fail(compiler, jobs)
    assert str(error).startswith("m/bad:")
    assert sorted(compiler.names()) == ["m/bad", "m/slow"]
    assert [record.origin for record in outcome.jobs] == ["compiled", None, None]
    later = by_name(outcome)["m/later"]
    assert (later.start, later.attempts, later.failure) == (None, 0, None)
    assert store.find(jobs[0]) is not None
    # What it has cost is known, too.
    assert [one.name for one in read_costs(compiler.folder / "costs.json").values()] == ["m/slow"]


def test_the_first_of_two_errors_is_told(compiler: Compiler) -> None:
    jobs = [
        compiler.job("m/first", "sleep 0.2; exit 1"),
        compiler.job("m/second", "sleep 1.5; kill -9 $$"),
    ]
    told: list[Event] = []
    error, outcome = fail(compiler, jobs, listen=told.append)
    assert str(error).startswith("m/first:")
    # Nothing is tried again any more, and nobody is told that it would be.
    assert compiler.names().count("m/second") == 1
    assert all(record.failure for record in outcome.jobs)
    ends = [event.name for event in told if isinstance(event, (events.Failed, events.Retried))]
    assert ends == ["failed", "failed"]


def test_a_job_that_is_killed_is_compiled_once_more_alone(
    compiler: Compiler, store: ObjectStore
) -> None:
    jobs = [
        compiler.job("m/long", "sleep 1; make", seconds=9),
        compiler.job("m/killed", KILLED_ONCE, seconds=8),
        *(compiler.job(f"m/{number}", "sleep 0.2; make", seconds=1) for number in range(4)),
    ]
    told: list[Event] = []
    outcome = run_jobs(jobs, store, compiler.settings(limits(3)), told.append)
    assert {record.origin for record in outcome.jobs} == {"compiled"}
    killed = by_name(outcome)["m/killed"]
    assert (killed.attempts, killed.failure) == (2, None)
    runs = compiler.runs()
    first, second = [run for run in runs if run.job == "m/killed"]
    assert first.end is None
    assert second.end is not None
    for run in runs:
        if run not in (first, second):
            assert run.end is not None
            assert run.end <= second.begin or second.end <= run.begin, run
    # In its turn: others were there before and after.
    assert any(run.begin > second.begin for run in runs)
    (retried,) = [event for event in told if isinstance(event, events.Retried)]
    assert retried.job == "m/killed"
    starts = [e for e in told if isinstance(e, events.Started) and e.job == "m/killed"]
    assert [event.attempt for event in starts] == [1, 2]


def test_what_a_killed_compiler_had_started_ends_before_the_retry(
    compiler: Compiler, store: ObjectStore
) -> None:
    # The driver is killed, and what it had started would live on.
    what = (
        'if [ "$earlier" = 0 ]; then sleep 300 & echo $! > $folder/child; kill -9 $$; wait; fi;'
        " grep -q '^State:.[RSD]' /proc/$(cat $folder/child)/status && exit 7; make"
    )
    (record,) = run_jobs([compiler.job("m/a", what)], store, compiler.settings()).jobs
    assert (record.origin, record.attempts) == ("compiled", 2)
    assert not is_alive(int((compiler.folder / "child").read_text()))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("kill -9 $$", "the compiler was killed"),
        ("echo 'cc1plus: out of memory allocating 9 bytes'; exit 1", "out of memory"),
        ("echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"; exit 1", "killed"),
    ],
)
def test_a_second_lack_of_memory_is_the_end(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, what: str, reason: str
) -> None:
    monkeypatch.setattr(failure, "memory_kills", lambda: 0)
    error, outcome = fail(compiler, [compiler.job("m/a", what, megabytes=777)])
    assert type(error) is OutOfMemoryError
    assert error.exit_code == 8
    text = str(error)
    assert text.startswith("m/a: ")
    assert reason in text.partition(";")[0]
    assert "also alone, with nothing beside it" in text
    assert "777 MB were expected" in text
    assert f"the limit is {limits().megabytes} MB" in text
    assert "an unknown amount" in text
    assert compiler.names() == ["m/a", "m/a"]
    assert outcome.jobs[0].attempts == 2


def test_what_it_was_seen_to_take_is_told(compiler: Compiler) -> None:
    program = compiler.folder / "cicc"
    program.symlink_to(os.path.realpath(sys.executable))
    code = "import time; block = bytearray(120 << 20); time.sleep(1)"
    what = f"{program} -I -c '{code}' -arch compute_120f $source; kill -9 $$"
    error, outcome = fail(compiler, [compiler.job("m/a", what)])
    found = re.search(r"It was seen to take (\d+) MB", str(error))
    assert found is not None
    assert 120 <= int(found[1]) < 400
    assert outcome.jobs[0].peak_megabytes == int(found[1])


def test_the_kernels_count_of_kills_is_taken_into_account(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(failure, "memory_kills", lambda: next(counts))
    error, _ = fail(compiler, [compiler.job("m/a", "kill -9 $$")])
    assert str(error).startswith("m/a: out of memory also alone")


def test_a_full_disk_has_its_own_error(compiler: Compiler) -> None:
    # Really full: /dev/full refuses whatever is written.
    error, outcome = fail(compiler, [compiler.job("m/a", "cat $source > /dev/full")])
    assert type(error) is DiskFullError
    assert error.exit_code == 9
    assert "No space left on device" in str(error)
    assert str(compiler.folder / "scratch") in str(error)
    assert compiler.names() == ["m/a"]
    assert outcome.jobs[0].failure == "no space is left on the disk"


class FullStore(ObjectStore):
    """A store that takes no more."""

    number = errno.ENOSPC

    def put(self, job: Job, made: Path, origin: StoredOrigin) -> StoredObject:
        if job.name == "m/b":
            raise OSError(self.number, os.strerror(self.number), str(self.path(job)))
        return super().put(job, made, origin)


def test_a_full_disk_is_noticed_when_an_object_is_kept(compiler: Compiler) -> None:
    jobs = [
        compiler.job("m/a", "sleep 1; make", seconds=9),
        compiler.job("m/b", seconds=8),
        compiler.job("m/c", seconds=7),
    ]
    told: list[Event] = []
    store = FullStore(compiler.folder / "objects")
    kept: list[Outcome] = []
    with pytest.raises(DiskFullError, match="No space left on device"):
        run_jobs(jobs, store, compiler.settings(), told.append, kept.append)
    records = by_name(kept[0])
    assert [records[job.name].origin for job in jobs] == ["compiled", None, None]
    assert records["m/b"].failure == "no space is left on the disk"
    assert records["m/b"].seconds is not None
    assert [event.job for event in told if isinstance(event, events.Failed)] == ["m/b"]
    # What takes space and counts for nothing is not left there.
    assert [*(compiler.folder / "scratch").rglob("*.o")] == []


def test_another_error_of_the_store_is_not_called_a_full_disk(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FullStore, "number", errno.EACCES)
    with pytest.raises(BuildError, match=r"cannot keep the object of m/b.*Permission denied"):
        run_jobs([compiler.job("m/b")], FullStore(compiler.folder / "objects"), compiler.settings())


def test_a_compiler_that_leaves_no_object_has_failed(compiler: Compiler) -> None:
    error, outcome = fail(compiler, [compiler.job("m/a", "echo fine")])
    assert type(error) is BuildError
    assert "the compiler succeeded and left no a.o" in str(error)
    assert outcome.jobs[0].origin is None


def test_an_object_of_a_compiler_that_failed_does_not_count(
    compiler: Compiler, store: ObjectStore
) -> None:
    job = compiler.job("m/a", "make; echo 'error: after all'; exit 1")
    fail(compiler, [job])
    assert store.find(job) is None
    assert [*compiler.folder.rglob("*.o")] == []


def test_a_compiler_that_is_not_there_is_named(compiler: Compiler, store: ObjectStore) -> None:
    compiler.program.unlink()
    with pytest.raises(BuildError, match=r"cannot compile m/a: .*compiler does not start"):
        run_jobs([compiler.job("m/a")], store, compiler.settings())


# Interruptions


def test_a_second_build_in_the_same_folder_is_refused(
    compiler: Compiler, store: ObjectStore
) -> None:
    refused: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, events.Started):
            with pytest.raises(BuildError) as caught:
                run_jobs([compiler.job("m/b")], store, compiler.settings())
            refused.append(str(caught.value))

    run_jobs([compiler.job("m/a")], store, compiler.settings(), listen)
    (text,) = refused
    assert f"another build is compiling in {compiler.folder / 'scratch'}" in text
    assert "--build-root" in text
    assert compiler.names() == ["m/a"]
    # The folder is free again, also after a failure.
    fail(compiler, [compiler.job("m/c", "exit 1")])
    run_jobs([compiler.job("m/b")], store, compiler.settings())


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C as on a terminal, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("manners", ["", "trap '' TERM; "])
def test_an_interruption_ends_all_compilers_and_what_they_started(
    compiler: Compiler, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, manners: str
) -> None:
    monkeypatch.setattr(scheduler_module, "_SECONDS_TO_STOP", 0.5)
    jobs = [
        compiler.job(f"m/{name}", f"{manners}sleep 300 & echo $! > $folder/{name}; wait; make")
        for name in "ab"
    ]
    children = [compiler.folder / name for name in "ab"]

    def listen(event: Event) -> None:
        if isinstance(event, events.Started) and event.job == "m/b":
            wait_for(lambda: all(c.exists() and c.read_text() for c in children), "both compilers")
            signal.raise_signal(signal.SIGINT)  # Ctrl-C

    kept: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, store, compiler.settings(), listen, kept.append)
    (outcome,) = kept
    assert [record.failure for record in outcome.jobs] == ["interrupted", "interrupted"]
    assert all(record.seconds is not None for record in outcome.jobs)
    for process in [
        *(run.process for run in compiler.runs()),
        *(int(c.read_text()) for c in children),
    ]:
        wait_for(lambda process=process: not is_alive(process), f"the end of {process}")  # type: ignore[misc]
    assert [store.find(job) for job in jobs] == [None, None]


@pytest.mark.usefixtures("_interruptible")
def test_what_was_compiled_before_an_interruption_is_measured(
    compiler: Compiler, store: ObjectStore
) -> None:
    jobs = [
        compiler.job("m/done", "sleep 0.3; make", seconds=9),
        compiler.job("m/long", "sleep 300; make", seconds=8),
        compiler.job("m/later", seconds=7),
    ]

    def listen(event: Event) -> None:
        if isinstance(event, events.Finished):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        compiler.job_list(jobs).run(limits(), listen)
    assert store.find(jobs[0]) is not None
    assert [one.name for one in read_costs(compiler.folder / "costs.json").values()] == ["m/done"]


def test_what_an_earlier_build_left_half_is_cleared_away(
    compiler: Compiler, store: ObjectStore
) -> None:
    left = compiler.folder / "scratch/objects/0123456789abcdef/units/m/a.o"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    run_jobs([], store, compiler.settings())
    assert not left.exists()


BUILD = """
import json, sys
from pathlib import Path
from compile_jobs import Compiler, limits
from aot.compile.job_list import JobList
listed = JobList.from_json(json.loads(Path(sys.argv[1]).read_text()))
listed.run(limits(), lambda event: print(event.name, getattr(event, "job", ""), flush=True))
"""


def start_build(compiler: Compiler, jobs: list[Job]) -> subprocess.Popen[str]:
    path = compiler.folder / "jobs.json"
    path.write_text(json.dumps(compiler.job_list(jobs).to_json()))
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, path],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    pytest.fail(f"the build ended without {line!r}")


def kill_what_runs(compiler: Compiler) -> None:
    for run in compiler.runs():
        if run.end is None and is_alive(run.process):
            os.killpg(run.process, signal.SIGKILL)


def test_after_a_kill_only_what_was_not_finished_is_compiled(
    compiler: Compiler, store: ObjectStore
) -> None:
    jobs = [
        compiler.job("m/done", seconds=9),
        compiler.job("m/running", 'if [ "$earlier" = 0 ]; then sleep 300; fi; make', seconds=8),
        compiler.job("m/next", 'if [ "$earlier" = 0 ]; then sleep 300; fi; make', seconds=7),
        compiler.job("m/last", seconds=6),
    ]
    with start_build(compiler, jobs) as process:
        wait_for_line(process, "finished m/done")
        wait_for_line(process, "started m/next")
        wait_for(lambda: len(compiler.runs()) == 3, "the third compiler")
        process.kill()
    try:
        assert store.find(jobs[0]) is not None
        outcome = run_jobs(jobs, store, compiler.settings())
    finally:
        kill_what_runs(compiler)
    assert [record.origin for record in outcome.jobs] == ["kept", *["compiled"] * 3]
    assert sorted(compiler.names()[3:]) == ["m/last", "m/next", "m/running"]


def test_what_a_killed_build_left_running_does_not_get_into_a_later_one(
    compiler: Compiler, store: ObjectStore
) -> None:
    """A compiler of an earlier source ends while the same unit is compiled from a later one."""
    go, gone = compiler.folder / "go", compiler.folder / "gone"
    wait = "until [ -e {} ]; do sleep 0.05; done"
    with start_build(
        compiler,
        [compiler.job("m/a", f"{wait.format(go)}; echo earlier > $object; touch {gone}")],
    ) as process:
        wait_for_line(process, "started m/a")
        wait_for(lambda: len(compiler.runs()) == 1, "the compiler")
        process.kill()
    (left,) = compiler.runs()
    assert is_alive(left.process)
    later = compiler.job("m/a", f"echo later > $object; touch {go}; {wait.format(gone)}")
    try:
        run_jobs([later], store, compiler.settings())
    finally:
        kill_what_runs(compiler)
    assert store.path(later).read_text() == "later\n"


# What is told


def test_events_come_in_order(compiler: Compiler, store: ObjectStore) -> None:
    jobs = [compiler.job("m/a", seconds=9), compiler.job("m/b", KILLED_ONCE, seconds=8)]
    told: list[Event] = []
    run_jobs(jobs, store, compiler.settings(limits(1)), told.append)
    steps = [(e.name, getattr(e, "job", "")) for e in told if not isinstance(e, events.Working)]
    assert steps == [
        ("began", ""),
        *(("started", "m/a"), ("finished", "m/a")),
        *(("started", "m/b"), ("retried", "m/b"), ("started", "m/b"), ("finished", "m/b")),
    ]
    times = [event.seconds for event in told]
    assert times == sorted(times)
    began, *_, last = told
    assert isinstance(began, events.Began)
    assert (began.jobs, began.kept, began.workers) == (2, 0, 1)
    assert began.limit_megabytes == limits().megabytes
    assert began.seconds_left == 17
    assert isinstance(last, events.Finished)
    assert (last.done, last.total, last.seconds_left) == (2, 2, 0)
    counts = [event.done for event in told if isinstance(event, events.Finished)]
    assert counts == [1, 2]


def test_a_failure_is_told(compiler: Compiler) -> None:
    told: list[Event] = []
    with pytest.raises(BuildError):
        compiler.job_list([compiler.job("m/a", "exit 1")]).run(limits(), told.append)
    assert isinstance(told[-1], events.Failed)
    assert (told[-1].job, told[-1].reason) == ("m/a", "the compiler reported an error")


def test_what_is_left_follows_the_speed_of_this_machine(
    compiler: Compiler, store: ObjectStore
) -> None:
    # Expected to take minutes, and done at once.
    jobs = [compiler.job(f"m/{number}", seconds=100 - number) for number in range(3)]
    told: list[Event] = []
    run_jobs(jobs, store, compiler.settings(limits(1)), told.append)
    left = [event.seconds_left for event in told if isinstance(event, events.Finished)]
    assert left[-1] == 0
    assert all(seconds < 60 for seconds in left)


# The list of jobs


def test_a_list_survives_being_written_down(compiler: Compiler) -> None:
    listed = compiler.job_list([compiler.job("m/a"), compiler.job("operators/b")], ("env", "A=1"))
    data = json.loads(json.dumps(listed.to_json()))
    assert type(listed).from_json(data) == listed


def test_what_was_compiled_is_measured_for_the_next_build(compiler: Compiler) -> None:
    jobs = [compiler.job("m/a", "sleep 0.5; make"), compiler.job("m/b")]
    kept: list[Outcome] = []
    outcome = compiler.job_list(jobs).run(limits(), keep=kept.append)
    assert kept == [outcome]
    known = read_costs(compiler.folder / "costs.json")
    assert {one.name for one in known.values()} == {"m/a", "m/b"}
    assert 0.5 <= known[jobs[0].key].cost.seconds < 60
    # What is kept costs nothing, and leaves the figures as they are.
    compiler.job_list(jobs).run(limits())
    assert read_costs(compiler.folder / "costs.json") == known
