"""Run the programs that stand in for Docker: debootstrap, buildah and runc."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

WORK = Path(__file__).resolve().parent.parent.parent.parent / "build" / "images"
"""What is kept for the next run."""
PROGRAMS = ("buildah", "debootstrap", "runc")


def require_programs() -> None:
    """Stop with what to do where one is missing; a test that cannot run has not passed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise RuntimeError(
            f"{', '.join(missing)} not found; install them (`apt install {' '.join(missing)}`)"
        )
    if os.geteuid() != 0:
        raise RuntimeError("debootstrap makes a root file system: run this as root")


def run(command: Sequence[str | Path], *, cwd: Path | None = None, check: bool = True) -> str:
    """Run a program and return what it printed, both streams; with the end of it when it fails."""
    WORK.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        # chroot: works inside another container too. The object cache of a build is below TMPDIR,
        # and stays for the next one.
        env=os.environ | {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(WORK)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-4000:]}"
        )
    return done.stdout
