"""Folders, and the object cache's environment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from plans import VERSIONS

from aot import estimates, pipeline, presets
from aot.catalog import MODULES, Function
from aot.codegen.flashinfer_functions import flashinfer_functions
from aot.compile.job_list import JobList
from aot.environment import FlashInferEnvironment
from aot.errors import PlanError
from aot.host_compiler import NATIVE_BINUTILS, HostCompiler, find_host_compiler
from aot.lowering.toolkit import digest
from aot.pipeline import Folders, Prepared
from aot.plan import BuildPlan, ModulePlan, Roots, Unit
from aot.platform_tools import PlatformTools
from aot.platforms import Platform
from aot.toolchain import Toolkit


@pytest.fixture(autouse=True)
def _no_cache_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCCACHE_DIR", "SCCACHE_IDLE_TIMEOUT", "SCCACHE_SERVER_UDS"):
        monkeypatch.delenv(name, raising=False)


def test_the_cache_is_inside_the_build_folder_with_a_server_of_its_own(tmp_path: Path) -> None:
    variables = pipeline.object_cache_variables(tmp_path / "cache")
    assert variables["SCCACHE_DIR"] == str(tmp_path / "cache")
    assert variables["SCCACHE_SERVER_UDS"].startswith(str(tmp_path))


def test_the_cache_outlasts_its_slowest_unit(tmp_path: Path) -> None:
    """A server at work on units that take longer than its limit ends as idle, and they with it."""
    seconds = int(pipeline.object_cache_variables(tmp_path)["SCCACHE_IDLE_TIMEOUT"])
    slowest = max(one.seconds for one in estimates.ESTIMATES)
    assert seconds > 10 * slowest


def test_shared_folders_that_are_links_are_resolved(tmp_path: Path) -> None:
    for name in ("toolchain", "environments"):
        (tmp_path / "shared" / name).mkdir(parents=True)
        (tmp_path / "build").mkdir(exist_ok=True)
        (tmp_path / "build" / name).symlink_to(tmp_path / "shared" / name)
    folders = Folders(tmp_path / "build")
    assert folders.toolchain == (tmp_path / "shared" / "toolchain").resolve()
    assert folders.environments == (tmp_path / "shared" / "environments").resolve()


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCCACHE_DIR", "/elsewhere")
    assert "SCCACHE_DIR" not in pipeline.object_cache_variables(tmp_path / "cache")


def test_a_socket_path_that_is_too_long_for_the_system_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 110)
    assert "SCCACHE_SERVER_UDS" not in pipeline.object_cache_variables(deep)


def test_a_build_folder_with_a_blank_is_refused_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    with pytest.raises(PlanError, match="separates its flags by blanks"):
        pipeline.prepare("quick", tmp_path / "my builds")
    assert not list(tmp_path.iterdir())


# Machine code for Hopper


@pytest.fixture
def chosen() -> list[tuple[set[str], object]]:
    """The targets and the machine of every plan that is made."""
    return []


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[tuple[set[str], object]]
) -> Toolkit:
    """A toolkit, in place of what is found or installed; FlashInfer is not read."""
    root = tmp_path / "cuda"
    (root / "bin").mkdir(parents=True)
    for name in ("nvcc", "ptxas", "fatbinary", "nvlink"):
        (root / "bin" / name).write_text(f"#!/bin/sh\necho real {name}\n")
        (root / "bin" / name).chmod(0o755)
    toolkit = Toolkit(
        *(root, Version("13.0"), Version("13.0.88"), root / "bin/nvcc", None, None, "test", ())
    )
    monkeypatch.setattr(pipeline.toolchain, "find_or_install", lambda *_: toolkit)
    compiler = find_host_compiler()

    def find(machine: str) -> HostCompiler:
        return dataclasses.replace(compiler, machine=machine)

    def tools(platform: Platform, host: HostCompiler, *_: object) -> PlatformTools:
        assert host.machine == platform.machine
        return PlatformTools(NATIVE_BINUTILS, root / platform.cuda_target / "libcudart_static.a")

    monkeypatch.setattr(pipeline, "find_host_compiler", find)
    monkeypatch.setattr(pipeline, "find_platform_tools", tools)
    site = tmp_path / "site"
    environment = FlashInferEnvironment(site / "python", Version("0.7.2"), *(site,) * 5)
    monkeypatch.setattr(pipeline.environment, "ensure", lambda *_: environment)
    monkeypatch.setattr(pipeline.specs, "read", lambda *_: None)
    (root / "a.cu").write_text("TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);\n")
    unit = Unit("a", "@FLASHINFER@/a.cu", "cuda", ("-arch=sm_120f",), "0" * 64)
    functions = (Function("run", ("int",), operator="run"),)
    csrc = tmp_path / "csrc"
    (csrc / "operators").mkdir(parents=True)
    (csrc / "operators" / "run.cpp").write_text("FP4AOT_OPERATOR(run, Run);\n")

    def plan(preset: presets.Preset, *others: object) -> tuple[BuildPlan, Roots]:
        images = ("9.0a",) if preset.lowered else ("12.0f",)
        modules = (ModulePlan("m", "family", ("12.0f",), images, (unit,), functions),)
        lowering = digest() if preset.lowered else ""
        targets = {name for module in preset.modules for name in module.architectures}
        chosen.append((targets, others[-1]))
        roots = Roots(*[root] * 6, operators=csrc)
        return BuildPlan(preset.name, VERSIONS, modules, (), (), lowering), roots

    monkeypatch.setattr(pipeline, "make_plan", plan)
    return toolkit


def prepare(preset: str, folder: Path, **options: Any) -> tuple[Prepared, list[str]]:
    steps: list[str] = []
    return pipeline.prepare(preset, folder, report=steps.append, **options), steps


def test_a_lowered_preset_gets_a_toolkit_of_its_own(machine: Toolkit, tmp_path: Path) -> None:
    prepared, steps = prepare("lowered", tmp_path / "build")
    folder = Folders(tmp_path / "build").lowering / "13.0.88"
    assert prepared.nvcc == folder / "bin/nvcc"
    assert "lowering" in prepared.nvcc.with_name("ptxas").read_text()
    # A person is told what comes out of it.
    assert "tests alone" in steps[-1]
    # The audit reads machine code with the real programs.
    assert prepared.toolkit is machine
    # The folder is inside of one that no library may name.
    assert any(prepared.nvcc.is_relative_to(old) for old, _ in pipeline.prefix_maps(prepared))


def test_the_same_toolkit_serves_the_next_plan(machine: Toolkit, tmp_path: Path) -> None:
    ptxas = prepare("lowered", tmp_path / "build")[0].nvcc.with_name("ptxas")
    time = ptxas.stat().st_mtime_ns
    prepare("lowered", tmp_path / "build")
    # Every unit depends on it.
    assert ptxas.stat().st_mtime_ns == time


def test_other_presets_are_compiled_by_the_real_toolkit(machine: Toolkit, tmp_path: Path) -> None:
    prepared, steps = prepare("quick", tmp_path / "build")
    assert prepared.nvcc == machine.nvcc
    assert not Folders(tmp_path / "build").lowering.exists()
    assert not [step for step in steps if "Hopper" in step]


@pytest.mark.parametrize(("preset", "label"), [("quick", None), ("lowered", "lowered")])
def test_what_is_written_names_the_compiler_and_the_label(
    machine: Toolkit, tmp_path: Path, preset: str, label: str | None
) -> None:
    prepared, _ = prepare(preset, tmp_path / "build")
    jobs = pipeline.write(prepared, tmp_path / "plan")
    assert jobs[0].command[0] == str(prepared.nvcc)
    assert (jobs[0].command[0] == str(machine.nvcc)) == (preset == "quick")
    text = (tmp_path / "plan" / "units.cmake").read_text()
    assert ("set(FP4AOT_LOCAL_VERSION [=[lowered]=])" in text) == (label is not None)
    variables = pipeline.version_variables(prepared.plan)
    assert variables == {"FP4AOT_LOCAL_VERSION": label or ""}
    table = (tmp_path / "plan" / "kernel_entries.cpp").read_text()
    assert f"kernels_are_lowered = {'true' if label else 'false'};" in table
    # The operators are the same whatever is planned.
    functions = (tmp_path / "plan" / "flashinfer_functions.h").read_text()
    assert functions == flashinfer_functions(MODULES)


# Rows that fit nothing are refused before anything is compiled


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("csrc/operators/run.cpp", r"rows whose operators no source in .*csrc/operators"),
        ("cuda/a.cu", r"m: no source exports run"),
    ],
)
def test_a_row_without_its_operator_or_its_export_is_not_planned(
    machine: Toolkit, tmp_path: Path, file: str, message: str
) -> None:
    (tmp_path / file).write_text("")
    with pytest.raises(PlanError, match=message):
        prepare("quick", tmp_path / "build")


# What is written


def test_the_jobs_that_are_written_are_those_that_are_returned(
    machine: Toolkit, tmp_path: Path
) -> None:
    prepared, _ = prepare("quick", tmp_path / "build")
    folder = prepared.folders.generated
    jobs = pipeline.write(prepared, folder)
    listed = JobList.from_json(json.loads((folder / "jobs.json").read_text()))
    assert listed == pipeline.job_list(prepared, jobs)
    assert listed.jobs == jobs == pipeline.jobs_of(prepared, folder)
    # CMake links each of them from where the compilers put it.
    text = (folder / "units.cmake").read_text()
    for job in jobs:
        assert f"[=[{listed.store.path(job)}]=]" in text
        assert listed.store.path(job).is_relative_to(prepared.folders.objects)
    assert jobs[0].name == "m/a"
    names = {job.name for job in jobs}
    assert {"operators/kernel_entries", "operators/run"} <= names


def test_the_cache_runs_the_compilers(machine: Toolkit, tmp_path: Path) -> None:
    prepared, _ = prepare("quick", tmp_path / "build")
    launcher = pipeline.job_list(prepared, ()).launcher
    assert launcher == tuple(pipeline.object_cache_command(prepared.folders.object_cache))
    assert f"SCCACHE_DIR={prepared.folders.object_cache}" in launcher


@pytest.mark.parametrize(("cuda", "cached"), [("13.2", True), ("13.3", False), ("13.5", False)])
def test_the_cache_is_not_asked_about_device_code_of_a_cuda_that_it_misreads(
    machine: Toolkit, tmp_path: Path, cuda: str, cached: bool
) -> None:
    prepared, _ = prepare("quick", tmp_path / "build")
    toolkit = dataclasses.replace(prepared.toolkit, version=Version(cuda))
    jobs = pipeline.write(dataclasses.replace(prepared, toolkit=toolkit), tmp_path / "plan")
    assert {job.cached for job in jobs if job.compiler == "cicc"} == {cached}
    assert all(job.cached for job in jobs if job.compiler == "cc1plus")


def test_nothing_is_written_outside_the_build_folder(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    names = [name for name, value in vars(Folders).items() if isinstance(value, property)]
    paths = [getattr(folders, name) for name in names]
    assert {"objects", "scratch", "logs", "costs", "record", "report"} <= set(names)
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert len(set(paths)) == len(paths)


# Some of the targets, and another machine


def test_only_the_targets_that_are_asked_for_are_planned(
    machine: Toolkit, tmp_path: Path, chosen: list[tuple[set[str], object]]
) -> None:
    prepare("dense", tmp_path / "build")
    prepare("dense", tmp_path / "build", architectures=("12.0f", "10.0a"))
    assert chosen[0][0] > {"12.0f", "10.0a"}
    assert chosen[1][0] == {"12.0f", "10.0a"}


def test_a_target_that_the_preset_has_not_is_refused_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    with pytest.raises(PlanError, match=r"the preset quick has no 10\.3a"):
        pipeline.prepare("quick", tmp_path / "build", architectures=("10.3a",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("asked", "planned"), [(None, "x86_64"), ("aarch64", "aarch64")])
def test_a_plan_is_for_the_machine_of_the_host_compiler(
    machine: Toolkit,
    tmp_path: Path,
    chosen: list[tuple[set[str], object]],
    asked: str | None,
    planned: str,
) -> None:
    prepared, _ = prepare("quick", tmp_path / "build", machine=asked)
    assert prepared.host_compiler.machine == planned
    assert chosen[0][1] == planned
