"""How an ELF file packs its device code: one container for each translation unit.

The disassembler lists images, but neither which of them belong together nor the bytes that each
takes in the file. This layout is not documented, so little of it is read, and the audit compares
every container with what the disassembler lists.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile

from aot.errors import AuditError

_SECTION: Final = ".nv_fatbin"
_FIRST_WORD: Final = 0xBA55ED50
_CUBIN: Final = 2
_MAGIC: Final = struct.Struct("<I")
_CONTAINER: Final = struct.Struct("<6xHQ")  # bytes of this header, and of all entries
_ENTRY: Final = struct.Struct("<4xIQ")  # bytes of this header, and of the image
_KIND: Final = struct.Struct("<H")
_CAPABILITY: Final = struct.Struct("<28xI")  # ten times the major version, and the minor one


@dataclass(frozen=True)
class Packed:
    """One piece of machine code as it lies in the file.

    Parameters
    ----------
    capability
        Major and minor version of its target.
    size
        The bytes it takes, compressed.
    """

    capability: tuple[int, int]
    size: int


def read_containers(path: Path) -> tuple[tuple[Packed, ...], ...]:
    """Read the machine code of each translation unit, in the order of the file.

    Raises
    ------
    AuditError
        When the layout is not the known one.
    """
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(_SECTION)
        data = section.data() if section is not None else b""
    containers, position = [], 0
    while position < len(data):
        if not any(data[position : position + 4]):
            position += 4  # the linker aligns containers
            continue
        try:
            end, entries = _container(data, position)
        except (struct.error, ValueError) as cause:
            raise AuditError(
                f"the device code of {path} is packed in an unknown way: {cause}; update {__name__}"
            ) from cause
        containers.append(entries)
        position = end
    return tuple(containers)


def _container(data: bytes, position: int) -> tuple[int, tuple[Packed, ...]]:
    if _MAGIC.unpack_from(data, position)[0] != _FIRST_WORD:
        raise ValueError(f"a container begins with {data[position : position + 4].hex()}")
    end, inner = _block(_CONTAINER, data, position)
    return end, _entries(data[inner:end])


def _entries(data: bytes) -> tuple[Packed, ...]:
    entries, position = [], 0
    while position < len(data):
        end, _ = _block(_ENTRY, data, position)
        if _KIND.unpack_from(data, position)[0] == _CUBIN:
            (capability,) = _CAPABILITY.unpack_from(data, position)
            entries.append(Packed(divmod(capability, 10), end - position))
        position = end
    return tuple(entries)


def _block(head: struct.Struct, data: bytes, position: int) -> tuple[int, int]:
    """Return where a block ends, and where its header does."""
    header, size = head.unpack_from(data, position)
    inner = position + header
    if header < head.size or inner + size > len(data):
        raise ValueError(f"a block at {position} has {header} and {size} bytes")
    return inner + size, inner
