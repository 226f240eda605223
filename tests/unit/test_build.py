"""Compiling and linking: what is kept of it, its failures, and what a person is told of them."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version
from plans import plan_of
from rich.console import Console

from aot import build, costs
from aot.build import compile_objects, link_wheel, relevant
from aot.compile import events
from aot.compile.admission import Limits
from aot.compile.events import Event
from aot.compile.job_list import JobList
from aot.compile.record import BuildRecord
from aot.costs import UnitCost
from aot.environment import FlashInferEnvironment
from aot.errors import BuildError
from aot.host_compiler import NATIVE_BINUTILS, HostCompiler
from aot.pipeline import Folders, Prepared
from aot.plan import ModulePlan, Roots, Unit
from aot.platform_tools import PlatformTools
from aot.progress import NINJA_STATUS
from aot.toolchain import Toolkit

WARNINGS = [f"warning {number}\n" for number in range(300)]
LIMITS = Limits(2, 8000)
COMPILER = """#!/bin/sh
case $1 in
  --version) echo "g++ (test) 12.2.0"; exit ;;
  -dumpfullversion) echo 12.2.0; exit ;;
esac
while [ "$1" != -c ]; do shift; done
grep -q broken "$2" && { echo "$2: error: broken"; exit 1; }
cp "$2" "$4"
"""
"""What both compilers are here: an object is a copy of its source."""


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """A plan of two units and the runtime's one source, and no object cache to ask."""
    folder = tmp_path / "build"
    compiler = tmp_path / "g++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    roots = Roots(
        *(tmp_path / name for name in ("flashinfer", "tvm_ffi", "torch", "cuda", "python", "work")),
        operators=tmp_path / "operators",
    )
    for path in (
        *(roots.flashinfer / "one.cu", roots.flashinfer / "two.cpp"),
        *(roots.tvm_ffi / "src/ffi/error.cc", roots.operators / "gemm.cpp"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.name}\n")
    units = (
        Unit("one", "@FLASHINFER@/one.cu", "cuda", (), "0" * 64),
        Unit("two", "@FLASHINFER@/two.cpp", "c++", (), "1" * 64),
    )
    module = ModulePlan("m", "family", ("12.0f",), ("12.0f",), units, ())
    plan = plan_of(module, preset="quick", tvm_ffi_sources=("src/ffi/error.cc",))
    version = Version("13.0")
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: None)
    return Prepared(
        plan,
        roots,
        Toolkit(roots.cuda, version, version, compiler, None, None, "test", ()),
        compiler,
        FlashInferEnvironment(tmp_path, Version("0.7.2"), *(tmp_path,) * 5),
        HostCompiler(compiler, Version("12.2.0"), "x86_64"),
        Folders(folder),
        PlatformTools(NATIVE_BINUTILS, roots.cuda / "lib64" / "libcudart_static.a"),
    )


NAMES = ["m/one", "m/two", "tvm_ffi/error", "operators/gemm", "operators/kernel_entries"]


# What is told of a failure


def test_a_failed_step_is_shown_from_its_beginning() -> None:
    failure = ["FAILED: units/m/a.o\n", "nvcc -c a.cu\n", "a.cu(5): error: no such thing\n"]
    end = ["ninja: build stopped: subcommand failed.\n", "error: subprocess-exited\n"]
    assert relevant([*WARNINGS, *failure, *end]) == "".join([*failure, *end])


def test_the_first_of_several_failures_is_shown() -> None:
    text = relevant([*WARNINGS, "FAILED: first\n", "why\n", "FAILED: second\n"])
    assert text.startswith("FAILED: first\nwhy\n")


def test_cmake_errors_count() -> None:
    lines = ["CMake Error at CMakeLists.txt:12 (find_package):\n", "  Could NOT find Python\n"]
    text = relevant([*WARNINGS, *lines])
    assert text.endswith("".join(lines))
    assert len(text.splitlines()) <= 40


