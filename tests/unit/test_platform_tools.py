"""What a build needs of the machine that it is for, with scripts in place of pip and compilers."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from aot import locks, platform_tools, process
from aot.errors import ToolchainError
from aot.host_compiler import HostCompiler
from aot.platform_tools import RUNTIME, cuda_runtime, emulation, find_platform_tools
from aot.platforms import PLATFORMS, Platform
from aot.toolchain import Toolkit

HERE = PLATFORMS[platform.machine()]
ELSEWHERE = next(one for one in PLATFORMS.values() if not one.is_here)


def script(path: Path, body: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def compiler(folder: Path, machine: str, c_library: Path | None) -> HostCompiler:
    """A compiler that finds every library in one folder, or none, and no program."""
    found = "" if c_library is None else f"{c_library}/lib/"
    program = script(
        folder / "g++",
        f'case "$1" in -print-file-name=*) echo "{found}${{1#*=}}";; *) echo "${{1#*=}}";; esac',
    )
    return HostCompiler(program, Version("13"), machine)


def toolkit(root: Path, version: str = "13.0") -> Toolkit:
    return Toolkit(
        root=root,
        version=Version(version),
        compiler_version=Version(f"{version}.88"),
        nvcc=root / "bin/nvcc",
        cuobjdump=None,
        nvdisasm=None,
        source="test",
        targets=(),
    )


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH with the system's shell and nothing that could be an emulator."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("sh", "echo", "cat", "mkdir", "touch", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    monkeypatch.setenv("PATH", str(folder))
    return folder


# Running its programs


def test_this_machines_programs_run_as_they_are(tmp_path: Path, path: Path) -> None:
    assert emulation(HERE, compiler(tmp_path, HERE.machine, None)) == ()


@pytest.mark.parametrize("suffix", ["", "-static"])
def test_another_machines_programs_run_in_its_emulator(
    tmp_path: Path, path: Path, suffix: str
) -> None:
    emulator = script(path / f"{ELSEWHERE.emulator}{suffix}")
    host = compiler(tmp_path, ELSEWHERE.machine, tmp_path / "usr/cross")
    assert emulation(ELSEWHERE, host) == (str(emulator), "-L", str(tmp_path / "usr/cross"))


def test_no_emulator_is_an_error_that_names_it(tmp_path: Path, path: Path) -> None:
    script(path / "qemu-riscv64")
    with pytest.raises(ToolchainError) as caught:
        emulation(ELSEWHERE, compiler(tmp_path, ELSEWHERE.machine, tmp_path))
    message = str(caught.value)
    assert message.startswith(f"{ELSEWHERE.emulator} is not on PATH")
    assert "apt install qemu-user" in message
    assert "type schemas" in message


def test_no_c_library_is_an_error_that_names_its_loader(tmp_path: Path, path: Path) -> None:
    script(path / ELSEWHERE.emulator)
    with pytest.raises(ToolchainError, match=re.escape(f"has no {ELSEWHERE.loader}")):
        emulation(ELSEWHERE, compiler(tmp_path, ELSEWHERE.machine, None))


# The CUDA runtime


def runtime_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / RUNTIME).touch()
    return folder / RUNTIME


@pytest.mark.parametrize("lib", ["lib64", "lib", f"targets/{HERE.cuda_target}/lib"])
def test_this_machines_runtime_is_the_toolkits(tmp_path: Path, lib: str) -> None:
    expected = runtime_in(tmp_path / "cuda" / lib)
    assert cuda_runtime(HERE, toolkit(tmp_path / "cuda"), tmp_path / "folder") == expected


def test_a_toolkit_may_hold_another_machines_runtime(tmp_path: Path) -> None:
    runtime_in(tmp_path / "cuda/lib64")
    expected = runtime_in(tmp_path / "cuda" / "targets" / ELSEWHERE.cuda_target / "lib")
    assert cuda_runtime(ELSEWHERE, toolkit(tmp_path / "cuda"), tmp_path / "folder") == expected


@pytest.mark.parametrize(("target", "version"), [(HERE, "13.0"), (ELSEWHERE, "12.8")])
def test_no_runtime_names_the_places(tmp_path: Path, target: Platform, version: str) -> None:
    # What lies there is for the other machine.
    other = ELSEWHERE if target is HERE else HERE
    runtime_in(tmp_path / "cuda/targets" / other.cuda_target / "lib")
    with pytest.raises(ToolchainError) as caught:
        cuda_runtime(target, toolkit(tmp_path / "cuda", version), tmp_path)
    message = str(caught.value)
    assert f"CUDA {version} has no static runtime for {target.machine}" in message
    assert f"{tmp_path}/cuda/targets/{target.cuda_target}/lib/{RUNTIME}" in message


class FakePip:
    """Stands in for the interpreter that runs pip, and keeps what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installs = f"nvidia/cu13/lib/{RUNTIME}"

    def python(self, scratch: Path, *, error: type[Exception]) -> Path:
        folder = self.folder
        return script(
            folder / "python",
            f'echo "$@" >> "{folder}/log"\n'
            "while [ $# -gt 0 ]; do\n"
            f'  case "$1" in --requirement) cat "$2" > "{folder}/requirement";;\n'
            f'  --target) file="$2/{self.installs}"; mkdir -p "${{file%/*}}"; touch "$file";;\n'
            "  esac; shift; done",
        )

    def calls(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def requirement(self) -> str:
        return (self.folder / "requirement").read_text()


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(tmp_path / "pip")
    monkeypatch.setattr(process, "python_with_pip", fake.python)
    return fake


def test_another_machines_runtime_is_installed_once(tmp_path: Path, pip: FakePip) -> None:
    folder = tmp_path / "toolkits"
    kit = toolkit(tmp_path / "cuda")
    found = cuda_runtime(ELSEWHERE, kit, folder)
    place = folder / f"cuda-runtime-13.0-{ELSEWHERE.machine}"
    assert found == place / "nvidia/cu13/lib" / RUNTIME
    assert found.is_file()
    assert cuda_runtime(ELSEWHERE, kit, folder) == found
    assert [one.name for one in folder.iterdir()] == [place.name]
    (call,) = pip.calls()
    for option in ("--no-deps", "--require-hashes", "--only-binary=:all:"):
        assert option in call
    for tag in ELSEWHERE.package_tags:
        assert f"--platform={tag}" in call


@pytest.mark.parametrize("lock", locks.available("cuda"), ids=lambda lock: str(lock.version))
def test_it_is_pinned_by_the_lock_of_the_toolkit(
    tmp_path: Path, pip: FakePip, lock: locks.Lock
) -> None:
    cuda_runtime(ELSEWHERE, toolkit(tmp_path / "cuda", str(lock.version)), tmp_path / "toolkits")
    asked = pip.requirement()
    assert asked in lock.path.read_text()
    first, *rest = asked.splitlines()
    assert re.fullmatch(r"nvidia-cuda-runtime==[\d.]+ \\", first)
    # One hash for each platform at least, and no other package.
    assert len(rest) >= len(PLATFORMS)
    assert all(re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?", line) for line in rest)


def test_cuda_12_has_a_lock_of_the_runtime_alone(tmp_path: Path, pip: FakePip) -> None:
    pip.installs = f"nvidia/cuda_runtime/lib/{RUNTIME}"
    found = cuda_runtime(ELSEWHERE, toolkit(tmp_path / "cuda", "12.9"), tmp_path / "toolkits")
    assert found.parent.parent.name == "cuda_runtime"
    assert pip.requirement().startswith("nvidia-cuda-runtime-cu12==12.9.")


def test_another_lock_replaces_what_is_installed(
    tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kit = tmp_path / "toolkits", toolkit(tmp_path / "cuda")
    cuda_runtime(ELSEWHERE, kit, folder)
    monkeypatch.setattr(platform_tools, "_requirement", lambda _: "nvidia-cuda-runtime==13.0.99\n")
    cuda_runtime(ELSEWHERE, kit, folder)
    assert len(pip.calls()) == 2
    assert len(list(folder.iterdir())) == 1


def test_a_package_without_the_runtime_is_not_kept(tmp_path: Path, pip: FakePip) -> None:
    pip.installs = "nvidia/cu13/lib/libcudart.so.13"
    with pytest.raises(ToolchainError, match=rf"nvidia-cuda-runtime==\S+ has no {RUNTIME}"):
        cuda_runtime(ELSEWHERE, toolkit(tmp_path / "cuda"), tmp_path / "toolkits")
    assert list((tmp_path / "toolkits").iterdir()) == []


def test_a_failed_pip_shows_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(tmp_path / "python", "echo THESE DO NOT MATCH THE HASHES >&2; exit 1")
    monkeypatch.setattr(process, "python_with_pip", lambda scratch, *, error: python)
    with pytest.raises(ToolchainError, match="DO NOT MATCH THE HASHES"):
        cuda_runtime(ELSEWHERE, toolkit(tmp_path / "cuda"), tmp_path / "toolkits")
    assert list((tmp_path / "toolkits").iterdir()) == []


# All together


def test_this_machine_needs_no_emulator_and_installs_nothing(tmp_path: Path, pip: FakePip) -> None:
    runtime = runtime_in(tmp_path / "cuda/lib64")
    host = compiler(tmp_path, HERE.machine, None)
    tools = find_platform_tools(HERE, host, toolkit(tmp_path / "cuda"), tmp_path / "folder")
    assert tools.cuda_runtime == runtime
    assert tools.emulation == ()
    assert all(path.is_absolute() for path in vars(tools.binutils).values())
    assert pip.calls() == []
