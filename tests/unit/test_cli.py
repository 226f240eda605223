"""The commands: JSON for machines, exit codes with meaning, errors that say what to do."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.version import Version
from plans import plan_of
from rich.console import Console
from typer.testing import CliRunner, Result

from aot import build_commands, cli, command_line, pipeline, presets, steps
from aot.audit import WheelReport
from aot.build import compile_objects
from aot.compile.admission import Limits
from aot.compile.events import Listener
from aot.compile.record import BuildRecord
from aot.costs import UnitCost
from aot.environment import FlashInferEnvironment
from aot.errors import (
    AotError,
    ArchitectureError,
    AuditError,
    BuildError,
    DiskFullError,
    OutOfMemoryError,
    PlanError,
    ShardError,
    ToolchainError,
)
from aot.estimates import estimate
from aot.host_compiler import NATIVE_BINUTILS, find_host_compiler
from aot.pipeline import Folders, Prepared
from aot.plan import BuildPlan, ModulePlan, Roots, Unit
from aot.platform_tools import PlatformTools
from aot.progress import clock
from aot.toolchain import Toolkit
from aot.wheel_maker import FinishedWheel

ROOT = Path(__file__).resolve().parents[2]
PLAN = plan_of(
    ModulePlan(
        *("kv", "kv_cache", ("9.0a", "12.0f"), ("9.0a", "12.0f")),
        (Unit("csrc_kv", "@FLASHINFER@/kv.cu", "cuda", ("-O3",), "0" * 64),),
        (),
    ),
    preset="quick",
    tvm_ffi_sources=("src/ffi/error.cc",),
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def run_main(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the program's own entry, in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["aot", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for finding toolkits and environments; lists how it was called."""
    calls: list[dict[str, Any]] = []
    version = Version("13.0")
    (tmp_path / "src/ffi").mkdir(parents=True)
    (tmp_path / "src/ffi/error.cc").write_text("error")

    def stand_in(preset: str, build_root: Path, **options: Any) -> Prepared:
        options.pop("report")("preparing")
        calls.append({"preset": preset, "build_root": build_root, **options})
        return Prepared(
            PLAN,
            Roots(*[tmp_path] * 6),
            Toolkit(tmp_path, version, version, tmp_path / "nvcc", None, None, "test", ()),
            tmp_path / "nvcc",
            FlashInferEnvironment(tmp_path, Version("0.7.2"), *(tmp_path,) * 5),
            find_host_compiler(),
            Folders(tmp_path),
            PlatformTools(NATIVE_BINUTILS, tmp_path / "libcudart_static.a"),
        )

    monkeypatch.setattr(pipeline, "prepare", stand_in)
    return calls


# Presets