def test_without_a_failed_step_the_end_is_shown() -> None:
    assert relevant(WARNINGS) == "".join(WARNINGS[-40:])
    assert relevant(["only this\n"]) == "only this\n"
    assert relevant([]) == ""


def test_what_is_shown_stays_short() -> None:
    assert len(relevant(["FAILED: a\n", *WARNINGS]).splitlines()) <= 60


def test_the_error_is_shown_however_many_warnings_its_unit_has() -> None:
    lines = ["FAILED: units/m/a.o\n", "nvcc -c a.cu\n", *WARNINGS, "a.cu(5): error: no such\n"]
    assert "error: no such" in relevant([*lines, "ninja: build stopped.\n"])


def test_the_reason_for_no_plan_is_shown() -> None:
    lines = [
        "BuildError: quantization needs about 1300 MB to compile and the limit is 900 MB\n",
        "CMake Error at CMakeLists.txt:28 (message):\n",
        "  No build plan: the reason is above.\n",
    ]
    assert "1300 MB" in relevant([*WARNINGS, *lines])


# Compiling


def record_of(prepared: Prepared) -> BuildRecord:
    return BuildRecord.from_json(json.loads(prepared.folders.record.read_text()))


def test_every_object_is_made_and_the_build_is_recorded(prepared: Prepared) -> None:
    told: list[Event] = []
    made, _ = compile_objects(prepared, LIMITS, told.append)
    assert [job.name for job in made.jobs] == NAMES
    assert {job.origin for job in made.jobs} == {"compiled"}
    record = record_of(prepared)
    assert dataclasses.replace(record, seconds=0) == dataclasses.replace(made, seconds=0)
    assert (record.preset, record.plan_hash) == ("quick", prepared.plan.hash)
    assert record.versions == {
        "CUDA compiler": "13.0.88",
        "FlashInfer": "0.7.2",
        "C++ compiler": "12.2.0",
    }
    assert (record.workers, record.limit_megabytes, record.machine) == (2, 8000, "x86_64")
    assert (record.cache_hits, record.cache_misses) == (None, None)
    # What a person opens.
    assert "m/one" in prepared.folders.report.read_text()
    assert sum(isinstance(event, events.Finished) for event in told) == len(NAMES)
    # What CMake links.
    jobs = JobList.from_json(json.loads((prepared.folders.generated / "jobs.json").read_text()))
    assert [job.name for job in jobs.jobs] == NAMES
    for job in jobs.jobs:
        assert jobs.store.path(job).read_bytes() == job.source.read_bytes()


def test_units_have_their_origin_and_their_cost(prepared: Prepared) -> None:
    _, first = compile_objects(prepared, LIMITS, events.nobody)
    assert [(one.module, one.unit, one.origin) for one in first] == [
        ("m", "one", "compiled"),
        ("m", "two", "compiled"),
    ]
    assert all(one.cost and one.cost.seconds == one.seconds for one in first)
    # The next build finds both, and knows what the first one cost.
    _, again = compile_objects(prepared, LIMITS, events.nobody)
    assert again == tuple(UnitCost(one.module, one.unit, "kept", 0.0, one.cost) for one in first)


def test_a_part_is_compiled_alone(prepared: Prepared) -> None:
    record, units = compile_objects(
        prepared, LIMITS, events.nobody, lambda job: job.name == "m/two"
    )
    assert [job.name for job in record.jobs] == ["m/two"]
    assert [one.unit for one in units] == ["two"]
    # The list that is written has all of them: linking needs them.
    jobs = json.loads((prepared.folders.generated / "jobs.json").read_text())["jobs"]
    assert [job["name"] for job in jobs] == NAMES
    rest, _ = compile_objects(prepared, LIMITS, events.nobody)
    assert [job.origin for job in rest.jobs] == ["compiled", "kept", *["compiled"] * 3]


def test_a_part_without_a_job_is_no_error(prepared: Prepared) -> None:
    record, units = compile_objects(prepared, LIMITS, events.nobody, lambda _: False)
    assert (record.jobs, units) == ((), ())
    assert prepared.folders.report.is_file()


