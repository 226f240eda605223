"""Compile and link a wheel.

The compilers are run by our own scheduler (`aot.compile`). scikit-build-core, CMake and ninja do
the rest exactly as `pip wheel .` does, where the same scheduler is one step; this adds a log, and
the part of that log that matters when it fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from aot import costs, files, pipeline, progress
from aot.build_report import write_report
from aot.compile.admission import Limits
from aot.compile.events import Listener
from aot.compile.job import Job
from aot.compile.record import BuildRecord
from aot.compile.scheduler import Outcome
from aot.costs import UnitCost
from aot.errors import BuildError
from aot.pipeline import Prepared
from aot.process import run

_SHOWN_LINES = 40


def compile_objects(
    prepared: Prepared,
    limits: Limits,
    listen: Listener,
    wanted: Callable[[Job], bool] = lambda _: True,
) -> tuple[BuildRecord, tuple[UnitCost, ...]]:
    """Make the objects that are missing.

    Finished objects stay in the build folder and in the cache: after an interruption only what was
    running is compiled again.

    Parameters
    ----------
    prepared
        What `aot.pipeline.prepare` returned.
    limits
        Compilers at once, and their memory.
    listen
        Is told what happens.
    wanted
        Which jobs; by default all.

    Returns
    -------
    tuple[BuildRecord, tuple[UnitCost, ...]]
        What was done, job by job, and what each unit of FlashInfer's modules has cost.

    Raises
    ------
    BuildError
        With the reason when one fails.
    """
    every = pipeline.write(prepared, prepared.folders.generated)
    jobs = tuple(job for job in every if wanted(job))
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    before = _cache_counts(prepared)
    outcomes: list[Outcome] = []
    try:
        pipeline.job_list(prepared, jobs).run(limits, listen, outcomes.append)
    finally:
        # Also of a build that failed.
        if outcomes:
            record = _record(prepared, limits, started, outcomes[0], before)
            files.write_json(prepared.folders.record, record.to_json())
            write_report(record, prepared.folders.report)
    known = costs.read_costs(prepared.folders.costs)
    return record, costs.unit_costs(jobs, record.jobs, known)


def _record(
    prepared: Prepared,
    limits: Limits,
    started: str,
    outcome: Outcome,
    before: tuple[int, int] | None,
) -> BuildRecord:
    plan = prepared.plan
    record = BuildRecord(
        preset=plan.preset,
        plan_hash=plan.hash,
        versions={
            "CUDA compiler": plan.versions.cuda_compiler,
            "FlashInfer": plan.versions.flashinfer,
            "C++ compiler": str(prepared.host_compiler.version),
        },
        machine=plan.machine,
        started=started,
        seconds=round(outcome.seconds, 1),
        workers=limits.workers,
        limit_megabytes=limits.megabytes,
        jobs=outcome.jobs,
        samples=outcome.samples,
    )
    after = _cache_counts(prepared)
    if before is None or after is None:
        return record
    return replace(record, cache_hits=after[0] - before[0], cache_misses=after[1] - before[1])


def link_wheel(prepared: Prepared, out: Path, limits: Limits, console: Console) -> Path:
    """Run the build backend, whose compiling is done, and return the wheel as it wrote it.

    Parameters
    ----------
    prepared
        What `aot.pipeline.prepare` returned.
    out
        Empty folder for the wheel.
    limits
        As they were for compiling.
    console
        Shows the progress.

    Raises
    ------
    BuildError
        With the end of the log when something failed.
    """
    log = prepared.folders.root / "build.log"
    environ = backend_environment(prepared)
    progress.follow(_lines(_command(prepared, out, limits), log, environ), console)
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"the build backend left {len(wheels)} wheels; see {log}")
    return wheels[0]


def _command(prepared: Prepared, out: Path, limits: Limits) -> list[str]:
    plan = prepared.plan
    defines = {
        "FP4AOT_PRESET": plan.preset,
        "FP4AOT_CUDA": plan.versions.cuda,
        "FP4AOT_FLASHINFER": plan.versions.flashinfer,
        "FP4AOT_ARCHITECTURES": ",".join(map(str, prepared.plan.architectures)),
        "FP4AOT_PLATFORM": plan.machine,
        "FP4AOT_MEMORY_LIMIT": str(limits.megabytes),
        "FP4AOT_BUILD_ROOT": str(prepared.folders.root),
    }
    settings = [f"--config-settings=cmake.define.{key}={value}" for key, value in defines.items()]
    return [
        *(sys.executable, "-m", "pip", "wheel", str(pipeline.SOURCE_ROOT)),
        *("--no-deps", "--no-build-isolation", "--no-input", "--verbose"),
        *(f"--config-settings=build-dir={prepared.folders.wheel}", *settings),
        *("--wheel-dir", str(out)),
    ]


def backend_environment(prepared: Prepared) -> dict[str, str]:
    """Environment of the build backend: of what it builds, and nothing that differs by run."""
    return {
        **os.environ,
        **pipeline.version_variables(prepared.plan),
        # How Python's own tools are told which machine a wheel is for.
        "_PYTHON_HOST_PLATFORM": f"linux-{prepared.plan.machine}",
        # The backend sets it to this machine's compiler where it is not set.
        "CXX": str(prepared.host_compiler.path),
        # The time of an archive's entries, and of the bill of materials.
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", pipeline.SOURCE_DATE_EPOCH),
        "NINJA_STATUS": progress.NINJA_STATUS,
        "PYTHONUNBUFFERED": "1",
    }


def _lines(command: list[str], log: Path, environ: dict[str, str]) -> Iterator[str]:
    """Run the backend, copy its output into the log, and yield it line by line."""
    tail: deque[str] = deque(maxlen=2000)
    with (
        log.open("w") as stream,
        subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 (stdout=PIPE; for the type checker)
        for line in process.stdout:
            stream.write(line)
            tail.append(line)
            yield line
    if process.returncode != 0:
        raise BuildError(
            f"the build failed with exit code {process.returncode}; the whole log is in {log}\n"
            f"{relevant(list(tail))}"
        )


def relevant(lines: list[str]) -> str:
    """Return what a failed build says of its cause: the front end repeats only that it failed."""
    for index, line in enumerate(lines):
        if "FAILED:" in line:
            step = lines[index:]
            if len(step) <= _SHOWN_LINES:
                return "".join(step)
            errors = [text for text in step[1:] if re.search(r"\berror\b", text, re.IGNORECASE)]
            return "".join([step[0], *errors[:_SHOWN_LINES]])
        if "CMake Error" in line:
            # What CMake ran has given its reason before.
            return "".join(lines[max(0, index - 20) : index + 20])
    return "".join(lines[-_SHOWN_LINES:])


def _cache_counts(prepared: Prepared) -> tuple[int, int] | None:
    """Hits and misses so far, by sccache's own count."""
    program = pipeline.object_cache_program()
    if program is None:
        return None
    done = run(
        [program, "--show-stats", "--stats-format=json"],
        purpose="ask the object cache",
        error=BuildError,
        environ=os.environ | pipeline.object_cache_variables(prepared.folders.object_cache),
    )
    stats = json.loads(done.stdout)["stats"]
    return sum(stats["cache_hits"]["counts"].values()), sum(
        stats["cache_misses"]["counts"].values()
    )


def stop_object_cache(prepared: Prepared) -> None:
    """Stop the cache's server: a build leaves no process behind."""
    program = pipeline.object_cache_program()
    if program is not None:
        subprocess.run(
            [program, "--stop-server"],
            env=os.environ | pipeline.object_cache_variables(prepared.folders.object_cache),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
