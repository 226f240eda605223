"""What the operators use now. They cannot be asked, so the table is kept here as well."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fp4aot._tactics import file
from fp4aot._tactics.at_import import SHIPPED, VARIABLE
from fp4aot._tactics.entries import OUT_DTYPES, Choice, MoeChoice
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import Table, merge, shape_of, shared_capabilities
from fp4aot._tactics.wheel import Wheel

SetTables = Callable[[torch.Tensor, torch.Tensor], object]
"""Replaces the whole tables of `mm_fp4` and `cutlass_fused_moe`."""


@dataclass(frozen=True)
class Summary:
    """What a load did.

    Parameters
    ----------
    source
        The file, or ``"the given table"``.
    entries
        Entries in force now.
    devices
        The devices that they are for: ``NVIDIA B200 (10.0)``.
    warnings
        What is worth knowing.
    """

    source: str
    entries: int
    devices: tuple[str, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        devices = ", ".join(self.devices) or "no device"
        return f"{self.source}: {self.entries} entries in force, for {devices}"


@dataclass
class _State:
    """Of this process: this module outlives a reload of `fp4aot`, as the operators do.

    Attributes
    ----------
    table
        What the user loaded.
    tuned
        What FlashInfer's autotuner would choose, for shapes that the user's table does not have.
    """

    table: Table = field(default_factory=Table)
    tuned: Table = field(default_factory=Table)
    import_done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_state = _State()


def set_operators_tables(mm_fp4: torch.Tensor, cutlass_fused_moe: torch.Tensor) -> None:
    """Give the operators of this process their tables, which have been checked."""
    torch.ops.fp4aot._set_mm_fp4_tactics.default(mm_fp4)
    torch.ops.fp4aot._set_cutlass_fused_moe_tactics.default(cutlass_fused_moe)


def load(
    source: str | os.PathLike[str] | Table,
    wheel: Wheel,
    set_tables: SetTables,
    *,
    add: bool = False,
) -> Summary:
    """Check a table and give it to the operators; nothing changes when it is refused.

    Parameters
    ----------
    source
        A file or a table.
    wheel
        What it must fit.
    set_tables
        The operators' setter.
    add
        Merge with what is in force; replace it otherwise.
    """
    if isinstance(source, Table):
        name = "the given table"
        table = file.parse(source.to_json(), name)
        notes = file.check(table, name, wheel)
    else:
        name = str(Path(source))
        table, notes = file.read(source, wheel)
    with _state.lock:
        table = merge((_state.table, table) if add else (table,))
        notes += shared_capabilities(table)
        _put_in_force(table, _state.tuned, set_tables)
    for note in notes:
        warnings.warn(f"fp4aot.tactics: {note}", stacklevel=3)
    return Summary(name, len(table), tuple(table.devices()), tuple(notes))


def clear(set_tables: SetTables) -> None:
    """Take the table from the operators."""
    with _state.lock:
        _put_in_force(Table(), Table(), set_tables)


def set_tuned(tuned: Table, set_tables: SetTables) -> str:
    """Put in force what FlashInfer's autotuner would choose, beside what the user loaded.

    Returns
    -------
    str
        One line for a log; empty where nothing has changed.
    """
    with _state.lock:
        # Not the sections: each says when it was made.
        before = [(one.capability, one.all_entries) for one in _state.tuned.sections]
        if [(one.capability, one.all_entries) for one in tuned.sections] == before:
            return ""
        _put_in_force(_state.table, tuned, set_tables)
        own, found = _shapes(_state.table), _shapes(tuned)
        line = f"{len(tuned)} rows for {len(found)} shapes from FlashInfer's autotuner are in force"
        kept = len(found & own)
        return line + (f"; {kept} of them keep the rows of the loaded table" if kept else "")


def table() -> Table:
    """Return what is in force."""
    return _together(_state.table, _state.tuned)


def _put_in_force(loaded: Table, tuned: Table, set_tables: SetTables) -> None:
    both = _together(loaded, tuned)
    set_tables(rows(both.choices()), moe_rows(both.moe_choices()))
    _state.table, _state.tuned = loaded, tuned


def _together(loaded: Table, tuned: Table) -> Table:
    """Add to what was loaded the shapes that it does not have: rows of both would not fit."""
    own = _shapes(loaded)
    added = []
    for section in tuned.sections:
        entries = tuple(e for e in section.entries if shape_of(section, e) not in own)
        moe_entries = tuple(e for e in section.moe_entries if shape_of(section, e) not in own)
        if entries or moe_entries:
            added.append(replace(section, entries=entries, moe_entries=moe_entries))
    return Table((*loaded.sections, *added))


def _shapes(of: Table) -> set[tuple[Any, ...]]:
    return {shape_of(section, entry) for section in of.sections for entry in section.all_entries}


def rows(choices: list[Choice]) -> torch.Tensor:
    """Write choices as `mm_fp4` takes them: int64 `[rows, 7]` on the CPU."""
    return _tensor([c._replace(out_dtype=_number(c.out_dtype)) for c in choices], Choice)


def moe_rows(choices: list[MoeChoice]) -> torch.Tensor:
    """Write choices as `cutlass_fused_moe` takes them: int64 `[rows, 12]` on the CPU."""
    return _tensor([c._replace(output_dtype=_number(c.output_dtype)) for c in choices], MoeChoice)


def _number(dtype: str) -> Any:
    return OUT_DTYPES.index(dtype)


def _tensor(data: list[Any], kind: type[Choice] | type[MoeChoice]) -> torch.Tensor:
    # The device is named: a default device that the user set must not be touched.
    columns = len(kind._fields)
    return torch.tensor(data, dtype=torch.int64, device="cpu").reshape(-1, columns)


def load_at_import(
    wheel: Callable[[], Wheel],
    set_tables: SetTables,
    package: Path,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Load what `FP4AOT_TACTICS` names, or the table in the package; once in a process.

    Parameters
    ----------
    wheel, set_tables
        Asked for, and called, only where there is a table.
    package
        The folder that may hold `tactics.json`.
    environment
        Environment variables.

    Raises
    ------
    ImportError
        When the table cannot be used. To go on without it would be slower, without a word.
    """
    if _state.import_done:
        return
    named = environment.get(VARIABLE, "")
    shipped = package / SHIPPED
    try:
        if named:
            load(named, wheel(), set_tables)
        elif shipped.is_file():
            load(shipped, wheel(), set_tables)
    except TacticsError as error:
        remedy = (
            f"the file is the one that {VARIABLE} names: name another, or unset the variable; "
            "without a table FlashInfer's default tactics are used"
            if named
            else "fp4aot is damaged: pip install --force-reinstall --no-deps fp4aot"
        )
        raise ImportError(f"{error}. {remedy}") from error
    _state.import_done = True
