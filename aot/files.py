"""Files: written so that nothing is ever half written, and hashed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


def write_text(path: Path, text: str) -> None:
    """Write through a temporary name; leave the file alone when it already says so.

    The second half keeps time stamps, so that ninja does not rebuild what did not change.
    """
    try:
        if path.read_text() == text:
            return
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    """Write readable JSON with a stable order."""
    write_text(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    OSError
        When it cannot be read.
    ValueError
        When it is not TOML, or not UTF-8.
    """
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return data


def sha256_of(path: Path) -> str:
    """Hash a file without holding it in memory."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def put_in_place(fresh: Path, final: Path, scratch: Path) -> None:
    """Rename a finished folder to where it belongs; an outdated one goes to `scratch`.

    Another process may be faster: what it has left is kept, and for the caller to check.
    """
    if final.exists():
        final.rename(scratch / "outdated")
    try:
        fresh.rename(final)
    except OSError:
        if not final.exists():
            raise
