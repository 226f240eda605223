r"""The pinned, hash-checked package lists that the pipeline installs from.

One file for each thing and version, ``<thing>-<version>.txt``. Each is compiled from the ``.in``
file beside it and names no package index, so it installs from whichever one the machine uses::

    uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-python-downloads NAME.in -o NAME.txt

with ``--no-deps`` for a toolkit and ``--excludes THING-excluded.in`` for FlashInfer and torch. Only
pip is needed to install from the result, always with ``--no-deps --require-hashes``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Lock:
    """A requirements file for one version: every package is pinned, and every hash listed."""

    version: Version
    path: Path

    @property
    def digest(self) -> str:
        """SHA-256 of the file: an installation made from another one is out of date."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def available(thing: str, folder: Path = FOLDER) -> tuple[Lock, ...]:
    """List the locks of one thing, oldest version first.

    Parameters
    ----------
    thing
        ``"cuda"`` or ``"flashinfer"``.
    folder
        Where the files are.
    """
    found = []
    for path in folder.glob(f"{thing}-*.txt"):
        try:
            version = Version(path.stem.removeprefix(f"{thing}-"))
        except InvalidVersion:
            continue
        found.append(Lock(version, path))
    return tuple(sorted(found, key=lambda lock: lock.version))


def find(thing: str, version: Version, folder: Path = FOLDER) -> Lock | None:
    """Return the lock of exactly this version, or ``None``.

    Versions are compared as such, never by prefix: 0.7.2 is neither 0.7.20 nor 0.7.2.post1.
    """
    return next((lock for lock in available(thing, folder) if lock.version == version), None)
