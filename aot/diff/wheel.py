"""Read from a wheel what can be compared, whatever version of this project has built it."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.errors import AuditError

MANIFEST = "fp4aot/_manifest.json"
PROVENANCE = "fp4aot/_provenance.json"
SBOM = ".dist-info/sboms/fp4aot.cdx.json"
_RECORD = ".dist-info/RECORD"

_METADATA_FOLDER = re.compile(r"^[^/]+(?=\.dist-info/)")


@dataclass(frozen=True)
class Provenance:
    """What went into a library.

    Parameters
    ----------
    units
        Source with its hash, and all flags, by ``module/unit``.
    compilers
        Names and versions.
    operator_sources
        Hashes by name.
    runtime_sources, host_flags
        Of the TVM-FFI runtime that is compiled along, and the flags of ours.
    """

    units: Mapping[str, tuple[str, tuple[str, ...]]]
    compilers: Mapping[str, str]
    operator_sources: Mapping[str, str]
    runtime_sources: tuple[str, ...]
    host_flags: tuple[str, ...]


@dataclass(frozen=True)
class WheelContent:
    """A wheel, opened.

    Parameters
    ----------
    name
        The file, as it was given.
    sha256
        Of the file.
    files
        Size and SHA-256 by name; the folder of the metadata is called ``.dist-info`` whatever the
        version, and the lines of RECORD are sorted.
    manifest
        Its ``_manifest.json``.
    provenance
        None where the wheel carries none.
    components
        Version and licences by name of its bill of materials; None where it carries none.
    """

    name: str
    sha256: str
    files: Mapping[str, tuple[int, str]]
    manifest: Mapping[str, Any]
    provenance: Provenance | None
    components: Mapping[str, str] | None


def read_wheel(path: Path) -> WheelContent:
    """Open a wheel.

    Raises
    ------
    AuditError
        When it is no wheel of this project, or what it says of itself cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            contents = {
                _METADATA_FOLDER.sub("", name): archive.read(name)
                for name in archive.namelist()
                if not name.endswith("/")
            }
        contents[_RECORD] = b"\n".join(sorted(contents[_RECORD].splitlines()))
        manifest = json.loads(contents[MANIFEST])
        for key in ("version", "preset", "plan_hash", "versions", "modules", "library"):
            manifest[key]
        return WheelContent(
            name=str(path),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            files={
                name: (len(content), hashlib.sha256(content).hexdigest())
                for name, content in contents.items()
            },
            manifest=manifest,
            provenance=_provenance(contents.get(PROVENANCE)),
            components=_components(contents.get(SBOM)),
        )
    except (OSError, zipfile.BadZipFile, LookupError, TypeError, AttributeError, ValueError) as why:
        raise AuditError(
            f"{path} is not a fp4aot wheel whose manifest, provenance and bill of materials can be "
            f"read ({type(why).__name__}: {why}); pass the path of a wheel that "
            "`python -m aot build` has written"
        ) from why


def _provenance(content: bytes | None) -> Provenance | None:
    if content is None:
        return None
    data = json.loads(content)
    plan = data["plan"]
    return Provenance(
        units={
            f"{module['name']}/{unit['name']}": (
                f"{unit['source']} sha256 {unit['sha256']}",
                tuple(unit["flags"]),
            )
            for module in plan["modules"]
            for unit in module["units"]
        },
        compilers=dict(data["compilers"]),
        operator_sources=dict(data["operator_sources"]["files"]),
        runtime_sources=tuple(plan["tvm_ffi_sources"]),
        host_flags=tuple(plan["added_host_flags"]),
    )


def _components(content: bytes | None) -> Mapping[str, str] | None:
    if content is None:
        return None
    return {
        item["name"]: f"{item.get('version', 'no version')}, {_licences(item)}"
        for item in json.loads(content)["components"]
    }


def _licences(component: Mapping[str, Any]) -> str:
    names = []
    for entry in component.get("licenses", ()):
        licence = entry.get("license", {})
        names.append(entry.get("expression") or licence.get("id") or licence.get("name"))
    return " AND ".join(map(str, names)) or "no licence"
