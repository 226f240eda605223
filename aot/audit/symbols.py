"""The dynamic section and symbols of a shared library: what it needs, shows and asks for."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection
from packaging.version import Version

from aot.errors import AuditError
from aot.platforms import PLATFORMS

ALLOWED_NEEDED: Final = (
    "libtorch.so",
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-*.so.*",
    # Exceptions cross into libtorch, which uses this library itself: one unwinder in a process.
    "libgcc_s.so.1",
)
"""The libraries a wheel may ask for, as patterns: torch's stable ABI and the C library."""

ALLOWED_UNDEFINED: Final = ("aoti_torch_*", "torch_*", "_Unwind_*")
"""The symbols it may leave to torch's stable ABI and to the unwinder."""

ALLOWED_WEAK: Final = ("__cxa_finalize", "__cxa_pure_virtual", "__gmon_start__", "_ITM_*")
"""Weak symbols that compilers and the static C++ library leave, and that may stay unresolved."""

# The processor-independent number of a binding that pyelftools knows only as the start of a range.
_GNU_UNIQUE = ("STB_GNU_UNIQUE", "STB_LOOS")


@dataclass(frozen=True)
class Symbol:
    """One dynamic symbol.

    Parameters
    ----------
    name
        As it is linked, not demangled.
    binding
        ``"global"``, ``"weak"`` or ``"unique"``.
    version
        Version that an undefined one asks for, such as ``"GLIBC_2.17"``; empty for none.
    """

    name: str
    binding: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True)
class DynamicInfo:
    """What the loader reads.

    Parameters
    ----------
    needed
        Libraries it asks for.
    run_paths
        RPATH and RUNPATH entries.
    exported, undefined
        Its dynamic symbols.
    text_relocations, executable_stack
        Whether the loader has to make code writable, or the stack executable.
    machine
        What its code runs on: ``"aarch64"``; of machines that libraries are not built for, the name
        that the format gives them, ``"EM_RISCV"``.
    """

    needed: tuple[str, ...]
    run_paths: tuple[str, ...]
    exported: tuple[Symbol, ...]
    undefined: tuple[Symbol, ...]
    text_relocations: bool
    executable_stack: bool
    machine: str

    def foreign_libraries(self, allowed: tuple[str, ...] = ALLOWED_NEEDED) -> tuple[str, ...]:
        """List what it needs and must not."""
        return tuple(name for name in self.needed if not matches(name, allowed))

    def foreign_symbols(self, allowed: tuple[str, ...] = ALLOWED_UNDEFINED) -> tuple[Symbol, ...]:
        """List the symbols that nobody is allowed to supply."""
        return tuple(
            symbol
            for symbol in self.undefined
            if not symbol.version.startswith("GLIBC_")
            and not matches(symbol.name, allowed)
            and not (symbol.binding == "weak" and matches(symbol.name, ALLOWED_WEAK))
        )

    def newest_c_library(self) -> tuple[str, tuple[str, ...]]:
        """Name the newest version of the C library that is asked for, and the symbols that do."""
        symbols_by_version: dict[Version, list[str]] = {}
        for symbol in self.undefined:
            number = symbol.version.removeprefix("GLIBC_")
            if number != symbol.version and number[:1].isdigit():
                symbols_by_version.setdefault(Version(number), []).append(symbol.name)
        if not symbols_by_version:
            return "", ()
        newest = max(symbols_by_version)
        return str(newest), tuple(sorted(symbols_by_version[newest]))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def read_dynamic(path: Path) -> DynamicInfo:
    """Read a shared library's dynamic section and symbols.

    Raises
    ------
    AuditError
        When the file is no shared library.
    """
    with path.open("rb") as stream:
        try:
            elf = ELFFile(stream)
            return _read(elf, path)
        except ELFError as cause:
            raise AuditError(f"{path} is not a readable ELF file: {cause}") from cause


def _read(elf: Any, path: Path) -> DynamicInfo:
    dynamic = next((s for s in elf.iter_sections() if isinstance(s, DynamicSection)), None)
    table = elf.get_section_by_name(".dynsym")
    if dynamic is None or not isinstance(table, SymbolTableSection):
        raise AuditError(f"{path} is no shared library: it has no dynamic section")
    needed, run_paths, text_relocations = [], [], False
    tag: Any  # pyelftools sets the attributes that belong to the kind of tag
    for tag in dynamic.iter_tags():
        if tag.entry.d_tag == "DT_NEEDED":
            needed.append(tag.needed)
        elif tag.entry.d_tag == "DT_RPATH":
            run_paths.append(tag.rpath)
        elif tag.entry.d_tag == "DT_RUNPATH":
            run_paths.append(tag.runpath)
        elif tag.entry.d_tag == "DT_TEXTREL":
            text_relocations = True
    exported, undefined = _symbols(elf, table)
    return DynamicInfo(
        needed=tuple(needed),
        run_paths=tuple(run_paths),
        exported=exported,
        undefined=undefined,
        text_relocations=text_relocations,
        executable_stack=any(
            segment.header.p_type == "PT_GNU_STACK" and segment.header.p_flags & 1
            for segment in elf.iter_segments()
        ),
        machine=machine_of(elf),
    )


def machine_of(elf: Any) -> str:
    """Name the machine that an ELF file is for."""
    found = str(elf.header.e_machine)
    return next((one.machine for one in PLATFORMS.values() if one.elf_machine == found), found)


def _symbols(elf: Any, table: Any) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """Split the named global symbols into those it defines and those it asks for."""
    versions = _version_names(elf)
    indices = next((s for s in elf.iter_sections() if isinstance(s, GNUVerSymSection)), None)
    exported, undefined = [], []
    for number, entry in enumerate(table.iter_symbols()):
        bind = entry.entry.st_info.bind
        if not entry.name or bind == "STB_LOCAL":
            continue
        binding = "unique" if bind in _GNU_UNIQUE else bind.removeprefix("STB_").lower()
        if entry.entry.st_shndx != "SHN_UNDEF":
            exported.append(Symbol(entry.name, binding))
            continue
        index = indices.get_symbol(number).entry.ndx if indices is not None else None
        version = versions.get(index & 0x7FFF, "") if isinstance(index, int) else ""
        undefined.append(Symbol(entry.name, binding, version))
    return tuple(exported), tuple(undefined)


def _version_names(elf: Any) -> dict[int, str]:
    """Map the index that a symbol carries to the version that it asks for."""
    section = next((s for s in elf.iter_sections() if isinstance(s, GNUVerNeedSection)), None)
    if section is None:
        return {}
    return {one.entry.vna_other: one.name for _, group in section.iter_versions() for one in group}
