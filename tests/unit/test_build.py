"""Running the backend: its log, its failures, and what a person is told of them."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version
from rich.console import Console

from aot import build, measure
from aot.build import relevant
from aot.costs import Cost, UnitCost
from aot.environment import FlashInferEnvironment
from aot.errors import BuildError
from aot.host_compiler import HostCompiler
from aot.pipeline import Folders, Prepared
from aot.plan import BuildPlan, ModulePlan, Roots, Unit, Versions
from aot.progress import NINJA_STATUS
from aot.toolchain import Toolkit

WARNINGS = [f"warning {number}\n" for number in range(300)]


def prepared(folder: Path) -> Prepared:
    units = tuple(
        Unit(name, f"@FLASHINFER@/{name}.cu", "cuda", (), "0" * 64, 700, seconds)
        for name, seconds in (("one", 10), ("two", 20))
    )
    plan = BuildPlan(
        preset="quick",
        versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
        modules=(ModulePlan("m", "family", ("12.0f",), ("12.0f",), units, ()),),
        tvm_ffi_sources=(),
        added_host_flags=(),
    )
    version = Version("13.0")
    return Prepared(
        plan,
        Roots(*[folder] * 6),
        Toolkit(folder, version, version, folder, None, None, "test", ()),
        folder / "nvcc",
        FlashInferEnvironment(folder, Version("0.7.2"), *(folder,) * 5),
        HostCompiler(folder / "g++", Version("12"), "x86_64"),
        Folders(folder),
    )


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


# Running it


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def test_output_is_passed_on_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    code = "import sys; print('one'); sys.stdout.flush(); print('two', file=sys.stderr)"
    assert list(build._lines(python(code), log, 2, {})) == ["one\n", "two\n"]
    assert log.read_text() == "one\ntwo\n"


def test_the_backend_gets_the_jobs_and_ninjas_format(tmp_path: Path) -> None:
    code = (
        "import os; print(os.environ['CMAKE_BUILD_PARALLEL_LEVEL']);"
        "print(os.environ['NINJA_STATUS'] + '|')"
    )
    lines = list(build._lines(python(code), tmp_path / "build.log", 7, {}))
    assert lines == ["7\n", f"{NINJA_STATUS}|\n"]


def test_the_backend_gets_the_label_of_the_version(tmp_path: Path) -> None:
    code = "import os; print(os.environ['FP4AOT_LOCAL_VERSION'] + '|')"
    log = tmp_path / "build.log"
    variables = {"FP4AOT_LOCAL_VERSION": "lowered"}
    assert list(build._lines(python(code), log, 1, variables)) == ["lowered|\n"]


def test_a_failure_names_its_code_the_log_and_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    code = "print('much'); print('FAILED: a.o'); print('a.cu: error'); raise SystemExit(3)"
    with pytest.raises(BuildError) as caught:
        list(build._lines(python(code), log, 1, {}))
    message = str(caught.value)
    assert "exit code 3" in message
    assert str(log) in message
    assert message.endswith("FAILED: a.o\na.cu: error\n")
    assert log.read_text().startswith("much\n")


def test_output_that_is_not_text_does_not_stop_the_build(tmp_path: Path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'\xff\xfe\n')"
    assert len(list(build._lines(python(code), tmp_path / "build.log", 1, {}))) == 1


def test_the_command_builds_this_plan_in_its_own_folder(tmp_path: Path) -> None:
    command = build._command(prepared(tmp_path), tmp_path / "out", 8000)
    settings = dict(
        item.removeprefix("--config-settings=").split("=", 1)
        for item in command
        if item.startswith("--config-settings=")
    )
    assert settings == {
        "build-dir": str(tmp_path / "wheel"),
        "cmake.define.FP4AOT_PRESET": "quick",
        "cmake.define.FP4AOT_CUDA": "13.0",
        "cmake.define.FP4AOT_FLASHINFER": "0.7.2",
        "cmake.define.FP4AOT_MEMORY_LIMIT": "8000",
        "cmake.define.FP4AOT_BUILD_ROOT": str(tmp_path),
    }
    # Nothing is downloaded into the build: what it needs is already there.
    assert {"--no-deps", "--no-build-isolation"} <= set(command)
    assert command[command.index("--wheel-dir") + 1] == str(tmp_path / "out")


def test_the_estimate_has_the_names_that_ninja_prints(tmp_path: Path) -> None:
    cmake = (Path(build.__file__).parents[1] / "CMakeLists.txt").read_text()
    assert 'COMMENT "compile ${description}"' in cmake
    assert "${FP4AOT_POOL_${module}_${unit}} ${module}/${unit}" in cmake
    assert "${FP4AOT_OWN_POOL} tvm_ffi/${name}" in cmake
    assert "${FP4AOT_OWN_POOL} operators/${name}" in cmake
    start = prepared(tmp_path)
    plan = dataclasses.replace(start.plan, tvm_ffi_sources=("src/ffi/extra/env_c_api.cc",))
    seconds = build._seconds(dataclasses.replace(start, plan=plan))
    assert (seconds["m/one"], seconds["m/two"]) == (10, 20)
    own = {name for name in seconds if not name.startswith("m/")}
    sources = Path(build.__file__).parents[1].glob("wheels/fp4aot/csrc/*.cpp")
    generated = {"tvm_ffi/env_c_api", "operators/kernel_entries"}
    assert own == generated | {f"operators/{path.stem}" for path in sources}


# What a build has cost


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """A backend that compiles unit `one` and takes `two` from the cache, with no cache to ask."""
    start = prepared(tmp_path)
    monkeypatch.setattr(build, "_cache_counts", lambda _: None)
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: Path("/bin/sccache"))
    monkeypatch.setattr(build.measure, "_SECONDS_BETWEEN", 0.01)
    running = measure.Process("cicc", ("cicc", str(tmp_path / "one.cu")), 6600)
    monkeypatch.setattr(build.measure, "running_compilers", lambda: [running])
    return start


def run_backend(start: Prepared, monkeypatch: pytest.MonkeyPatch, end: str) -> build.Compiled:
    log = start.folders.root / "wheel" / ".ninja_log"
    log.parent.mkdir(exist_ok=True)
    lines = "0\t138000\t1\tunits/m/one.o\tx\n0\t7000\t1\tunits/m/two.o\ty\n"
    out = start.folders.root / "out"
    out.mkdir(exist_ok=True)
    code = (
        f"import time; time.sleep(0.2); open({str(log)!r}, 'w').write({lines!r});"
        "print('[aot 1/3] compile m/one'); print('[aot 2/3] compile m/two');"
        "print('[aot 3/3] merge m');"
        f"open({str(out / 'fp4aot-1-py3-none-any.whl')!r}, 'w'); {end}"
    )
    monkeypatch.setattr(build, "_command", lambda *_: python(code))
    return build.compile_wheel(start, out, Console(file=io.StringIO()), 8000)


def test_units_have_the_time_of_ninja_and_the_memory_that_was_seen(
    backend: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = run_backend(backend, monkeypatch, "pass")
    assert compiled.units == (
        UnitCost("m", "one", "compiled", 138.0, Cost(138.0, 6600)),
        UnitCost("m", "two", "cache", 7.0, None),
    )
    (entry,) = json.loads(backend.folders.costs.read_text()).values()
    assert entry == {"unit": "m/one", "seconds": 138.0, "megabytes": 6600}
    # The next build takes both from the cache, and knows what the first one cost.
    monkeypatch.setattr(build.measure, "running_compilers", list)
    again = run_backend(backend, monkeypatch, "pass")
    assert again.units[0] == UnitCost("m", "one", "cache", 138.0, Cost(138.0, 6600))


@pytest.mark.parametrize(("lowering", "label"), [("", ""), ("0123456789abcdef", "lowered")])
def test_the_label_is_that_of_the_plan_whatever_the_environment_says(
    backend: Prepared, monkeypatch: pytest.MonkeyPatch, lowering: str, label: str
) -> None:
    monkeypatch.setenv("FP4AOT_LOCAL_VERSION", "leftover")
    start = dataclasses.replace(backend, plan=dataclasses.replace(backend.plan, lowering=lowering))
    seen = start.folders.root / "label"
    end = f"import os; open({str(seen)!r}, 'w').write(os.environ['FP4AOT_LOCAL_VERSION'] + '|')"
    run_backend(start, monkeypatch, end)
    assert seen.read_text() == f"{label}|"


def test_a_build_that_fails_records_what_it_has_compiled(
    backend: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BuildError):
        run_backend(backend, monkeypatch, "raise SystemExit(1)")
    assert len(json.loads(backend.folders.costs.read_text())) == 1


def test_the_record_is_not_in_the_cache_itself(tmp_path: Path) -> None:
    # Whoever empties the object cache has to compile again, and then measures again.
    folders = prepared(tmp_path).folders
    assert folders.costs.parent == folders.object_cache.parent


# The object cache


def test_cache_counts_are_those_of_this_build() -> None:
    assert build._cache_difference((3, 10), (5, 11)) == (2, 1)
    assert build._cache_difference(None, (5, 11)) == (None, None)
    assert build._cache_difference((5, 11), None) == (None, None)


def test_cache_counts_are_summed_over_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (
        '{"stats": {"cache_hits": {"counts": {"C/C++": 3, "CUDA": 2}},'
        ' "cache_misses": {"counts": {}}}}'
    )
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: Path("/bin/sccache"))
    monkeypatch.setattr(build, "run", lambda *_, **__: SimpleNamespace(stdout=answer))
    assert build._cache_counts(prepared(tmp_path)) == (5, 0)
    monkeypatch.setattr(build.pipeline, "object_cache_program", lambda: None)
    assert build._cache_counts(prepared(tmp_path)) is None
