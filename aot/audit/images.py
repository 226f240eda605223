"""The device code inside an object or a library, as the disassembler lists it.

``cuobjdump --list-elf`` would be the obvious source, but it prints ``sm_120`` for family code built
for ``sm_120f``, which is another target. The headers that plain ``cuobjdump`` prints keep it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot import process
from aot.architectures import Architecture
from aot.errors import ArchitectureError, AuditError, ToolchainError
from aot.toolchain import Toolkit

# How cuobjdump titles each kind. The last is unfinished code, for a compile at link time.
_KINDS: Final[Mapping[str, str]] = {"elf": "cubin", "ptx": "ptx", "nvvm": "nvvm"}

_IMAGE = re.compile(r"^Fatbin (?P<kind>\w+) code:\n=+\narch = (?P<arch>\S+)$", re.MULTILINE)
_TITLE = re.compile(r"^Fatbin \w+ code:$", re.MULTILINE)
_NO_DEVICE_CODE = "does not contain device code"


@dataclass(frozen=True, order=True)
class Image:
    """One piece of device code.

    Parameters
    ----------
    kind
        ``"cubin"`` (machine code), ``"ptx"``, or ``"nvvm"`` (unfinished).
    architecture
        What it was built for, with its suffix.
    """

    kind: str
    architecture: Architecture


def parse_images(listing: str) -> tuple[Image, ...]:
    """Read what ``cuobjdump FILE`` prints.

    Returns
    -------
    tuple[Image, ...]
        In the order of the file: one for each translation unit and target.

    Raises
    ------
    AuditError
        When the listing has an entry that cannot be read: nothing is skipped.
    """
    images = []
    for match in _IMAGE.finditer(listing):
        kind = _KINDS.get(match["kind"])
        if kind is None:
            raise AuditError(
                f"cuobjdump lists an image of the unknown kind {match['kind']!r}; "
                f"known are {', '.join(_KINDS)}"
            )
        try:
            images.append(Image(kind, Architecture.from_sm(match["arch"])))
        except ArchitectureError as cause:
            raise AuditError(f"cuobjdump lists an image for an unknown target: {cause}") from cause
    titles = len(_TITLE.findall(listing))
    if titles != len(images):
        raise AuditError(
            f"cuobjdump lists {titles} images and {len(images)} could be read; "
            "its format has changed: update aot/audit/images.py"
        )
    return tuple(images)


def read_images(path: Path, toolkit: Toolkit) -> tuple[Image, ...]:
    """List the device code in an object (also a merged one) or a shared library.

    Parameters
    ----------
    path
        An ELF file.
    toolkit
        Its ``cuobjdump`` is run.

    Returns
    -------
    tuple[Image, ...]
        Empty for a file without device code.

    Raises
    ------
    ToolchainError
        When the toolkit has no ``cuobjdump``.
    AuditError
        When the file is not ELF, or cannot be read.
    """
    if toolkit.cuobjdump is None:
        raise ToolchainError(
            f"the toolkit in {toolkit.root} has no bin/cuobjdump, which the audit needs; "
            "install it, or let the build install a toolkit from packages"
        )
    with path.open("rb") as stream:
        magic = stream.read(4)
    # cuobjdump answers for any file that is not ELF that it has no device code.
    if magic != b"\x7fELF":
        raise AuditError(f"{path} is not an ELF file: it begins with {magic!r}")
    try:
        listing = process.run(
            [toolkit.cuobjdump, path], purpose=f"list the device code of {path}", error=AuditError
        ).stdout
    except AuditError as failure:
        if _NO_DEVICE_CODE in str(failure):
            return ()
        raise
    return parse_images(listing)


def count_images(images: Iterable[Image], kind: str = "cubin") -> dict[Architecture, int]:
    """Count the images of one kind for each target, in the order of the targets."""
    counts = Counter(image.architecture for image in images if image.kind == kind)
    return dict(sorted(counts.items()))
