"""Whether a selected part of a FlashInfer module has all that it needs, and nothing else.

Read from the symbol tables of its objects: an entry point needs the objects that define what it
calls, these need others, and so on. What is never reached is unneeded, and a symbol of FlashInfer's
or CUTLASS's that no object defines is unresolved. Either means that FlashInfer's files and
`aot.catalog`'s selection have drifted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from aot.codegen.symbols import EXPORT_PREFIX
from aot.errors import BuildError

_SHOWN: Final = 3
# As they are written within a mangled C++ name, with their lengths.
_OF_FLASHINFER: Final = ("12tensorrt_llm", "10flashinfer", "7cutlass")


@dataclass(frozen=True)
class ObjectSymbols:
    """What one object defines for others, and what it takes from others."""

    defined: frozenset[str]
    undefined: frozenset[str]


def read_symbols(path: Path) -> ObjectSymbols:
    """Read the global symbols of an object."""
    defined: set[str] = set()
    undefined: set[str] = set()
    with path.open("rb") as stream:
        for section in ELFFile(stream).iter_sections():
            if not isinstance(section, SymbolTableSection):
                continue
            for symbol in section.iter_symbols():
                if symbol.entry.st_info.bind == "STB_LOCAL" or not symbol.name:
                    continue
                missing = symbol.entry.st_shndx == "SHN_UNDEF"
                (undefined if missing else defined).add(symbol.name)
    return ObjectSymbols(frozenset(defined), frozenset(undefined))


def check_selection(module: str, objects: Sequence[Path]) -> None:
    """Refuse a selection with a unit missing or one too many.

    Parameters
    ----------
    module
        Its name, for messages.
    objects
        Its compiled translation units, named after them.

    Raises
    ------
    BuildError
        Naming the units that nothing needs, or the symbols that are missing and the units that need
        them.
    """
    symbols = {path.stem: read_symbols(path) for path in objects}
    needed = _reached(symbols)
    unneeded = sorted(set(symbols) - needed)
    if unneeded:
        raise BuildError(
            f"{module}: nothing needs {', '.join(unneeded)}; FlashInfer has changed: take it out "
            "of the selection in aot/catalog.py"
        )
    unresolved = _unresolved(symbols)
    if unresolved:
        shown = [f"  {name}\n    in {', '.join(users)}" for name, users in unresolved[:_SHOWN]]
        more = len(unresolved) - len(shown)
        raise BuildError(
            f"{module}: no selected source defines\n"
            + "\n".join(shown)
            + (f"\n  and {more} more" if more else "")
            + "\nFlashInfer has changed: find which of its files does, and add it to the selection "
            "in aot/catalog.py"
        )


def _reached(symbols: Mapping[str, ObjectSymbols]) -> set[str]:
    definers: dict[str, set[str]] = {}
    for name, one in symbols.items():
        for symbol in one.defined:
            definers.setdefault(symbol, set()).add(name)
    waiting = [
        name
        for name, one in symbols.items()
        if any(symbol.startswith(EXPORT_PREFIX) for symbol in one.defined)
    ]
    reached = set(waiting)
    while waiting:
        for symbol in symbols[waiting.pop()].undefined:
            found = definers.get(symbol, set()) - reached
            reached |= found
            waiting += found
    return reached


def _unresolved(symbols: Mapping[str, ObjectSymbols]) -> list[tuple[str, list[str]]]:
    defined = frozenset().union(*(one.defined for one in symbols.values()))
    users: dict[str, list[str]] = {}
    for name, one in sorted(symbols.items()):
        for symbol in one.undefined - defined:
            if any(part in symbol for part in _OF_FLASHINFER):
                users.setdefault(symbol, []).append(name)
    return sorted(users.items())
