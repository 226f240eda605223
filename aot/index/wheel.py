"""One wheel, read and checked before it may be published."""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from aot.errors import AuditError
from aot.files import sha256_of
from aot.index.contents import MANIFEST, Contents, parse_manifest

PROJECT: Final = "fp4aot"
_MANYLINUX = re.compile(r"manylinux_\d+_\d+_(\w+)")
_CHUNK = 1 << 20
# What zipfile and packaging raise for a file that is cut off, damaged, encrypted or no wheel.
_UNREADABLE = (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError),
    *(ValueError, KeyError, RuntimeError),
)


@dataclass(frozen=True)
class IndexedWheel:
    """A wheel that may be published.

    Parameters
    ----------
    path
        The file.
    version
        As in its name, its metadata and its manifest.
    machines
        Processors that it is for, such as ``("x86_64",)``.
    requires_python, requires_torch
        Version specifiers of its metadata, such as ``">=3.10"``; empty for any.
    metadata
        The bytes of its METADATA.
    size, sha256
        Of the file.
    contents
        What it holds.
    """

    path: Path
    version: Version
    machines: tuple[str, ...]
    requires_python: str
    requires_torch: str
    metadata: bytes
    size: int
    sha256: str
    contents: Contents

    @property
    def name(self) -> str:
        """File name."""
        return self.path.name

    @property
    def metadata_sha256(self) -> str:
        """Hash of the metadata, which the index serves as a file of its own."""
        return hashlib.sha256(self.metadata).hexdigest()


def read_wheel(path: Path) -> IndexedWheel:
    """Read a wheel and check that it may be published.

    Raises
    ------
    AuditError
        Naming the wheel and why not: not a wheel of this project, damaged, other than its name or
        its manifest says, without a manylinux tag, or lowered.
    """
    try:
        return _read(path)
    except _UNREADABLE as cause:
        raise AuditError(f"{path} cannot be read as a wheel: {cause}") from cause
    except AuditError as cause:
        raise AuditError(f"{path}: {cause}") from cause


def _read(path: Path) -> IndexedWheel:
    version, machines = _parse_name(path.name)
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read(_metadata_name(archive))
        if MANIFEST not in archive.namelist():
            raise AuditError(f"has no {MANIFEST}: not written by `python -m aot build`")
        contents = parse_manifest(archive.read(MANIFEST))
        parsed, _ = parse_email(metadata)
        if canonicalize_name(parsed["name"]) != PROJECT:
            raise AuditError(f"its metadata is of the project {parsed['name']!r}")
        _check_versions(version, Version(parsed["version"]), contents.version)
        if contents.lowered:
            raise AuditError(
                "is lowered: Blackwell's kernels made to run on a Hopper, to test them. Such a "
                "wheel is never published; take it out of the folder"
            )
        _check_library(archive, contents)
        if damaged := archive.testzip():
            raise AuditError(f"{damaged} in it is damaged; build or copy the wheel again")
    return IndexedWheel(
        path=path,
        version=version,
        machines=machines,
        requires_python=str(SpecifierSet(parsed.get("requires_python", ""))),
        requires_torch=_torch(parsed),
        metadata=metadata,
        size=path.stat().st_size,
        sha256=sha256_of(path),
        contents=contents,
    )


def _parse_name(name: str) -> tuple[Version, tuple[str, ...]]:
    """Return the version and the processors in the name of a wheel."""
    try:
        project, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename as cause:
        raise AuditError(f"is not the name of a wheel ({cause})") from cause
    if project != PROJECT:
        raise AuditError(f"is a wheel of {project}, and this is the index of {PROJECT}")
    platforms = sorted({tag.platform for tag in tags})
    found = [_MANYLINUX.fullmatch(platform) for platform in platforms]
    machines = tuple(sorted({match[1] for match in found if match}))
    if not all(found):
        raise AuditError(
            f"is tagged {', '.join(platforms)}: not a manylinux wheel, so not one that has passed "
            "the audit of `python -m aot build`"
        )
    return version, machines


def _metadata_name(archive: zipfile.ZipFile) -> str:
    found = [
        name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
    ]
    if len(found) != 1:
        raise AuditError(f"holds {len(found)} files .dist-info/METADATA; expected one")
    return found[0]


def _torch(metadata: RawMetadata) -> str:
    """Return the versions of torch that a wheel accepts."""
    needed = map(Requirement, metadata.get("requires_dist", []))
    return ",".join(str(one.specifier) for one in needed if canonicalize_name(one.name) == "torch")


def _check_versions(name: Version, metadata: Version, manifest: str) -> None:
    if not name == metadata == Version(manifest):
        raise AuditError(
            f"is {name} by its name, {metadata} by its metadata and {manifest} by its manifest; "
            "build it again, and do not rename wheels"
        )


def _check_library(archive: zipfile.ZipFile, contents: Contents) -> None:
    """Compare the library with the hash that the build has written down."""
    if contents.library not in archive.namelist():
        raise AuditError(f"does not hold {contents.library}, which its manifest names")
    digest = hashlib.sha256()
    with archive.open(contents.library) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != contents.library_sha256:
        raise AuditError(
            f"{contents.library} is not the one of its manifest (SHA-256 {digest.hexdigest()}, "
            f"expected {contents.library_sha256}); build it again"
        )
