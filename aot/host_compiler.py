"""Find the host compiler: what nvcc hands C++ to, and what compiles and links the operators."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from aot import process
from aot.errors import ToolchainError


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler.

    Parameters
    ----------
    path
        The program.
    version
        Its version.
    machine
        What it compiles for: ``"x86_64"`` or ``"aarch64"``.
    """

    path: Path
    version: Version
    machine: str


def find_host_compiler(
    machine: str | None = None, environ: Mapping[str, str] | None = None
) -> HostCompiler:
    """Find the compiler: ``$CXX`` where it is set, g++ otherwise.

    Parameters
    ----------
    machine
        What it has to compile for, ``"x86_64"`` or ``"aarch64"``; by default this machine.
    environ
        Environment to read; by default that of this process.

    Raises
    ------
    ToolchainError
        When there is none, or it compiles for another machine.
    """
    variables = os.environ if environ is None else environ
    here = platform.machine()
    target = machine or here
    named = variables.get("CXX", "").strip()
    # Cross-compiling takes a compiler of its own; CXX usually names that of this machine.
    name = named or ("g++" if target == here else f"{target}-linux-gnu-g++")
    found = shutil.which(name, path=variables.get("PATH", ""))
    if found is None:
        raise ToolchainError(_absent(name, target, here, from_cxx=bool(named)))
    version = _ask(found, "-dumpfullversion", "-dumpversion")
    try:
        compiler = HostCompiler(
            Path(found), Version(version), _ask(found, "-dumpmachine").split("-")[0]
        )
    except InvalidVersion:
        raise ToolchainError(
            f"{found} tells {version!r} as its version; expected e.g. 13.2.0"
        ) from None
    if compiler.machine != target:
        raise ToolchainError(
            f"{found} compiles for {compiler.machine}, and the build is for {target}; "
            f"set CXX to a compiler for {target}, e.g. {target}-linux-gnu-g++"
        )
    return compiler


def _ask(program: str, *options: str) -> str:
    return process.run(
        [program, *options], purpose=f"ask {program} for {options[0]}", error=ToolchainError
    ).stdout.strip()


def _absent(name: str, target: str, here: str, *, from_cxx: bool) -> str:
    if from_cxx:
        return f"CXX is {name!r}, and no such program is there; name one program, without options"
    package = "g++" if target == here else f"g++-{target.replace('_', '-')}-linux-gnu"
    dnf = "gcc-c++" if target == here else f"gcc-c++-{target}-linux-gnu"
    return (
        f"no host compiler for {target}: {name} is not on PATH. "
        f"Install it (`apt install {package}` or `dnf install {dnf}`), or set CXX"
    )
