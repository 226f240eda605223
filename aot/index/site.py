"""The whole site, written beside its final place and then put there: never half of it."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aot.errors import BuildError
from aot.files import sha256_of
from aot.index.collect import CudaIndex, collect
from aot.index.page import page
from aot.index.simple import simple_files
from aot.index.wheel import PROJECT, IndexedWheel

MARKER: Final = "fp4aot-index.json"
"""What is in a site; a folder without it is not replaced."""
_FORMAT: Final = "fp4aot index, 1"
# No user, query or fragment, and people paste it into a shell: nothing that a shell would read as
# something else.
_ADDRESS = re.compile(r"[A-Za-z0-9.:/_~%-]+")


@dataclass(frozen=True)
class Site:
    """A site that was written; `base_url` is empty when nobody knows where it will be served."""

    folder: Path
    base_url: str
    indexes: tuple[CudaIndex, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines."""
        return {"site": str(self.folder), **description(self.indexes, self.base_url)}

    def lines(self) -> Iterator[str]:
        """Say what was written, one line a wheel."""
        for index in self.indexes:
            for wheel in index.wheels:
                yield (
                    f"{index.name}  {wheel.name}  {wheel.size / 1e6:.2f} MB  preset "
                    f"{wheel.contents.preset}  SHA-256 {wheel.sha256}"
                )
        yield f"{self.folder}: open index.html, or serve the folder with any web server"


def write_site(wheels: Path, site: Path, base_url: str = "") -> Site:
    """Write the index of all wheels in a folder; replace an earlier one as a whole.

    Parameters
    ----------
    wheels
        The folder; wheels in folders below it count too.
    site
        The folder to write.
    base_url
        Where the site will be served: the page's commands name it.

    Raises
    ------
    AuditError
        When a wheel may not be published; see `collect`.
    BuildError
        When the address is none that pip accepts, when `site` holds something else, or it cannot
        be written.
    """
    address = check_base_url(base_url)
    wheels, site = wheels.resolve(), site.resolve()
    if site == wheels or site in wheels.parents or wheels in site.parents:
        raise BuildError(
            f"the site {site} and the wheels' folder {wheels} lie one in the other, and the site "
            "is replaced as a whole; write it to a folder beside"
        )
    _check_replaceable(site)
    indexes = collect(wheels)
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(site) as new:
            for index in indexes:
                _write_index(index, new)
            (new / "index.html").write_text(page(indexes, address), encoding="utf-8")
            marker = json.dumps(description(indexes, address), indent=2, sort_keys=True) + "\n"
            (new / MARKER).write_text(marker, encoding="utf-8")
            _put_in_place(new, site)
    except OSError as cause:
        raise BuildError(f"the index {site} cannot be written: {cause}") from cause
    return Site(site, address, indexes)


def check_base_url(text: str) -> str:
    """Return an address without its last slash; empty for none.

    Raises
    ------
    BuildError
        When pip would refuse it.
    """
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as cause:
        raise BuildError(f"--base-url {text!r} is no address: {cause}") from cause
    secure = parts.scheme == "https" or (parts.scheme == "http" and _is_this_machine(host))
    if not (host and secure and _ADDRESS.fullmatch(text)):
        raise BuildError(
            f"--base-url is {text!r}; expected the address of the site's folder, such as "
            "https://example.org/fp4aot: https (pip trusts http on this machine alone), without a "
            "user, query or fragment"
        )
    return text.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def description(indexes: tuple[CudaIndex, ...], base_url: str) -> dict[str, Any]:
    """Describe a site: its indexes and the wheels in them, as plain data."""
    return {
        "format": _FORMAT,
        "base_url": base_url,
        "indexes": {
            index.name: {
                "cuda": index.cuda,
                "path": f"{index.name}/simple/",
                "wheels": [_describe(wheel) for wheel in index.wheels],
            }
            for index in indexes
        },
    }


def _describe(wheel: IndexedWheel) -> Mapping[str, Any]:
    contents = wheel.contents
    return {
        "name": wheel.name,
        "version": str(wheel.version),
        "machines": wheel.machines,
        "size": wheel.size,
        "sha256": wheel.sha256,
        "requires_python": wheel.requires_python,
        "requires_torch": wheel.requires_torch,
        "preset": contents.preset,
        "plan_hash": contents.plan_hash,
        "flashinfer": contents.flashinfer,
        "modules": {module.name: list(map(str, module.targets)) for module in contents.modules},
    }


def _write_index(index: CudaIndex, site: Path) -> None:
    for name, content in simple_files(index).items():
        path = site / index.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    for wheel in index.wheels:
        copy = site / index.name / "simple" / PROJECT / wheel.name
        shutil.copyfile(wheel.path, copy)
        if sha256_of(copy) != wheel.sha256:
            raise BuildError(f"{wheel.path} has changed while it was published; run this again")


def _check_replaceable(site: Path) -> None:
    """Refuse to replace what this has not written."""
    try:
        if not site.exists() or (site.is_dir() and not any(site.iterdir())):
            return
        marker = json.loads((site / MARKER).read_text(encoding="utf-8"))
        ours = isinstance(marker, dict) and marker.get("format") == _FORMAT
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise BuildError(
            f"{site} exists and is not an index that this command wrote (no readable {MARKER}), so "
            "it is left alone; name a new or an empty folder"
        )


@contextmanager
def _temporary(site: Path) -> Iterator[Path]:
    """Make a folder beside the site, for the same file system; gone in the end."""
    with tempfile.TemporaryDirectory(dir=site.parent, prefix=f".{site.name}-") as name:
        new = Path(name) / "new"
        new.mkdir()
        yield new


def _put_in_place(new: Path, site: Path) -> None:
    """Swap the new site in; the earlier one goes with the temporary folder, or comes back."""
    old = new.with_name("old")
    if site.exists():
        site.rename(old)
    try:
        new.rename(site)
    except BaseException:
        if old.exists():
            old.rename(site)
        raise
