"""What a library is linked with, and how a program for its machine is run on this one.

On the machine that it is for, all of it is there. Elsewhere it takes the binutils of the cross
compiler, the static CUDA runtime of the other machine, and an emulator for the one program of a
build that runs there: it tells the type schemas of the compiled modules.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot import files, locks, process
from aot.errors import ToolchainError
from aot.host_compiler import Binutils, HostCompiler
from aot.platforms import Platform
from aot.toolchain import Toolkit

RUNTIME: Final = "libcudart_static.a"
_MARKER: Final = "requirement.txt"
# An entry of a lock: a first line, and those that follow a backslash.
_ENTRY: Final = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(?:.*\\\n)*.*\n", re.MULTILINE)


@dataclass(frozen=True)
class PlatformTools:
    """What a build needs of the machine that it is for.

    Parameters
    ----------
    binutils
        They edit and archive its objects.
    cuda_runtime
        Its ``libcudart_static.a``.
    emulation
        Command before one of its programs that runs it here; empty on that machine itself.
    """

    binutils: Binutils
    cuda_runtime: Path
    emulation: tuple[str, ...] = ()


def find_platform_tools(
    platform: Platform, compiler: HostCompiler, toolkit: Toolkit, folder: Path
) -> PlatformTools:
    """Find what a build for a platform needs; install its CUDA runtime where that is missing.

    Parameters
    ----------
    platform
        What the library is to run on.
    compiler
        Compiles for it.
    toolkit
        The CUDA toolkit of this machine.
    folder
        Where toolkits from packages are.

    Raises
    ------
    ToolchainError
        Naming what is missing and how to get it.
    """
    return PlatformTools(
        binutils=compiler.binutils(),
        cuda_runtime=cuda_runtime(platform, toolkit, folder),
        emulation=emulation(platform, compiler),
    )


def emulation(platform: Platform, compiler: HostCompiler) -> tuple[str, ...]:
    """Return the command before a program of the platform that runs it here.

    Parameters
    ----------
    platform
        What the program was compiled for.
    compiler
        What has compiled it: the program runs with its C library.

    Returns
    -------
    tuple[str, ...]
        Empty where this machine is of the platform.

    Raises
    ------
    ToolchainError
        When there is no emulator, or no C library.
    """
    if platform.is_here:
        return ()
    for name in (platform.emulator, f"{platform.emulator}-static"):
        emulator = shutil.which(name)
        if emulator is not None:
            break
    else:
        raise ToolchainError(
            f"{platform.emulator} is not on PATH. A build for {platform.machine} on another "
            "machine runs one program for it, without which the type schemas of the modules stay "
            "unchecked; install QEMU's user mode (`apt install qemu-user` or `dnf install "
            "qemu-user`)"
        )
    loader = compiler.library(platform.loader)
    if loader is None:
        raise ToolchainError(
            f"{compiler.path} has no {platform.loader}, so {platform.emulator} can run nothing "
            f"that it compiles; install the C library of {platform.machine} for it"
        )
    # QEMU looks below this folder for what a program names by absolute path: /lib/ld-linux-….
    return (emulator, "-L", str(loader.parent.parent))


def cuda_runtime(platform: Platform, toolkit: Toolkit, folder: Path) -> Path:
    """Find the static CUDA runtime of a platform, or install it from packages.

    Parameters
    ----------
    platform
        What the library is to run on.
    toolkit
        The CUDA toolkit of this machine.
    folder
        Where toolkits from packages are; another machine's runtime gets a folder of its own there.

    Returns
    -------
    Path
        Its ``libcudart_static.a``.

    Raises
    ------
    ToolchainError
        When there is none and no package of it is pinned, or pip fails.
    """
    # NVIDIA's own toolkits have a folder for each machine; the packages have one for their own.
    names = [f"targets/{platform.cuda_target}/lib"]
    names += ["lib64", "lib"] if platform.is_here else []
    places = [toolkit.root / name / RUNTIME for name in names]
    for place in places:
        if place.is_file():
            return place
    requirement = None if platform.is_here else _requirement(toolkit)
    if requirement is None:
        raise ToolchainError(
            f"CUDA {toolkit.version} has no static runtime for {platform.machine}: there is no "
            f"{' and no '.join(map(str, places))}, and no lock in aot/locks pins a package of it; "
            f"install NVIDIA's libraries for {platform.cuda_target} into {toolkit.root}"
        )
    final = folder / f"cuda-runtime-{toolkit.version}-{platform.machine}"
    return _installed(final, requirement) or _install(final, requirement, platform)


def _requirement(toolkit: Toolkit) -> str | None:
    """Return the runtime's entry in a lock: one version, with its hashes for every platform."""
    found = [locks.find(thing, toolkit.version) for thing in ("cuda", "cuda-runtime")]
    entries = [_ENTRY.search(lock.path.read_text()) for lock in found if lock is not None]
    return next((entry[0] for entry in entries if entry is not None), None)


def _runtime_in(folder: Path) -> Path | None:
    # nvidia/cu13/lib; in packages of CUDA 12, nvidia/cuda_runtime/lib.
    return next(iter(sorted(folder.glob(f"nvidia/*/lib/{RUNTIME}"))), None)


def _installed(folder: Path, requirement: str) -> Path | None:
    marker = folder / _MARKER
    if not marker.is_file() or marker.read_text() != requirement:
        return None
    return _runtime_in(folder)


def _install(final: Path, requirement: str, platform: Platform) -> Path:
    final.parent.mkdir(parents=True, exist_ok=True)
    # Installed beside its place and renamed: an interrupted install leaves nothing half done.
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as name:
        scratch = Path(name)
        listed, fresh = scratch / _MARKER, scratch / "runtime"
        listed.write_text(requirement)
        process.pip_install(
            *(process.python_with_pip(scratch, error=ToolchainError), listed, "--target", fresh),
            *(f"--platform={tag}" for tag in platform.package_tags),
            purpose=f"install the CUDA runtime of {platform.machine}",
            error=ToolchainError,
        )
        if _runtime_in(fresh) is None:
            raise ToolchainError(
                f"{requirement.split(maxsplit=1)[0]} has no {RUNTIME} for {platform.machine}; "
                "pin another version in aot/locks"
            )
        listed.rename(fresh / _MARKER)
        files.put_in_place(fresh, final, scratch)
    found = _installed(final, requirement)
    if found is None:
        raise ToolchainError(f"{final} is not what was installed; delete it and start again")
    return found
