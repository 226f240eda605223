"""A Python for aarch64 with torch, run in QEMU's user mode: Debian's interpreter, PyPI's torch.

Everything is unpacked into one folder. The system's package manager is only asked to download: it
gets a state of its own, so nothing is installed, and no other architecture is added to the system.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "python-aarch64.txt"
PACKAGES = ("python3", "libstdc++6", "libgomp1")
PROGRAM = "usr/bin/python3.11"
"""Debian 12's; the lock of its packages is for this version."""
EMULATOR = "qemu-aarch64"
COMPILER = "aarch64-linux-gnu-g++"
"""Compiles for it; what it starts are this machine's programs, so it needs no emulator."""
NEEDED = (EMULATOR, COMPILER, "apt-get", "dpkg-deb")

_TAGS = [f"--platform={tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17")]
_MARKER = "complete"
# Children are started by the name of the interpreter: it has to be one that this machine can run.
_SITE_CUSTOMIZE = "import os, sys\nsys.executable = os.environ['FP4AOT_EMULATED_PYTHON']\n"
_WRAPPER = """#!/bin/sh
here={folder}
export FP4AOT_EMULATED_PYTHON="$here/python" PYTHONPATH="$here/site"
export CXX={compiler}
exec {emulator} -L "$here/root" "$here/root/{program}" "$@"
"""


@dataclass(frozen=True)
class EmulatedPython:
    """An interpreter for aarch64 that this machine can run.

    Parameters
    ----------
    folder
        Of its file system ``root``, its packages ``site``, and the command ``python``.
    """

    folder: Path

    @property
    def program(self) -> Path:
        """The command."""
        return self.folder / "python"

    @property
    def site(self) -> Path:
        """Its packages."""
        return self.folder / "site"

    def run(
        self, *arguments: str | Path, timeout: float, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run it, away from any source tree."""
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def install(self, wheel: Path) -> None:
        """Install a wheel for aarch64, in place of an earlier one."""
        for old in (*self.site.glob("fp4aot"), *self.site.glob("fp4aot-*.dist-info")):
            shutil.rmtree(old)
        platform = wheel.stem.split("-")[-1]
        _pip("--no-deps", f"--platform={platform}", wheel, "--target", self.site)


def ensure(folder: Path) -> EmulatedPython:
    """Make the interpreter, unless it is there from an earlier run; about 200 MB are downloaded."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    marker = folder / _MARKER
    if marker.is_file() and marker.read_text() == wanted:
        return EmulatedPython(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _unpack_debian(folder / "root")
    _pip("--no-deps", "--require-hashes", *_TAGS, "-r", REQUIREMENTS, "--target", folder / "site")
    (folder / "site" / "sitecustomize.py").write_text(_SITE_CUSTOMIZE)
    python = EmulatedPython(folder)
    python.program.write_text(
        _WRAPPER.format(
            folder=shlex.quote(str(folder)),
            compiler=COMPILER,
            emulator=shutil.which(EMULATOR),
            program=PROGRAM,
        )
    )
    python.program.chmod(0o755)
    python.run("-c", "import torch", timeout=600)
    marker.write_text(wanted)
    return python


def _unpack_debian(root: Path) -> None:
    """Unpack an interpreter and the libraries that it and torch need, without installing them."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        for part in ("lists/partial", "archives/partial"):
            (state / part).mkdir(parents=True)
        (state / "status").touch()
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "Dir::State": state,
            "Dir::State::status": state / "status",
            "Dir::Cache": state,
        }
        options = [f"-o{key}={value}" for key, value in settings.items()]
        _run("apt-get", *options, "update")
        _run("apt-get", *options, "install", "--yes", "--download-only", *PACKAGES)
        for package in sorted((state / "archives").glob("*.deb")):
            _run("dpkg-deb", "--extract", package, root)
    if not (root / PROGRAM).is_file():
        raise RuntimeError(f"this system's packages have no {PROGRAM}: run this on Debian 12")


def _pip(*arguments: str | Path) -> None:
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:"),
        *("--python-version=3.11", *arguments),
    )


def _run(*command: str | Path) -> None:
    words: Sequence[str] = [str(word) for word in command]
    done = subprocess.run(
        words, env=os.environ | {"LANG": "C.UTF-8"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
