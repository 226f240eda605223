"""Make one object of a module in which only its entry points are visible, under their own names.

The same C++ names recur between FlashInfer's modules, with bodies that differ, and so do the
exported names. Merged and localised, any number of modules can be linked into one library.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from aot.codegen.symbols import EXPORT_PREFIX, SCHEMA_PREFIX, entry_symbol, schema_symbol
from aot.errors import BuildError
from aot.host_compiler import NATIVE_BINUTILS, Binutils
from aot.link_selection import check_selection, read_symbols
from aot.process import run


def exported_functions(merged: Path) -> tuple[str, ...]:
    """List what a module exports to TVM-FFI, without the schema functions."""
    return tuple(
        sorted(
            name.removeprefix(EXPORT_PREFIX)
            for name in read_symbols(merged).defined
            if name.startswith(EXPORT_PREFIX) and not name.startswith(SCHEMA_PREFIX)
        )
    )


def check_exports(module: str, exported: Sequence[str], expected: Sequence[str]) -> None:
    """Compare a module's exports with the catalogue.

    Raises
    ------
    BuildError
        Naming what is missing from either side.
    """
    missing = sorted(set(expected) - set(exported))
    unknown = sorted(set(exported) - set(expected))
    if missing or unknown:
        parts = []
        if missing:
            parts.append(f"does not export {', '.join(missing)}, which the catalogue lists")
        if unknown:
            parts.append(f"exports {', '.join(unknown)}, which the catalogue does not list")
        raise BuildError(
            f"the module {module} {' and '.join(parts)}; FlashInfer has changed: update its row in "
            "aot/catalog.py, with an operator or a reason for having none"
        )


def link_module(
    module: str,
    objects: Sequence[Path],
    expected: Sequence[str],
    out: Path,
    *,
    selected: bool = False,
    replaced_symbols: Mapping[str, str] = MappingProxyType({}),
    binutils: Binutils = NATIVE_BINUTILS,
) -> None:
    """Merge the objects of a module, rename its entry points and hide everything else.

    Parameters
    ----------
    module
        Its name.
    objects
        The compiled translation units.
    expected
        The functions that it must export, no more and no fewer.
    out
        The object to write.
    selected
        Whether the units are a part of FlashInfer's: then none may be missing or unneeded.
    replaced_symbols
        Functions that the module calls, and what it calls instead, besides `getenv`.
    binutils
        Those of the machine that the objects are for; by default this machine's.

    Raises
    ------
    BuildError
        When a unit is missing or unneeded, when the exports differ, when a symbol would escape, or
        when binutils fail.
    """
    if selected:
        check_selection(module, objects)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        scratch = Path(name)
        merged, local = scratch / "merged.o", scratch / "local.o"
        run(
            [binutils.ld, "-r", "--force-group-allocation", "-o", merged, *objects],
            purpose=f"merge the objects of {module}",
            error=BuildError,
        )
        check_exports(module, exported_functions(merged), expected)
        renames = {f"{EXPORT_PREFIX}{f}": entry_symbol(module, f) for f in expected}
        renames |= {f"{SCHEMA_PREFIX}{f}": schema_symbol(module, f) for f in expected}
        rename_file, keep_file = scratch / "rename", scratch / "keep"
        # The operators take recipes as arguments: FlashInfer's look into the environment on every
        # call becomes a function that finds nothing.
        replaced = {"getenv": "fp4aot_no_environment", **replaced_symbols}
        lines = [f"{old} {new}" for old, new in {**renames, **replaced}.items()]
        rename_file.write_text("\n".join(lines) + "\n")
        keep_file.write_text("\n".join(renames.values()) + "\n")
        run(
            [
                binutils.objcopy,
                f"--redefine-syms={rename_file}",
                f"--keep-global-symbols={keep_file}",
                merged,
                local,
            ],
            purpose=f"hide the symbols of {module}",
            error=BuildError,
        )
        escaped = sorted(read_symbols(local).defined - set(renames.values()))
        if escaped:
            raise BuildError(
                f"symbols of {module} stay visible and would clash with other modules': "
                f"{', '.join(escaped[:5])}; compile with -fno-gnu-unique"
            )
        local.replace(out)
