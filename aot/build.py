"""Compile and link a wheel.

scikit-build-core, CMake and ninja do the building, exactly as `pip wheel .` does; this adds
progress, a log, and the part of that log that matters when it fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from aot import costs, measure, memory, pipeline, progress
from aot.costs import UnitCost
from aot.errors import BuildError
from aot.pipeline import Prepared
from aot.process import run

_SHOWN_LINES = 40


@dataclass(frozen=True)
class Compiled:
    """What the build backend left.

    Parameters
    ----------
    wheel
        The wheel, with the plain platform tag of this machine.
    seconds
        Wall time of compiling and linking.
    cache_hits, cache_misses
        Of the object cache in this build; None without a cache.
    units
        What each translation unit has cost.
    """

    wheel: Path
    seconds: float
    cache_hits: int | None
    cache_misses: int | None
    units: tuple[UnitCost, ...] = ()


def compile_wheel(
    prepared: Prepared, out: Path, console: Console, memory_megabytes: int | None = None
) -> Compiled:
    """Run the build backend and return the wheel as it wrote it.

    Objects that are finished stay in the build folder and in the cache: after an interruption only
    what was running is compiled again.

    Parameters
    ----------
    prepared
        What `aot.pipeline.prepare` returned.
    out
        Empty folder for the wheel.
    console
        Shows the progress.
    memory_megabytes
        Limit for all compilers together; by default what is free now.

    Raises
    ------
    BuildError
        With the end of the log when something failed.
    """
    # Decided once: what CMake plans with is what the jobs and the estimate are for.
    limit = memory_megabytes or memory.available_megabytes()
    schedule = memory.make_schedule(prepared.plan.units, limit)
    log = prepared.folders.root / "build.log"
    start = time.monotonic()
    before = _cache_counts(prepared)
    estimate = progress.Estimate(_seconds(prepared), schedule.jobs)
    watch = measure.Watch(prepared.plan, prepared.roots)
    steps: set[str] = set()
    variables = pipeline.version_variables(prepared.plan)
    backend = _lines(_command(prepared, out, limit), log, schedule.jobs, variables)
    lines = _noting(backend, steps)
    try:
        with measure.watching(watch):
            progress.follow(lines, estimate, console)
    finally:
        # Also of a build that failed: what it has finished is not compiled again.
        units = _unit_costs(prepared, watch, steps)
        costs.record_costs(prepared.folders.costs, prepared.plan, units)
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(f"the build backend left {len(wheels)} wheels; see {log}")
    seconds = time.monotonic() - start
    hits, misses = _cache_difference(before, _cache_counts(prepared))
    return Compiled(wheels[0], seconds, hits, misses, units)


def _noting(lines: Iterable[str], steps: set[str]) -> Iterator[str]:
    """Note which units ninja has made."""
    for line in lines:
        step = progress.parse_line(line)
        if step is not None and step.text.startswith("compile "):
            steps.add(step.text.removeprefix("compile "))
        yield line


def _unit_costs(prepared: Prepared, watch: measure.Watch, steps: set[str]) -> tuple[UnitCost, ...]:
    return costs.unit_costs(
        prepared.plan,
        steps=steps,
        seconds=costs.ninja_seconds(prepared.folders.root / "wheel" / ".ninja_log"),
        peaks=watch.peaks,
        compiled=watch.compiled if pipeline.object_cache_program() else None,
        known=costs.read_costs(prepared.folders.costs),
    )


def _command(prepared: Prepared, out: Path, memory_megabytes: int | None) -> list[str]:
    defines = {
        "FP4AOT_PRESET": prepared.plan.preset,
        "FP4AOT_CUDA": prepared.plan.versions.cuda,
        "FP4AOT_FLASHINFER": prepared.plan.versions.flashinfer,
        "FP4AOT_MEMORY_LIMIT": str(memory_megabytes or ""),
        "FP4AOT_BUILD_ROOT": str(prepared.folders.root),
    }
    settings = [f"--config-settings=cmake.define.{key}={value}" for key, value in defines.items()]
    return [
        *(sys.executable, "-m", "pip", "wheel", str(pipeline.SOURCE_ROOT)),
        *("--no-deps", "--no-build-isolation", "--no-input", "--verbose"),
        *(f"--config-settings=build-dir={prepared.folders.root / 'wheel'}", *settings),
        *("--wheel-dir", str(out)),
    ]


def _lines(command: list[str], log: Path, jobs: int, variables: dict[str, str]) -> Iterator[str]:
    """Run the backend, copy its output into the log, and yield it line by line."""
    environ = (
        os.environ
        | variables
        | {
            "NINJA_STATUS": progress.NINJA_STATUS,
            "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
            "PYTHONUNBUFFERED": "1",
        }
    )
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
    """Return what a failed build says of its cause.

    Compilers print hundreds of warnings about FlashInfer's sources, and the front end repeats at
    the end that it failed: neither is shown.
    """
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


def _seconds(prepared: Prepared) -> dict[str, int]:
    """Estimates by the names that ninja prints: FlashInfer's units, and our own sources."""
    units = {
        f"{module.name}/{unit.name}": unit.seconds
        for module in prepared.plan.modules
        for unit in module.units
    }
    runtime = {f"tvm_ffi/{Path(s).stem}": 3 for s in prepared.plan.tvm_ffi_sources}
    operators = {
        f"operators/{path.stem}": 5
        for path in pipeline.SOURCE_ROOT.glob("wheels/fp4aot/csrc/*.cpp")
    }
    operators["operators/kernel_entries"] = 5
    return units | runtime | operators


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


def _cache_difference(
    before: tuple[int, int] | None, after: tuple[int, int] | None
) -> tuple[int | None, int | None]:
    if before is None or after is None:
        return None, None
    return after[0] - before[0], after[1] - before[1]


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
