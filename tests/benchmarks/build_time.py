"""Build a preset, and let FlashInfer build the same modules: ``build_time.py --preset quick``.

Both start cold, with the same toolkit, targets and number of compilers at once, one after the
other. Ours is the whole wheel: the modules, the TVM-FFI runtime, the operators, the checks. For the
other side FlashInfer's own ``build_jit_specs`` runs in the pinned environment, one process for each
set of targets, and makes the modules alone. Toolkit and environment are those of the build folder,
and fetching them counts on neither side.

FlashInfer links with ``-lcudart -lcuda``, which a toolkit from packages has not under these names:
it gets a folder with a link to the former and an empty library for the latter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from aot import pipeline, process, specs  # noqa: E402
from aot.architectures import Architecture  # noqa: E402
from aot.catalog import Module  # noqa: E402
from aot.command_line import DEFAULT_BUILD_ROOT  # noqa: E402
from aot.compile.admission import Limits, make_limits  # noqa: E402
from aot.errors import AotError, BuildError  # noqa: E402
from aot.estimates import estimate  # noqa: E402
from aot.pipeline import Prepared  # noqa: E402
from aot.plan import BuildPlan, preset_named  # noqa: E402
from benchmarks.table import columns  # noqa: E402

NINJA_FIELDS = 5  # start and end in milliseconds, time stamp, output, hash of the command


@dataclass(frozen=True)
class Row:
    """One module.

    Parameters
    ----------
    module
        Its name.
    ours, theirs
        Seconds of compiling its translation units, all together.
    """

    module: str
    ours: float
    theirs: float


@dataclass(frozen=True)
class Comparison:
    """Both builds.

    Parameters
    ----------
    preset, jobs
        What was built, with how many compilers at once.
    versions
        Of the toolkit and FlashInfer.
    rows
        Module by module.
    ours, theirs
        Wall time in seconds: of our wheel, and of FlashInfer's modules.
    """

    preset: str
    jobs: int
    versions: dict[str, str]
    rows: tuple[Row, ...]
    ours: float
    theirs: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "ratio": self.ours / self.theirs}

    def table(self) -> str:
        """The same, for people."""
        lines = [("", "fp4aot, s", "FlashInfer, s", "ratio")]
        lines += [_line(f"{row.module}: compiling", row.ours, row.theirs) for row in self.rows]
        lines.append(_line("wall time: the wheel / the modules", self.ours, self.theirs))
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        title = f"preset {self.preset}, {self.jobs} compilers at once, cold; {versions}"
        return columns(title, lines, "lrrr")


def _line(name: str, ours: float, theirs: float) -> tuple[str, str, str, str]:
    return name, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}"


def jobs_at_once(plan: BuildPlan, limits: Limits) -> int:
    """Say how many compilers run at once on both sides: so many of the largest fit into memory.

    FlashInfer's ninja counts jobs, not bytes.
    """
    largest = max(estimate(Path(unit.source), unit.flags)[0] for unit in plan.units)
    return max(1, min(limits.workers, limits.budget // largest))


def build_ours(prepared: Prepared, build_root: Path, jobs: int, scratch: Path) -> dict[str, Any]:
    """Build a wheel with empty caches, and return its report.

    Raises
    ------
    BuildError
        When it fails, or took an object from a cache.
    """
    root = scratch / "ours"
    root.mkdir()
    for name in ("toolchain", "environments"):
        (root / name).symlink_to(build_root / name)
    report = root / "report.json"
    process.run(
        [
            *(sys.executable, "-m", "aot", "build", "--build-root", root),
            *("--preset", prepared.plan.preset, "--jobs", str(jobs)),
            *("--out", root / "dist", "--report", report),
        ],
        purpose=f"build the preset {prepared.plan.preset}",
        error=BuildError,
        cwd=ROOT,
    )
    return read_report(report, prepared)


def read_report(path: Path, prepared: Prepared) -> dict[str, Any]:
    """Read the report of a build, which must have been a cold one of the same plan.

    Raises
    ------
    BuildError
        When it was not.
    """
    data: dict[str, Any] = json.loads(path.read_text())
    if data["plan_hash"] != prepared.plan.hash:
        raise BuildError(f"{path} is of plan {data['plan_hash']}, not of {prepared.plan.hash}")
    units = [unit for module in data["module_reports"] for unit in module["units"]]
    if data["cache_hits"] or any(unit["origin"] != "compiled" for unit in units):
        raise BuildError(f"{path} is of a build that took objects from a cache: it was not cold")
    return data


def build_theirs(
    prepared: Prepared, modules: Sequence[Module], jobs: int, scratch: Path
) -> tuple[float, dict[str, float]]:
    """Let FlashInfer build the modules; return its wall time, and the seconds of each module."""
    libraries = link_libraries(prepared, scratch / "link")
    total, seconds = 0.0, {}
    for number, targets in enumerate(sorted({module.architectures for module in modules})):
        group = [module for module in modules if module.architectures == targets]
        workspace = scratch / f"theirs-{number}"
        environ = flashinfer_environ(
            specs.reader_environment(
                [Architecture.parse(t) for t in targets], prepared.toolkit, workspace
            ),
            prepared.environment.python.parent,
            libraries,
            jobs,
        )
        done = process.run(
            [
                *(prepared.environment.python, "-I", Path(__file__).with_name("flashinfer_aot.py")),
                *(module.generator for module in group),
            ],
            purpose=f"let FlashInfer build {', '.join(module.name for module in group)}",
            error=BuildError,
            environ=environ,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        total += answer["seconds"]
        # All are built by one ninja, in the folder above theirs.
        folders = {name: Path(folder) for name, folder in answer["modules"].items()}
        log = ninja_seconds(next(iter(folders.values())).parent / ".ninja_log")
        seconds |= module_seconds(log, folders)
    return total, seconds


def flashinfer_environ(
    base: Mapping[str, str], programs: Path, libraries: Path, jobs: int
) -> dict[str, str]:
    """Environment variables of FlashInfer's build: its ninja, its libraries, its job limit."""
    return {
        **base,
        "PATH": f"{programs}{os.pathsep}{base.get('PATH', os.defpath)}",
        "MAX_JOBS": str(jobs),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{libraries}",
    }


