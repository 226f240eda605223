"""The version of a wheel: a label where its machine code is lowered, and no wheel without it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
from compile_jobs import make_job
from packaging.version import Version
from plans import VERSIONS

from aot import pipeline
from aot.codegen.cmake import cmake_variables
from aot.host_compiler import NATIVE_BINUTILS
from aot.lowering import LOWERED_VERSION
from aot.plan import BuildPlan, Roots
from aot.platform_tools import PlatformTools

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "FP4AOT_LOCAL_VERSION"
PYPROJECT = (ROOT / "pyproject.toml").read_text()
LOWERING = "0123456789abcdef"
OBJECTS = ("tvm_ffi/error", "operators/gemm", "operators/tensor_map")


def plan_of(lowering: str) -> BuildPlan:
    """A plan with nothing in it but what decides over the label."""
    return BuildPlan("test", VERSIONS, (), (), (), lowering)


@pytest.fixture
def local_version() -> ModuleType:
    path = ROOT / "wheels" / "local_version.py"
    specification = importlib.util.spec_from_file_location("local_version", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


# What the build backend asks


@pytest.mark.parametrize(
    ("label", "version"), [(None, "1.2.3"), ("", "1.2.3"), (LOWERED_VERSION, "1.2.3+lowered")]
)
def test_the_label_comes_from_the_environment(
    local_version: ModuleType, monkeypatch: pytest.MonkeyPatch, label: str | None, version: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if label is not None:
        monkeypatch.setenv(VARIABLE, label)
    assert local_version.dynamic_metadata({"version": "1.2.3"}, {}) == {"version": version}
    assert str(Version(version)) == version, "the name of the wheel would have another spelling"


def test_both_sides_name_the_same_variable(local_version: ModuleType) -> None:
    assert local_version.VARIABLE == VARIABLE
    assert pipeline.version_variables(plan_of("")) == {VARIABLE: ""}
    assert pipeline.version_variables(plan_of(LOWERING)) == {VARIABLE: LOWERED_VERSION}


@pytest.mark.parametrize("label", ["", LOWERED_VERSION])
def test_the_backend_gives_a_wheel_this_version(tmp_path: Path, label: str) -> None:
    """The build backend itself, as far as it goes without CMake."""
    program = (
        "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as make;"
        "print('made', make(sys.argv[1], {'build-dir': sys.argv[1] + '/build'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {VARIABLE: label},
        capture_output=True,
        text=True,
        check=True,
    )
    (version,) = re.findall(r'^version = "([\d.]+)"$', PYPROJECT, re.MULTILINE)
    version += f"+{label}" if label else ""
    assert f"made fp4aot-{version}.dist-info" in done.stdout.splitlines()
    metadata = (tmp_path / f"fp4aot-{version}.dist-info" / "METADATA").read_text()
    assert f"\nVersion: {version}\n" in metadata


# What CMake refuses: the file of the project, with a plan that is already made


def program(name: str) -> Path:
    """Find a program: beside the interpreter, where the build requirements put theirs, or else."""
    for folder in (sysconfig.get_path("scripts"), None):
        found = shutil.which(name, path=folder)
        if found:
            return Path(found)
    pytest.skip(f"NOT TESTED: CMake's check of the version, because this machine has no {name}")


def configure(
    folder: Path, plan: BuildPlan, version: str | None
) -> subprocess.CompletedProcess[str]:
    """Configure the project; `version` is what the build backend says, if it runs CMake."""
    cmake, ninja, compiler = map(program, ("cmake", "ninja", "g++"))
    variables = cmake_variables(
        plan,
        Roots(*[folder / "roots"] * 6),
        [(make_job(name), folder / "objects" / f"{name}.o") for name in OBJECTS],
        host_compiler=compiler,
        tools=PlatformTools(NATIVE_BINUTILS, folder / "libcudart_static.a"),
        prefix_maps=(),
    )
    (folder / "units.cmake").write_text(variables)
    # An interpreter for which making a plan is to copy this one.
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$1 $2 $3 $4" = "-m aot.steps plan --write" ]; then\n'
        f'  mkdir -p "$5" && cp {shlex.quote(str(folder / "units.cmake"))} "$5"\n'
        f'else exec {shlex.quote(sys.executable)} "$@"\n'
        "fi\n"
    )
    python.chmod(0o755)
    defines = {"Python_EXECUTABLE": python, "FP4AOT_PRESET": "this-preset"}
    if version is not None:
        defines["SKBUILD_PROJECT_VERSION_FULL"] = version
    return subprocess.run(
        [
            *(str(cmake), "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            *(f"-D{name}={value}" for name, value in defines.items()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("lowering", "version"), [("", "0.1.0"), ("", None), (LOWERING, "0.1.0+lowered")]
)
def test_a_version_that_fits_the_plan_is_configured(
    tmp_path: Path, lowering: str, version: str | None
) -> None:
    done = configure(tmp_path, plan_of(lowering), version)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build" / "build.ninja").is_file()


@pytest.mark.parametrize(
    ("lowering", "version", "needed"),
    [
        # As `pip wheel .` would make it of the preset; with a label for what needs none; another.
        (LOWERING, "0.1.0", "lowered"),
        (LOWERING, None, "lowered"),
        ("", "0.1.0+lowered", ""),
        (LOWERING, "0.1.0+lowered.2", "lowered"),
    ],
)
def test_a_version_that_does_not_fit_the_plan_is_refused(
    tmp_path: Path, lowering: str, version: str | None, needed: str
) -> None:
    done = configure(tmp_path, plan_of(lowering), version)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert f"needs the local version '{needed}'" in said
    assert "python -m aot build --preset this-preset" in said
    if version is not None:
        assert f"would be version {version}," in said
    assert not (tmp_path / "build" / "build.ninja").exists()


def steps_of(folder: Path) -> list[str]:
    """The lines of ninja's file; CMake writes a configured one."""
    return (folder / "build" / "build.ninja").read_text().splitlines()


def test_every_object_is_linked_and_made_by_one_step(tmp_path: Path) -> None:
    assert configure(tmp_path, plan_of(""), "0.1.0").returncode == 0
    lines = steps_of(tmp_path)
    (linked,) = [line for line in lines if "-soname,libfp4aot.so" in line]
    (archived,) = [line for line in lines if "qcsD" in line]
    assert f"{tmp_path}/objects/operators/gemm.o" in linked
    assert f"{tmp_path}/objects/tvm_ffi/error.o" in archived
    (made,) = [
        line for line in lines if line.startswith("build ") and "gemm.o" in line.split(":")[0]
    ]
    assert all(f"{tmp_path}/objects/{name}.o" in made.partition(":")[0] for name in OBJECTS)
    (compiled,) = [line for line in lines if " aot.steps compile " in line]
    assert f"{tmp_path}/build/plan/jobs.json" in compiled


def test_what_is_added_to_a_lowered_library_is_linked(tmp_path: Path) -> None:
    assert configure(tmp_path, plan_of(LOWERING), "0.1.0+lowered").returncode == 0
    (linked,) = [line for line in steps_of(tmp_path) if "-soname,libfp4aot.so" in line]
    assert "operators/tensor_map.o" in linked
    assert "-Wl,--wrap=cudaGetDriverEntryPointByVersion" in linked

    other = tmp_path / "other"
    other.mkdir()
    assert configure(other, plan_of(""), "0.1.0").returncode == 0
    assert not [line for line in steps_of(other) if "--wrap" in line]
