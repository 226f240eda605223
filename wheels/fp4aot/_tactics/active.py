"""What the operator uses now. The operator cannot be asked, so the table is kept here as well."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fp4aot._tactics import file
from fp4aot._tactics.at_import import SHIPPED, VARIABLE
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import OUT_DTYPES, Choice, Table, merge, shared_capabilities
from fp4aot._tactics.wheel import Wheel

SetTable = Callable[[torch.Tensor], object]
"""`torch.ops.fp4aot._set_mm_fp4_tactics`: replaces the operator's whole table."""


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
    """Of this process: this module outlives a reload of `fp4aot`, as the operators do."""

    table: Table = field(default_factory=Table)
    import_done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_state = _State()


def load(
    source: str | os.PathLike[str] | Table, wheel: Wheel, set_table: SetTable, *, add: bool = False
) -> Summary:
    """Check a table and give it to the operator; nothing changes when it is refused.

    Parameters
    ----------
    source
        A file or a table.
    wheel
        What it must fit.
    set_table
        The operator's setter.
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
        set_table(rows(table.choices()))
        _state.table = table
    for note in notes:
        warnings.warn(f"fp4aot.tactics: {note}", stacklevel=3)
    return Summary(name, len(table), tuple(table.devices()), tuple(notes))


def clear(set_table: SetTable) -> None:
    """Take the table from the operator."""
    with _state.lock:
        set_table(rows([]))
        _state.table = Table()


def table() -> Table:
    """Return what is in force."""
    return _state.table


def rows(choices: list[Choice]) -> torch.Tensor:
    """Write choices as the operator takes them: int64 `[rows, 7]` on the CPU."""
    data = [
        (c.major, c.minor, OUT_DTYPES.index(c.out_dtype), c.n, c.k, c.m, c.tactic) for c in choices
    ]
    # The device is named: a default device that the user set must not be touched.
    return torch.tensor(data, dtype=torch.int64, device="cpu").reshape(-1, 7)


def load_at_import(
    wheel: Callable[[], Wheel],
    set_table: Callable[[], SetTable],
    package: Path,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Load what `FP4AOT_TACTICS` names, or the table in the package; once in a process.

    Parameters
    ----------
    wheel, set_table
        Asked for only where there is a table.
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
            load(named, wheel(), set_table())
        elif shipped.is_file():
            load(shipped, wheel(), set_table())
    except TacticsError as error:
        remedy = (
            f"the file is the one that {VARIABLE} names: name another, or unset the variable; "
            "without a table FlashInfer's default tactics are used"
            if named
            else "fp4aot is damaged: pip install --force-reinstall --no-deps fp4aot"
        )
        raise ImportError(f"{error}. {remedy}") from error
    _state.import_done = True
