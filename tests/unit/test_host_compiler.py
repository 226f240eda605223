"""What a host compiler is asked for, with scripts in place of compilers, and the real ones."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from packaging.version import Version

from aot.errors import ToolchainError
from aot.host_compiler import HostCompiler, find_host_compiler
from aot.platforms import PLATFORMS

HERE = platform.machine()
ELSEWHERE = next(machine for machine in PLATFORMS if machine != HERE)


def script(path: Path, body: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def compiler(folder: Path, machine: str, **answers: str) -> HostCompiler:
    """A compiler that knows where some files are, and repeats the names of the others."""
    cases = "".join(f"*={name}) echo '{path}';; " for name, path in answers.items())
    program = script(folder / "g++", f'case "$1" in {cases}*) echo "${{1#*=}}";; esac')
    return HostCompiler(program, Version("13"), machine)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    return tmp_path / "path"


def test_a_tool_is_where_the_compiler_says(tmp_path: Path, path: Path) -> None:
    script(path / "ld")
    own = script(tmp_path / "cross" / "bin" / "ld")
    for machine in PLATFORMS:
        assert compiler(tmp_path, machine, ld=str(own)).tool("ld") == own


def test_this_machines_tools_are_on_path(tmp_path: Path, path: Path) -> None:
    for name in ("ld", "objcopy", "ar"):
        script(path / name)
    found = compiler(tmp_path, HERE).binutils()
    assert vars(found) == {name: path / name for name in ("ld", "objcopy", "ar")}


def test_another_machines_tools_are_never_this_machines(tmp_path: Path, path: Path) -> None:
    script(path / "objcopy")
    cross = compiler(tmp_path, ELSEWHERE)
    with pytest.raises(ToolchainError) as caught:
        cross.tool("objcopy")
    message = str(caught.value)
    assert f"has no objcopy for {ELSEWHERE}" in message
    assert f"{ELSEWHERE}-linux-gnu-objcopy is not on PATH" in message
    assert f"apt install binutils-{ELSEWHERE.replace('_', '-')}-linux-gnu" in message
    own = script(path / f"{ELSEWHERE}-linux-gnu-objcopy")
    assert cross.tool("objcopy") == own


def test_a_tool_that_is_named_and_not_there_is_missing(tmp_path: Path, path: Path) -> None:
    script(path / "ar")
    with pytest.raises(ToolchainError, match="has no ar for"):
        compiler(tmp_path, HERE, ar=str(tmp_path / "gone" / "ar")).tool("ar")


def test_a_library_is_found_or_not(tmp_path: Path) -> None:
    found = compiler(tmp_path, HERE, **{"libm.so.6": "/usr/a/lib/../../lib/libm.so.6"})
    assert found.library("libm.so.6") == Path("/usr/lib/libm.so.6")
    assert found.library("libnone.so") is None


def test_only_another_machines_compiler_is_a_cross_compiler(tmp_path: Path) -> None:
    assert not compiler(tmp_path, HERE).is_cross
    assert compiler(tmp_path, ELSEWHERE).is_cross


# Compilers that are there


def real(machine: str) -> HostCompiler:
    name = "g++" if machine == HERE else f"{machine}-linux-gnu-g++"
    if shutil.which(name) is None:
        pytest.skip(f"NOT TESTED: a real compiler for {machine}, because {name} is not installed")
    return find_host_compiler(machine, {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("machine", PLATFORMS)
def test_real_tools_read_what_the_compiler_makes(machine: str, tmp_path: Path) -> None:
    host = real(machine)
    (tmp_path / "one.cpp").write_text("int one() { return 1; }")
    made, merged = tmp_path / "one.o", tmp_path / "merged.o"
    subprocess.run([host.path, "-c", tmp_path / "one.cpp", "-o", made], check=True)
    tools = host.binutils()
    subprocess.run([tools.ld, "-r", "-o", merged, made], check=True)
    subprocess.run([tools.objcopy, "--strip-debug", merged], check=True)
    subprocess.run([tools.ar, "qcsD", tmp_path / "one.a", merged], check=True)
    with merged.open("rb") as stream:
        assert ELFFile(stream).header.e_machine == PLATFORMS[machine].elf_machine


@pytest.mark.parametrize("machine", PLATFORMS)
def test_real_compilers_know_the_loader_of_their_machine(machine: str) -> None:
    loader = real(machine).library(PLATFORMS[machine].loader)
    assert loader is not None
    assert loader.is_file()
