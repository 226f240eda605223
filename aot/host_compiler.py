"""Find the host compiler: what nvcc hands C++ to, and what compiles and links the operators."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from aot import process
from aot.errors import ToolchainError


@dataclass(frozen=True)
class Binutils:
    """The programs that edit and archive objects.

    Parameters
    ----------
    ld, objcopy, ar
        The programs.
    """

    ld: Path
    objcopy: Path
    ar: Path


NATIVE_BINUTILS: Final = Binutils(Path("ld"), Path("objcopy"), Path("ar"))
"""Those of this machine; they may read no other's objects."""


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

    @property
    def is_cross(self) -> bool:
        """Whether it compiles for another machine than this one."""
        return self.machine != platform.machine()

    def tool(self, name: str) -> Path:
        """Find a program of the binutils that belong to it.

        Parameters
        ----------
        name
            ``"ld"``, ``"objcopy"`` or ``"ar"``.

        Raises
        ------
        ToolchainError
            When it has none.
        """
        answer = _ask(str(self.path), f"-print-prog-name={name}")
        # One without a folder stands for the first on PATH, and a plain name is this machine's.
        plain = f"{self.machine}-linux-gnu-{name}" if self.is_cross else name
        found = shutil.which(answer if os.sep in answer else plain)
        if found is None:
            package = _debian_package("binutils", self.machine, cross=self.is_cross)
            raise ToolchainError(
                f"{self.path} has no {name} for {self.machine}, and {plain} is not on PATH; "
                f"install it: `apt install {package}`"
            )
        return Path(found)

    def binutils(self) -> Binutils:
        """Find the programs that edit and archive its objects.

        Raises
        ------
        ToolchainError
            When one is missing.
        """
        return Binutils(*(self.tool(name) for name in ("ld", "objcopy", "ar")))

    def library(self, name: str) -> Path | None:
        """Find a library of its machine by the name of its file; None where it has none."""
        found = _ask(str(self.path), f"-print-file-name={name}")
        # It repeats a name that it does not find.
        return Path(os.path.normpath(found)) if os.sep in found else None


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
    package = _debian_package("g++", target, cross=target != here)
    dnf = "gcc-c++" if target == here else f"gcc-c++-{target}-linux-gnu"
    return (
        f"no host compiler for {target}: {name} is not on PATH. "
        f"Install it (`apt install {package}` or `dnf install {dnf}`), or set CXX"
    )


def _debian_package(name: str, machine: str, *, cross: bool) -> str:
    return f"{name}-{machine.replace('_', '-')}-linux-gnu" if cross else name
