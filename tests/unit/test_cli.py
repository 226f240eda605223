"""The commands: JSON for machines, exit codes with meaning, errors that say what to do."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from rich.console import Console
from typer.testing import CliRunner, Result

from aot import catalog, cli, command_line, pipeline, steps
from aot.environment import FlashInferEnvironment
from aot.errors import (
    AotError,
    ArchitectureError,
    AuditError,
    BuildError,
    PlanError,
    ToolchainError,
)
from aot.host_compiler import HostCompiler
from aot.pipeline import Folders, Prepared
from aot.plan import BuildPlan, ModulePlan, Roots, Unit, Versions
from aot.toolchain import Toolkit

ROOT = Path(__file__).resolve().parents[2]
PLAN = BuildPlan(
    preset="quick",
    versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
    modules=(
        ModulePlan(
            *("kv", "kv_cache", ("9.0a", "12.0f"), ("9.0a", "12.0f")),
            (Unit("csrc_kv", "@FLASHINFER@/kv.cu", "cuda", ("-O3",), "0" * 64, 700, 60),),
            (),
        ),
    ),
    tvm_ffi_sources=(),
    added_host_flags=(),
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

    def stand_in(preset: str, build_root: Path, **options: Any) -> Prepared:
        options.pop("report")("preparing")
        calls.append({"preset": preset, "build_root": build_root, **options})
        return Prepared(
            PLAN,
            Roots(*[tmp_path] * 6),
            Toolkit(tmp_path, version, version, tmp_path / "nvcc", None, None, "test", ()),
            tmp_path / "nvcc",
            FlashInferEnvironment(tmp_path, Version("0.7.2"), *(tmp_path,) * 5),
            HostCompiler(tmp_path / "g++", Version("12"), "x86_64"),
            Folders(tmp_path),
        )

    monkeypatch.setattr(pipeline, "prepare", stand_in)
    return calls


# Presets


def test_presets_are_listed_for_machines() -> None:
    result = invoke("presets", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert set(data) == set(catalog.PRESETS)
    for name, preset in catalog.PRESETS.items():
        assert data[name] == {row.name: list(row.architectures) for row in preset.modules}


def test_presets_are_listed_for_people() -> None:
    result = invoke("presets")
    assert result.exit_code == 0
    for name in catalog.PRESETS:
        assert name in result.stdout


@pytest.mark.parametrize("command", ["plan", "build"])
def test_an_unknown_preset_gives_code_5_and_the_list(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(command, "--preset", "qick", monkeypatch=monkeypatch) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "PlanError: there is no preset 'qick'" in printed.err
    for preset in catalog.PRESETS.values():
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
    codes = [error.exit_code for error in AotError.__subclasses__()]
    assert len(set(codes)) == len(codes)
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
    for part in ("kv", "700", "1:00", "9.0a 12.0f", "13.0.88", "0.7.2", "1 unit", PLAN.hash[:16]):
        assert part in result.stdout
    assert "csrc_kv" not in result.stdout


def test_a_plan_for_people_lists_every_unit_on_request(prepare: list[dict[str, Any]]) -> None:
    assert "csrc_kv" in invoke("plan", "--memory-limit", "8000", "--units").stdout


def test_empty_options_mean_the_defaults(prepare: list[dict[str, Any]], tmp_path: Path) -> None:
    # CMake passes every option, empty where nobody set it.
    command = ["plan", "--json", "--cuda", "", "--flashinfer", "", "--memory-limit", ""]
    assert invoke(*command).exit_code == 0
    assert invoke("plan", "--json", "--cuda=13.1", f"--build-root={tmp_path}").exit_code == 0
    first, second = prepare
    assert (first["cuda"], first["flashinfer"], first["preset"]) == (None, None, "quick")
    assert (second["cuda"], second["build_root"]) == ("13.1", tmp_path)


def test_a_written_plan_is_all_that_cmake_needs(
    prepare: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "plan"
    command = [
        *("plan", "--preset", "quick", "--build-root", str(tmp_path)),
        *("--write", str(folder), "--memory-limit", "8000"),
    ]
    assert CliRunner().invoke(steps.steps, command).exit_code == 0
    assert {path.name for path in folder.iterdir()} == {
        *("plan.json", "roots.json", "units.cmake", "kernel_entries.cpp", "schema_probe.cpp"),
    }
    assert BuildPlan.from_json(json.loads((folder / "plan.json").read_text())) == PLAN
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert CliRunner().invoke(steps.steps, command).exit_code == 0
    # Nothing changed, so ninja has nothing to do.
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


def test_a_lowered_plan_says_so() -> None:
    (module,) = PLAN.modules
    module = dataclasses.replace(module, architectures=("12.0f",), images=("9.0a",))
    table = Console(width=200)
    with table.capture() as captured:
        table.print(cli._plan_table(dataclasses.replace(PLAN, modules=(module,))))
    assert "9.0a (lowered from 12.0f)" in captured.get()


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
    for command in ("presets", "toolchain", "plan", "build", "audit"):
        assert command in text
    for step in ("link-module", "check-schemas", "manifest"):
        assert step not in text
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


def test_the_cache_is_stopped_when_a_build_fails(
    prepare: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[Prepared] = []

    def fail(*_: object) -> None:
        raise BuildError("nvcc failed")

    monkeypatch.setattr(cli.wheel_maker, "build_wheel", fail)
    monkeypatch.setattr(cli, "stop_object_cache", stopped.append)
    result = invoke("build", "--out", str(tmp_path / "dist"))
    assert isinstance(result.exception, BuildError)
    assert len(stopped) == 1
    assert not (tmp_path / "dist").exists()
