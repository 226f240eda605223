"""What pip in a build gets to see: this machine's configuration, and packages without an index."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from pathlib import Path

from packaging.utils import parse_wheel_filename

from tests.shipping.images.tools import run


def pip_volumes(folder: Path) -> list[tuple[Path, str]]:
    """Write this machine's configuration of pip into one file, and list what it points to."""
    settings: dict[str, str] = {}
    for line in run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        if match := re.fullmatch(r"[^.]*\.([\w-]+)=(.+)", line):
            settings[match[1]] = " ".join(shlex.split(match[2]))
    file = folder / "pip.conf"
    lines = [f"{name} = {value}" for name, value in settings.items()]
    file.write_text("\n".join(["[global]", *lines, ""]))
    words = [word for value in settings.values() for word in value.split()]
    paths = {Path(word) for word in words if word.startswith("/")}
    # An index is a folder of pages beside the folder of files that they link to.
    indexes = [word.removeprefix("file://") for word in words if word.startswith("file:///")]
    paths |= {Path(index).parent for index in indexes}
    there = [(path, str(path)) for path in sorted(paths) if path.exists()]
    return [(file, "/etc/pip.conf"), *there]


def make_wheelhouse(folder: Path, python: str, *requirements: str) -> None:
    """Download requirements with all they need, and pin every file by its hash.

    Parameters
    ----------
    folder
        Gets the wheels and ``requirements.txt``.
    python
        Version of the interpreter that they are for, such as ``"3.11"``.
    requirements
        What to download.
    """
    run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
            *("--python-version", python, "--dest", folder, *requirements),
        ]
    )
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    (folder / "requirements.txt").write_text("\n".join([*lines, ""]))