def test_presets_are_listed_for_machines() -> None:
    result = invoke("presets", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert set(data) == set(presets.PRESETS)
    for name, preset in presets.PRESETS.items():
        assert data[name] == {row.name: list(row.architectures) for row in preset.modules}


def test_presets_are_listed_for_people() -> None:
    result = invoke("presets")
    assert result.exit_code == 0
    for name in presets.PRESETS:
        assert name in result.stdout


@pytest.mark.parametrize("command", ["plan", "build"])
def test_an_unknown_preset_gives_code_5_and_the_list(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(command, "--preset", "qick", monkeypatch=monkeypatch) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "PlanError: there is no preset 'qick'" in printed.err
    for preset in presets.PRESETS.values():
        assert f"{preset.name}: {preset.description}" in printed.err


def test_the_same_as_a_program_and_without_torch_or_a_gpu(tmp_path: Path) -> None:
    # Case 28: torch here would need a GPU or not, and the builder must not care.
    (tmp_path / "torch.py").write_text("raise ImportError('the builder imports torch')\n")
    (tmp_path / "flashinfer.py").write_text("raise ImportError('the builder imports FlashInfer')\n")
    done = subprocess.run(
        [sys.executable, "-m", "aot", "plan", "--preset", "qick"],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "40"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    # Not wrapped, however narrow the terminal: a person can search for it.
    assert "there is no preset 'qick'; choose one of:" in done.stderr
    assert "Traceback" not in done.stderr


# Errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AotError, 1),
        (ArchitectureError, 3),
        (ToolchainError, 4),
        (PlanError, 5),
        (BuildError, 6),
        (AuditError, 7),
        (OutOfMemoryError, 8),
        (DiskFullError, 9),
        (ShardError, 10),
    ],
)
def test_each_error_has_its_own_code_and_is_printed_as_it_is(
    error: type[AotError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("no [bold]such[/bold] thing: " + "long " * 60 + "end")

    monkeypatch.setattr(pipeline, "prepare", fail)
    assert run_main("plan", monkeypatch=monkeypatch) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{error.__name__}: no [bold]such[/bold] thing: {'long ' * 60}end\n" in printed.err


def test_codes_differ_from_each_other_and_from_a_usage_error() -> None:
    kinds = [*AotError.__subclasses__(), *BuildError.__subclasses__()]
    # What has none of its own ends as its parent does.
    codes = [error.exit_code for error in kinds if "exit_code" in vars(error)]
    assert len(set(codes)) == len(codes) >= 8
    assert not {0, 1, 2} & set(codes)


@pytest.mark.parametrize("command", ["plan", "build"])
@pytest.mark.parametrize("text", ["8GB", "-1", "0", "1.5", "eight", " ", "0x10"])
def test_a_bad_memory_limit_is_refused_before_any_work(
    command: str, text: str, prepare: list[dict[str, Any]]
) -> None:
    result = invoke(command, f"--memory-limit={text}")
    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert f"--memory-limit is {text!r}; expected megabytes, such as 8000" in words
    assert prepare == []


def test_a_superscript_is_no_number(prepare: list[dict[str, Any]]) -> None:
    assert invoke("plan", "--memory-limit=²").exit_code == 2


@pytest.mark.parametrize(
    ("text", "megabytes"), [("", None), ("8000", 8000), ("1", 1), ("08000", 8000)]
)
def test_memory_limits(text: str, megabytes: int | None) -> None:
    assert command_line.megabytes(text) == megabytes


# The plan


def test_a_plan_as_json_is_nothing_but_json(prepare: list[dict[str, Any]]) -> None:
    result = invoke("plan", "--json")
    assert result.exit_code == 0
    assert BuildPlan.from_json(json.loads(result.stdout)) == PLAN
    assert "preparing" in result.stderr


def test_a_plan_for_people_has_modules_estimates_and_the_hash(
    prepare: list[dict[str, Any]],
) -> None:
    result = invoke("plan", "--memory-limit", "8000")
    assert result.exit_code == 0
    megabytes, seconds = estimate(Path("@FLASHINFER@/kv.cu"), ("-O3",))
    for part in ("kv", str(megabytes), clock(seconds), "9.0a 12.0f", "13.0.88", "0.7.2"):
        assert part in result.stdout
    # Our own sources are objects too.
    for part in ("operators", "objects", "in 8000 MB", PLAN.hash[:16]):
        assert part in result.stdout
    assert "csrc_kv" not in result.stdout


def test_a_plan_for_people_says_how_many_compilers_run(prepare: list[dict[str, Any]]) -> None:
    result = invoke("plan", "--memory-limit", "8000", "--jobs", "3")
    assert "3 compilers at once in 8000 MB" in " ".join(result.stdout.split())


def test_a_plan_for_people_lists_every_unit_on_request(prepare: list[dict[str, Any]]) -> None:
    assert "csrc_kv" in invoke("plan", "--memory-limit", "8000", "--units").stdout


def test_empty_options_mean_the_defaults(prepare: list[dict[str, Any]], tmp_path: Path) -> None:
    # CMake passes every option, empty where nobody set it.
    command = [
        *("plan", "--json", "--cuda", "", "--flashinfer", "", "--memory-limit", ""),
        *("--architectures", "", "--platform", ""),
    ]
    assert invoke(*command).exit_code == 0
    given = ["--cuda=13.1", f"--build-root={tmp_path}", "--platform=aarch64"]
    assert invoke("plan", "--json", *given, "--architectures= 10.0a, 12.0f,").exit_code == 0
    first, second = prepare
    assert (first["cuda"], first["flashinfer"], first["preset"]) == (None, None, "quick")
    assert (first["architectures"], first["machine"]) == ((), None)
    assert (second["cuda"], second["build_root"]) == ("13.1", tmp_path)
    assert (second["architectures"], second["machine"]) == (("10.0a", "12.0f"), "aarch64")


def test_a_written_plan_is_all_that_cmake_needs(
    prepare: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "plan"
    command = [
        *("plan", "--preset", "quick", "--build-root", str(tmp_path)),
        *("--write", str(folder), "--architectures", "", "--platform", ""),
    ]
    assert CliRunner().invoke(steps.steps, command).exit_code == 0
    assert {path.name for path in folder.iterdir()} == {
        *("plan.json", "roots.json", "units.cmake", "jobs.json"),
        *("kernel_entries.cpp", "flashinfer_functions.h", "schema_probe.cpp"),
    }
    assert BuildPlan.from_json(json.loads((folder / "plan.json").read_text())) == PLAN
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert CliRunner().invoke(steps.steps, command).exit_code == 0
    # Nothing changed, so ninja has nothing to do.
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


def test_a_lowered_plan_says_so(
    prepare: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (module,) = PLAN.modules
    module = dataclasses.replace(module, architectures=("12.0f",), images=("9.0a",))
    stand_in = pipeline.prepare

    def lowered(*arguments: Any, **options: Any) -> Prepared:
        plan = dataclasses.replace(PLAN, modules=(module,), lowering="0123456789abcdef")
        return dataclasses.replace(stand_in(*arguments, **options), plan=plan)

    monkeypatch.setattr(pipeline, "prepare", lowered)
    result = invoke("plan", "--memory-limit", "8000")
    assert "9.0a (lowered from 12.0f)" in " ".join(result.stdout.split())


# Toolkits (case 20)


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_toolkits_are_listed_with_the_reasons_against_them(bare_machine: Path) -> None:
    result = invoke("toolchain", "--json", "--build-root", str(bare_machine))
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["source"] for row in rows] == ["packages", "CUDA_HOME", "PATH"]
    for row in rows:
        assert row["accepted"] is False
        assert row["rejection"]
        assert row["targets"] == []


def test_a_toolkit_that_builds_fp4_out_gives_code_4(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["toolchain", "--cuda", "12.6", "--build-root", str(bare_machine)]
    assert run_main(*arguments, monkeypatch=monkeypatch) == 4
    assert "CUDA 12.6 builds FP4 out" in capsys.readouterr().err


# The rest


def test_help_lists_what_people_need_and_not_what_cmake_calls() -> None:
    text = invoke("--help").stdout
    for command in ("presets", "toolchain", "plan", "build", "link", "audit", "matrix"):
        assert f" {command} " in text
    for step in ("compile", "link-module", "check-schemas", "manifest"):
        assert f" {step} " not in text.partition("Commands")[2]
        assert CliRunner().invoke(steps.steps, [step, "--help"]).exit_code == 0


def test_what_cmake_calls_needs_only_the_build_requirements() -> None:
    """An isolated build has these packages and no others."""
    program = (
        "import sys, importlib.abc\n"
        "class Refuse(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('auditwheel', 'wheel', 'torch', 'numpy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import aot.steps\n"
    )
    root = Path(cli.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


@pytest.mark.parametrize("command", [["build"], ["build", "--shard=1/2"]])
def test_the_cache_is_stopped_when_a_build_fails(
    command: list[str],
    prepare: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stopped: list[Prepared] = []

    def fail(*_: object) -> None:
        raise BuildError("nvcc failed")

    monkeypatch.setattr(build_commands.wheel_maker, "build_wheel", fail)
    monkeypatch.setattr(build_commands, "compile_objects", fail)
    monkeypatch.setattr(build_commands, "stop_object_cache", stopped.append)
    result = invoke(*command, "--out", str(tmp_path / "dist"))
    assert isinstance(result.exception, BuildError)
    assert len(stopped) == 1
    assert not (tmp_path / "dist").exists()


# A full disk


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 9), (errno.EDQUOT, 9), (errno.EACCES, None), (errno.ENOENT, None)],
)
def test_a_full_disk_ends_a_command_with_its_own_code(
    number: int,
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def write() -> None:
        raise OSError(number, os.strerror(number), "/build/plan.json")

    monkeypatch.setattr(sys, "argv", ["aot"])
    with pytest.raises(OSError if code is None else SystemExit) as left:
        command_line.run(app)
    if isinstance(left.value, SystemExit):
        assert left.value.code == code
        text = capsys.readouterr().err
        assert text.startswith("DiskFullError: no space is left on the disk for /build/plan.json;")
        assert "what is finished is kept" in text


# Termination

WAITING = """
import time, typer
from aot import command_line
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def wait() -> None:
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
command_line.run(app)
"""


def test_a_command_that_is_terminated_cleans_up() -> None:
    """A build's compilers have process groups of their own: nobody else would end them."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 143


# Shards


@pytest.mark.parametrize("text", ["0/2", "3/2", "x", "2", "1/0", "-1/2"])
def test_a_part_that_there_is_not_gives_code_10_before_any_work(
    text: str,
    prepare: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("build", f"--shard={text}", monkeypatch=monkeypatch) == 10
    assert f"ShardError: --shard is '{text}'" in capsys.readouterr().err
    assert prepare == []


@pytest.fixture
def compilers(
    prepare: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Both compilers as a script whose objects are copies of their sources; no object cache.

    Returns the folder of the sources. There are three units, two of which take long.
    """
    script = tmp_path / "compiler"
    script.write_text(
        '#!/bin/sh\ncase $1 in --version) exec g++ "$@" ;; -dump*) exec g++ "$@" ;; esac\n'
        'while [ "$1" != -c ]; do shift; done\ncp "$2" "$4"\n'
    )
    script.chmod(0o755)
    names = ("a", "b", "c")
    sources = tmp_path / "sources"
    operators = sources / "operators"
    for path in (operators / "gemm.cpp", sources / "src/ffi/error.cc"):
        path.parent.mkdir(parents=True)
        path.write_text(path.name)
    for name in names:
        (sources / f"{name}.cu").write_text(name)
    units = tuple(
        Unit(name, f"@FLASHINFER@/{name}.cu", "cuda", ("-O3",), "0" * 64) for name in names
    )
    plan = dataclasses.replace(PLAN, modules=(dataclasses.replace(PLAN.modules[0], units=units),))
    stand_in = pipeline.prepare

    def prepare_compilers(*arguments: Any, **options: Any) -> Prepared:
        found = stand_in(*arguments, **options)
        build_root = arguments[1]
        return dataclasses.replace(
            found,
            plan=plan,
            roots=Roots(*[sources] * 6, operators=operators),
            nvcc=script,
            host_compiler=dataclasses.replace(found.host_compiler, path=script),
            folders=Folders(build_root),
        )

    monkeypatch.setattr(pipeline, "prepare", prepare_compilers)
    monkeypatch.setattr(pipeline, "object_cache_program", lambda: None)
    return sources


def finished_wheel(
    prepared: Prepared, record: BuildRecord, units: tuple[UnitCost, ...]
) -> FinishedWheel:
    """What `build_wheel` returns, without a wheel."""
    wheel = prepared.folders.root / "fp4aot.whl"
    audit = WheelReport(wheel.name, 1_500_000, "f" * 64, "manylinux_2_28_x86_64", (), ())
    return FinishedWheel(wheel, prepared.plan, 65.4, record, units, audit)


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> list[BuildRecord]:
    """Stands in for linking and the audit: objects are compiled; lists what was done for them."""
    records: list[BuildRecord] = []

    def build_wheel(
        prepared: Prepared, _: Path, limits: Limits, __: Console, listen: Listener
    ) -> FinishedWheel:
        record, units = compile_objects(prepared, limits, listen)
        records.append(record)
        return finished_wheel(prepared, record, units)

    monkeypatch.setattr(build_commands.wheel_maker, "build_wheel", build_wheel)
    return records


def test_a_build_for_machines_is_a_line_of_json_for_each_event(
    compilers: Path, linked: list[BuildRecord], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    arguments = ["build", "--json", f"--build-root={tmp_path / 'build'}", f"--report={report}"]
    result = invoke(*arguments, "--memory-limit=8000", "--jobs=1")
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    names = [line["event"] for line in lines if line["event"] != "working"]
    jobs = len(linked[0].jobs)
    assert names == ["began", *["started", "finished"] * jobs, "wheel"]
    assert (lines[0]["workers"], lines[0]["limit_megabytes"]) == (1, 8000)
    last = lines[-1]
    assert (last["size"], last["sha256"]) == (1_500_000, "f" * 64)
    assert last["build_seconds"] == 65.4
    assert json.loads(report.read_text()) == {n: last[n] for n in last if n != "event"}


def test_a_build_for_people_has_lines_and_the_summary(
    compilers: Path, linked: list[BuildRecord], tmp_path: Path
) -> None:
    result = invoke("build", f"--build-root={tmp_path / 'build'}", "--memory-limit=8000")
    assert result.exit_code == 0, result.stderr
    assert "1.50 MB" in result.stdout
    assert "kv/a" not in result.stdout
    assert f"[{len(linked[0].jobs)}/{len(linked[0].jobs)}] " in result.stderr
    assert "kv/a in 0:0" in result.stderr


def shard(number: str, tmp_path: Path, *options: str) -> Result:
    # Each on a machine of its own.
    root = tmp_path / f"build-{number.replace('/', '-')}"
    result = invoke(
        *("build", "--shard", number, "--memory-limit=8000", *options),
        *(f"--build-root={root}", f"--out={tmp_path / 'shards'}"),
    )
    assert result.exit_code == 0, result.output
    return result


def link(archives: list[str], tmp_path: Path, *options: str) -> Result:
    root = tmp_path / "build-link"
    return invoke("link", *archives, f"--build-root={root}", "--memory-limit=8000", *options)


def test_what_is_compiled_in_shards_is_linked_without_compiling_it_again(
    compilers: Path, linked: list[BuildRecord], tmp_path: Path, prepare: list[dict[str, Any]]
) -> None:
    report = tmp_path / "report.json"
    answers = [
        json.loads(shard("1/2", tmp_path, "--json", f"--report={report}").stdout.splitlines()[-1]),
        json.loads(shard("2/2", tmp_path, "--json").stdout.splitlines()[-1]),
    ]
    assert [answer["event"] for answer in answers] == ["shard", "shard"]
    assert sorted(answer["units"] for answer in answers) == [1, 2]
    for answer in answers:
        assert Path(answer["shard"]).stat().st_size == answer["size"]
    assert json.loads(report.read_text()) == {n: answers[0][n] for n in answers[0] if n != "event"}
    assert linked == []

    archives = [answer["shard"] for answer in answers]
    result = link(archives, tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["event"] == "wheel"
    (record,) = linked
    assert {job.name: job.origin for job in record.jobs} == {
        **dict.fromkeys(("kv/a", "kv/b", "kv/c"), "imported"),
        # The rest is compiled where the wheel is linked.
        **dict.fromkeys(
            ("tvm_ffi/error", "operators/gemm", "operators/kernel_entries"), "compiled"
        ),
    }
    # The plan of the shards is made again: its preset, versions, targets and machine.
    asked = prepare[-1]
    assert (asked["preset"], asked["cuda"], asked["flashinfer"]) == ("quick", "13.0", "0.7.2")
    assert (asked["architectures"], asked["machine"]) == (["9.0a", "12.0f"], "x86_64")


def test_a_shard_for_people_says_where_it_is(compilers: Path, tmp_path: Path) -> None:
    result = shard("1/1", tmp_path)
    (archive,) = (tmp_path / "shards").iterdir()
    assert f"{archive.name}: 3 units, 0.00 MB" in "".join(result.stdout.splitlines())


def test_a_missing_shard_is_refused_before_anything_is_installed(
    compilers: Path, linked: list[BuildRecord], tmp_path: Path, prepare: list[dict[str, Any]]
) -> None:
    shard("1/2", tmp_path)
    (archive,) = (tmp_path / "shards").iterdir()
    before = len(prepare)
    result = link([str(archive)], tmp_path)
    assert isinstance(result.exception, ShardError)
    assert "1 of 2 shards are missing" in str(result.exception)
    assert len(prepare) == before


def test_shards_of_another_checkout_are_refused(
    compilers: Path,
    linked: list[BuildRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard("1/1", tmp_path)
    (archive,) = (tmp_path / "shards").iterdir()
    # A header has changed: FlashInfer's units are as they were.
    (compilers / "operators" / "bridge.h").write_text("changed")
    assert link([str(archive)], tmp_path).exit_code == 0
    # The plan is another one.
    stand_in = pipeline.prepare

    def changed(*arguments: Any, **options: Any) -> Prepared:
        found = stand_in(*arguments, **options)
        return dataclasses.replace(
            found, plan=dataclasses.replace(found.plan, added_host_flags=("-g",))
        )

    monkeypatch.setattr(pipeline, "prepare", changed)
    result = link([str(archive)], tmp_path)
    assert isinstance(result.exception, ShardError)
    assert "link with the checkout that the shards were compiled from" in str(result.exception)
    assert len(linked) == 1


def test_the_step_that_cmake_runs_compiles_what_is_missing(compilers: Path, tmp_path: Path) -> None:
    root = tmp_path / "build"
    prepared = pipeline.prepare("quick", root, report=str)
    jobs = pipeline.write(prepared, prepared.folders.generated)
    command = ["compile", str(prepared.folders.generated / "jobs.json"), "--memory-limit", ""]
    result = CliRunner().invoke(steps.steps, command)
    assert result.exit_code == 0, result.output
    store = pipeline.job_list(prepared, jobs).store
    assert all(store.find(job) for job in jobs)
    result = CliRunner().invoke(steps.steps, command)
    assert f"all {len(jobs)} objects are there already" in result.stderr