def test_a_build_that_fails_records_what_it_has_compiled(prepared: Prepared) -> None:
    (prepared.roots.flashinfer / "two.cpp").write_text("broken\n")
    with pytest.raises(BuildError, match=r"m/two: the compiler reported an error(.|\n)*broken"):
        compile_objects(prepared, Limits(1, 8000), events.nobody)
    record = record_of(prepared)
    origins = {job.name: job.origin for job in record.jobs}
    assert origins["m/two"] is None
    failures = {job.name: job.failure for job in record.jobs if job.failure}
    assert failures == {"m/two": "the compiler reported an error"}
    assert "m/two" in prepared.folders.report.read_text()
    known = {one.name for one in costs.read_costs(prepared.folders.costs).values()}
    assert known == {name for name, origin in origins.items() if origin == "compiled"}


def test_cache_counts_are_those_of_this_build(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([(3, 10), (5, 11)])
    monkeypatch.setattr(build, "_cache_counts", lambda _: next(counts))
    record, _ = compile_objects(prepared, LIMITS, events.nobody)
    assert (record.cache_hits, record.cache_misses) == (2, 1)
    assert record_of(prepared).cache_hits == 2


def test_what_is_known_of_costs_and_builds_is_not_in_the_cache_itself(prepared: Prepared) -> None:
    # Whoever empties the object cache has to compile again, and then measures again.
    folders = prepared.folders
    for path in (folders.costs, folders.record, folders.report):
        assert path.parent == folders.object_cache.parent == folders.objects.parent


# Running the backend


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def test_output_is_passed_on_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    code = "import sys; print('one'); sys.stdout.flush(); print('two', file=sys.stderr)"
    assert list(build._lines(python(code), log, {})) == ["one\n", "two\n"]
    assert log.read_text() == "one\ntwo\n"


def test_a_failure_names_its_code_the_log_and_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    code = "print('much'); print('FAILED: a.o'); print('a.cu: error'); raise SystemExit(3)"
    with pytest.raises(BuildError) as caught:
        list(build._lines(python(code), log, {}))
    message = str(caught.value)
    assert "exit code 3" in message
    assert str(log) in message
    assert message.endswith("FAILED: a.o\na.cu: error\n")
    assert log.read_text().startswith("much\n")


def test_output_that_is_not_text_does_not_stop_the_build(tmp_path: Path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'\xff\xfe\n')"
    assert len(list(build._lines(python(code), tmp_path / "build.log", {}))) == 1


def test_the_backend_is_told_the_machine_and_the_compiler(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "another")
    other = dataclasses.replace(
        prepared, plan=dataclasses.replace(prepared.plan, machine="aarch64")
    )
    for one, machine in ((prepared, "x86_64"), (other, "aarch64")):
        environ = build.backend_environment(one)
        assert environ["_PYTHON_HOST_PLATFORM"] == f"linux-{machine}"
        assert environ["CXX"] == str(prepared.host_compiler.path)


def test_the_command_builds_this_plan_in_its_own_folder(prepared: Prepared, tmp_path: Path) -> None:
    command = build._command(prepared, tmp_path / "out", LIMITS)
    settings = dict(
        item.removeprefix("--config-settings=").split("=", 1)
        for item in command
        if item.startswith("--config-settings=")
    )
    assert settings == {
        "build-dir": str(prepared.folders.wheel),
        "cmake.define.FP4AOT_PRESET": "quick",
        "cmake.define.FP4AOT_CUDA": "13.0",
        "cmake.define.FP4AOT_FLASHINFER": "0.7.2",
        "cmake.define.FP4AOT_ARCHITECTURES": "12.0f",
        "cmake.define.FP4AOT_PLATFORM": "x86_64",
        "cmake.define.FP4AOT_MEMORY_LIMIT": "8000",
        "cmake.define.FP4AOT_BUILD_ROOT": str(prepared.folders.root),
    }
    # CMake knows each of them.
    cmake = (Path(build.__file__).parents[1] / "CMakeLists.txt").read_text()
    for name in settings:
        variable = name.removeprefix("cmake.define.")
        assert variable == "build-dir" or f"set({variable} " in cmake
    # Nothing is downloaded into the build: what it needs is already there.
    assert {"--no-deps", "--no-build-isolation"} <= set(command)
    assert command[command.index("--wheel-dir") + 1] == str(tmp_path / "out")


def run_backend(start: Prepared, monkeypatch: pytest.MonkeyPatch, code: str) -> tuple[Path, str]:
    """Link with a backend that does what `code` says; `out` is the folder for the wheel."""
    out = start.folders.root / "out"
    out.mkdir(parents=True)
    monkeypatch.setattr(build, "_command", lambda *_: python(f"out = {str(out)!r}; {code}"))
    console = Console(file=io.StringIO(), width=120)
    wheel = link_wheel(start, out, LIMITS, console)
    return wheel, console.file.getvalue()  # type: ignore[attr-defined]


WRITE = "open(out + '/fp4aot-1-py3-none-any.whl', 'w')"


def test_the_wheel_that_the_backend_leaves_is_returned(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"print('[aot 1/2] merge m'); print('[aot 2/2] link libfp4aot.so'); {WRITE}"
    wheel, shown = run_backend(prepared, monkeypatch, code)
    assert wheel.name == "fp4aot-1-py3-none-any.whl"
    assert shown == "[1/2] merge m\n[2/2] link libfp4aot.so\n"
    assert "merge m" in (prepared.folders.root / "build.log").read_text()


def test_a_backend_that_leaves_no_wheel_has_failed(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BuildError, match=r"left 0 wheels; see .*build\.log"):
        run_backend(prepared, monkeypatch, "pass")


@pytest.mark.parametrize(("lowering", "label"), [("", ""), ("0123456789abcdef", "lowered")])
def test_the_label_is_that_of_the_plan_whatever_the_environment_says(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, lowering: str, label: str
) -> None:
    monkeypatch.setenv("FP4AOT_LOCAL_VERSION", "leftover")
    plan = dataclasses.replace(prepared.plan, lowering=lowering)
    code = (
        "import os; print('[aot 1/1] ' + os.environ['FP4AOT_LOCAL_VERSION'] + '|');"
        "print(repr(os.environ['NINJA_STATUS'])); "
    )
    _, shown = run_backend(dataclasses.replace(prepared, plan=plan), monkeypatch, code + WRITE)
    assert shown == f"[1/1] {label}|\n"
    assert repr(NINJA_STATUS) in (prepared.folders.root / "build.log").read_text()


@pytest.mark.parametrize("own", [None, "1700000000"])
def test_a_wheel_that_is_built_again_has_the_same_times(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    if own is not None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", own)
    epoch = build.backend_environment(prepared)["SOURCE_DATE_EPOCH"]
    assert epoch == (own or build.pipeline.SOURCE_DATE_EPOCH)


def test_a_build_compiles_and_links(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    out = prepared.folders.root / "out"
    out.mkdir(parents=True)
    monkeypatch.setattr(build, "_command", lambda *_: python(f"out = {str(out)!r}; {WRITE}"))
    record, _ = compile_objects(prepared, LIMITS, events.nobody)
    assert link_wheel(prepared, out, LIMITS, Console(file=io.StringIO())).parent == out
    assert {job.origin for job in record.jobs} == {"compiled"}


# The object cache


def test_cache_counts_are_summed_over_languages(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (
        '{"stats": {"cache_hits": {"counts": {"C/C++": 3, "CUDA": 2}},'
        ' "cache_misses": {"counts": {}}}}'
    )
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: Path("/bin/sccache"))
    monkeypatch.setattr(build, "run", lambda *_, **__: SimpleNamespace(stdout=answer))
    assert build._cache_counts(prepared) == (5, 0)
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: None)
    assert build._cache_counts(prepared) is None