def link_libraries(prepared: Prepared, folder: Path) -> Path:
    """Make a folder in which the linker finds ``-lcudart`` and ``-lcuda``."""
    folder.mkdir()
    root = prepared.roots.cuda
    runtimes = [path for name in ("lib64", "lib") for path in (root / name).glob("libcudart.so*")]
    if not runtimes:
        raise BuildError(f"{root} has no shared CUDA runtime for FlashInfer to link with")
    (folder / "libcudart.so").symlink_to(runtimes[0])
    process.run(
        [
            *(prepared.host_compiler.path, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1"),
            *("-x", "c", os.devnull, "-o", folder / "libcuda.so"),
        ],
        purpose="make an empty libcuda.so",
        error=BuildError,
    )
    return folder


def ninja_seconds(log: Path) -> dict[str, float]:
    """Read how long each output took when ninja last made it, by its path as ninja has it."""
    seconds = {}
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == NINJA_FIELDS and fields[0].isdecimal() and fields[1].isdecimal():
            seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return seconds


def module_seconds(log: Mapping[str, float], folders: Mapping[str, Path]) -> dict[str, float]:
    """Sum up what the objects of each module took.

    Raises
    ------
    BuildError
        When the log knows no object of a module.
    """
    result = {}
    for name, folder in folders.items():
        took = [t for path, t in log.items() if path.endswith(".o") and Path(path).parent == folder]
        if not took:
            raise BuildError(f"ninja's log has no object in {folder}")
        result[name] = sum(took)
    return result


def compare(
    preset: str, jobs: int, report: Mapping[str, Any], theirs: tuple[float, Mapping[str, float]]
) -> Comparison:
    """Put both builds beside each other.

    Raises
    ------
    BuildError
        When our report has no time of a module.
    """
    ours = {one["name"]: one["compile_seconds"] for one in report["module_reports"]}
    total, seconds = theirs
    if unknown := [name for name in seconds if ours.get(name) is None]:
        raise BuildError(f"the report has no compile time of {', '.join(unknown)}")
    rows = tuple(Row(name, ours[name], took) for name, took in seconds.items())
    versions = {"CUDA": report["versions"]["cuda_compiler"]}
    versions["FlashInfer"] = report["versions"]["flashinfer"]
    return Comparison(preset, jobs, versions, rows, report["build_seconds"], total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--report", type=Path, help="of a cold build, instead of building now")
    parser.add_argument("--build-root", type=Path, default=DEFAULT_BUILD_ROOT)
    parser.add_argument("--json", type=Path, help="the result as data")
    arguments = parser.parse_args()
    build_root = arguments.build_root.resolve()
    try:
        preset = preset_named(arguments.preset)
        if preset.lowered:
            raise BuildError("FlashInfer cannot build what is lowered: take another preset")
        prepared = pipeline.prepare(arguments.preset, build_root)
        jobs = jobs_at_once(prepared.plan, make_limits())
        with tempfile.TemporaryDirectory(prefix="fp4aot-build-time-") as name:
            scratch = Path(name).resolve()
            theirs = build_theirs(prepared, preset.modules, jobs, scratch)
            if arguments.report is not None:
                report = read_report(arguments.report, prepared)
            else:
                report = build_ours(prepared, build_root, jobs, scratch)
        result = compare(arguments.preset, jobs, report, theirs)
    except AotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(result.table())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
