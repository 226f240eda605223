"""Tables in files: read, checked field by field, compared with the wheel, written.

The format is documented in `fp4aot.tactics`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from fp4aot._tactics.entries import DEFAULT_TACTIC, OUT_DTYPES, Entry, MoeEntry
from fp4aot._tactics.errors import TacticsError, refuse
from fp4aot._tactics.table import FORMAT, READABLE_SCHEMAS, Section, Table, describe
from fp4aot._tactics.wheel import Wheel

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_LARGEST = 2**31 - 1
_MADE_BY = "write the table with python -m fp4aot tune, or correct the field"


def load_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    TacticsError
        When there is no such file, or it is not JSON.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise TacticsError(
            f"fp4aot.tactics: {path}: cannot be read ({error.strerror or error}); check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TacticsError(
            f"fp4aot.tactics: {path}: is not JSON ({error}); it may have been cut off or edited: "
            "write it again"
        ) from error


def read(path: str | os.PathLike[str], wheel: Wheel) -> tuple[Table, list[str]]:
    """Read a table and check that it fits a wheel.

    Returns
    -------
    table : Table
        What the file holds.
    warnings : list of str
        What is worth knowing and no reason to refuse it.

    Raises
    ------
    TacticsError
        Naming the file, the field, what came, what was expected and what to do.
    """
    where = Path(path)
    table = parse(load_json(where), str(where))
    return table, check(table, str(where), wheel)


def parse(data: Any, source: str) -> Table:
    """Turn the content of a file into a table, whatever wheel it is of.

    Parameters
    ----------
    data
        As JSON gives it.
    source
        How errors name the file.
    """
    fields = _Fields(data, source, "")
    kind = fields.text("format")
    if kind != FORMAT:
        fields.refuse("format", repr(kind), repr(FORMAT), "this is not a table of tactics")
    schema = fields.integer("schema", 0, _LARGEST)
    if schema not in READABLE_SCHEMAS:
        newer = "install the fp4aot that wrote it, or tune again with this one"
        fields.refuse("schema", str(schema), " or ".join(map(str, READABLE_SCHEMAS)), newer)
    return Table(tuple(_section(item) for item in fields.items("sections")))


def check(table: Table, source: str, wheel: Wheel) -> list[str]:
    """Refuse a table whose tactics are not those of a wheel; return warnings."""
    warnings = []
    for index, section in enumerate(table.sections):
        where = f"sections[{index}]"
        _check_wheel(section, source, where, wheel)
        _check_tactics(section, source, where, wheel)
        _check_moe_tactics(section, source, where, wheel)
        if wheel.driver and section.driver and wheel.driver != section.driver:
            warnings.append(
                f"{source}: {where}, {describe(section)}, was measured with driver "
                f"{section.driver} and this machine has {wheel.driver}; the tactics are valid, "
                "others may be faster now: tune again to know"
            )
    return warnings


def write(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a table to a temporary name and rename it, so that no reader sees half of it."""
    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_text(dumps(table), encoding="utf-8")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TacticsError(
            f"fp4aot.tactics: {path}: cannot be written ({error.strerror or error}); choose a file "
            "in a folder that exists and that you may write to"
        ) from error


def dumps(table: Table) -> str:
    """Write a table as JSON for people to read and compare: one line for each entry."""
    data = table.to_json()
    blocks = []
    for section in data.pop("sections"):
        lists = [
            _list(name, section.pop(name)) for name in ("entries", "moe_entries") if name in section
        ]
        head = json.dumps(section, indent=2).removesuffix("\n}")
        text = ",\n".join([head, *lists]) + "\n}"
        blocks.append("\n".join(f"    {line}" for line in text.splitlines()))
    head = json.dumps(data, indent=2).removesuffix("\n}")
    body = ",\n".join(blocks)
    return f'{head},\n  "sections": [\n{body}\n  ]\n}}\n'


def _list(name: str, entries: list[dict[str, Any]]) -> str:
    lines = ",\n".join(f"    {json.dumps(entry)}" for entry in entries)
    return f'  "{name}": [\n{lines}\n  ]'


def _section(fields: _Fields) -> Section:
    wheel = fields.child("wheel")
    return Section(
        device=fields.text("device"),
        capability=_capability(fields),
        plan_hash=wheel.text("plan_hash"),
        version=wheel.text("version"),
        flashinfer=wheel.text("flashinfer"),
        driver=fields.text("driver") if fields.has("driver") else None,
        cuda_runtime=fields.text("cuda_runtime"),
        written=_time(fields),
        origin=fields.text("origin"),
        entries=_entries(fields, "entries", _entry),
        moe_entries=(
            _entries(fields, "moe_entries", _moe_entry) if fields.has("moe_entries") else ()
        ),
    )


_AnyEntry = TypeVar("_AnyEntry", Entry, MoeEntry)


def _entries(
    fields: _Fields, name: str, parse_entry: Callable[[_Fields], _AnyEntry]
) -> tuple[_AnyEntry, ...]:
    entries: dict[tuple[Any, ...], _AnyEntry] = {}
    for item in fields.items(name):
        entry = parse_entry(item)
        if entry.key in entries:
            got = f"a second entry for {entry}"
            fields.refuse(item.where, got, "one for each", "remove all but one", here=False)
        entries[entry.key] = entry
    return tuple(entries.values())


def _entry(fields: _Fields) -> Entry:
    return Entry(
        n=_size(fields, "n"),
        k=_size(fields, "k"),
        out_dtype=_dtype(fields, "out_dtype"),
        m=fields.integer("m", 1, _LARGEST),
        tactic=fields.integer("tactic", DEFAULT_TACTIC, _LARGEST),
        measured_m=fields.integer("measured_m", 1, _LARGEST) if fields.has("measured_m") else None,
        microseconds=fields.duration("microseconds"),
        default_microseconds=fields.duration("default_microseconds"),
    )


def _moe_entry(fields: _Fields) -> MoeEntry:
    measured = fields.has("measured_tokens")
    return MoeEntry(
        hidden_size=_size(fields, "hidden_size"),
        intermediate_size=_size(fields, "intermediate_size"),
        experts=fields.integer("experts", 1, _LARGEST),
        top_k=fields.integer("top_k", 1, _LARGEST),
        output_dtype=_dtype(fields, "output_dtype"),
        quantized_input=fields.flag("quantized_input"),
        use_fused_finalize=fields.flag("use_fused_finalize"),
        tokens=fields.integer("tokens", 1, _LARGEST),
        gemm1_tactic=fields.integer("gemm1_tactic", DEFAULT_TACTIC, _LARGEST),
        gemm2_tactic=fields.integer("gemm2_tactic", DEFAULT_TACTIC, _LARGEST),
        gemm1_count=fields.integer("gemm1_count", 1, _LARGEST),
        gemm2_count=fields.integer("gemm2_count", 1, _LARGEST),
        measured_tokens=fields.integer("measured_tokens", 1, _LARGEST) if measured else None,
        microseconds=fields.duration("microseconds"),
        default_microseconds=fields.duration("default_microseconds"),
    )


def _dtype(fields: _Fields, name: str) -> str:
    dtype = fields.text(name)
    if dtype not in OUT_DTYPES:
        fields.refuse(name, repr(dtype), " or ".join(OUT_DTYPES), _MADE_BY)
    return dtype


def _size(fields: _Fields, name: str) -> int:
    value = fields.integer(name, 32, _LARGEST)
    if value % 32:
        fields.refuse(name, str(value), "a multiple of 32, as the kernels need it", _MADE_BY)
    return value


def parse_capability(text: str) -> tuple[int, int] | None:
    """Read a compute capability such as ``12.0``; None when it is something else."""
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    return (int(match[1]), int(match[2])) if match else None


def _capability(fields: _Fields) -> tuple[int, int]:
    text = fields.text("compute_capability")
    capability = parse_capability(text)
    if capability is None:
        fields.refuse("compute_capability", repr(text), "two numbers such as '12.0'", _MADE_BY)
    return capability


def _time(fields: _Fields) -> str:
    text = fields.text("written")
    try:
        return datetime.strptime(text, TIME_FORMAT).strftime(TIME_FORMAT)
    except ValueError:
        expected = "a time in UTC such as '2026-01-31T12:00:00Z'"
        fields.refuse("written", repr(text), expected, _MADE_BY)


def _check_wheel(section: Section, source: str, where: str, wheel: Wheel) -> None:
    if section.plan_hash != wheel.plan_hash:
        refuse(
            source,
            f"{where}.wheel.plan_hash",
            f"{section.plan_hash[:12]} (fp4aot {section.version}, FlashInfer {section.flashinfer})",
            f"{wheel.plan_hash[:12]} (this wheel: fp4aot {wheel.version}, FlashInfer "
            f"{wheel.flashinfer})",
            "tactic numbers are positions in the list of one build: tune again with this wheel "
            "(python -m fp4aot tune), or install the wheel that the table was made with",
        )


def _check_tactics(section: Section, source: str, where: str, wheel: Wheel) -> None:
    if not section.entries:
        return
    count = wheel.tactic_count(*section.capability)
    if count == 0:
        _refuse_capability(section, source, where, "an FP4 GEMM")
    for index, entry in enumerate(section.entries):
        if not DEFAULT_TACTIC <= entry.tactic < count:
            _refuse_tactic(
                source,
                f"{where}.entries[{index}].tactic",
                entry.tactic,
                count,
                "compute capability {}.{} has {} tactics in this wheel".format(
                    *section.capability, count
                ),
            )


def _check_moe_tactics(section: Section, source: str, where: str, wheel: Wheel) -> None:
    if not section.moe_entries:
        return
    if not wheel.has_moe(*section.capability):
        _refuse_capability(section, source, where, "a mixture of experts")
    for index, entry in enumerate(section.moe_entries):
        for product, tactic, count in (
            ("gemm1", entry.gemm1_tactic, entry.gemm1_count),
            ("gemm2", entry.gemm2_tactic, entry.gemm2_count),
        ):
            if not tactic < count:
                field = f"{where}.moe_entries[{index}].{product}_tactic"
                _refuse_tactic(source, field, tactic, count, f"{product}_count is {count}")


def _refuse_capability(section: Section, source: str, where: str, what: str) -> NoReturn:
    refuse(
        source,
        f"{where}.compute_capability",
        "{}.{}".format(*section.capability),
        f"one that this wheel has {what} for",
        "remove the section, or see python -m fp4aot doctor for what the wheel holds",
    )


def _refuse_tactic(source: str, field: str, tactic: int, count: int, why: str) -> NoReturn:
    refuse(
        source,
        field,
        str(tactic),
        f"{DEFAULT_TACTIC} to {count - 1} ({why})",
        "the table was edited or damaged: tune again",
    )


class _Fields:
    """The fields of one JSON object, each refused by name where it is not what it must be."""

    def __init__(self, data: Any, source: str, where: str) -> None:
        self.source = source
        self.where = where
        if not isinstance(data, dict):
            refuse(source, where or "(the file)", _kind(data), "an object", _MADE_BY)
        self._data: Mapping[str, Any] = data

    def refuse(
        self, name: str, got: str, expected: str, what_to_do: str, *, here: bool = True
    ) -> NoReturn:
        refuse(self.source, self._path(name) if here else name, got, expected, what_to_do)

    def has(self, name: str) -> bool:
        return self._data.get(name) is not None

    def text(self, name: str) -> str:
        value = self._value(name, str, "text")
        if not value.strip():
            self.refuse(name, repr(value), "text that is not empty", _MADE_BY)
        return cast(str, value)

    def integer(self, name: str, least: int, most: int) -> int:
        value = self._value(name, int, "a whole number")
        if not least <= value <= most:
            self.refuse(name, str(value), f"a whole number from {least} to {most}", _MADE_BY)
        return cast(int, value)

    def flag(self, name: str) -> bool:
        value = self._present(name, "true or false")
        if not isinstance(value, bool):
            self.refuse(name, _kind(value), "true or false", _MADE_BY)
        return value

    def duration(self, name: str) -> float | None:
        if not self.has(name):
            return None
        value = self._value(name, (int, float), "a number")
        if not 0 < value < 1e12:
            self.refuse(name, str(value), "microseconds above 0", _MADE_BY)
        return float(value)

    def child(self, name: str) -> _Fields:
        return _Fields(self._value(name, dict, "an object"), self.source, self._path(name))

    def items(self, name: str) -> list[_Fields]:
        return [
            _Fields(item, self.source, f"{self._path(name)}[{index}]")
            for index, item in enumerate(self._value(name, list, "a list"))
        ]

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _value(self, name: str, kind: type | tuple[type, ...], expected: str) -> Any:
        value = self._present(name, expected)
        # JSON's true and false are integers to Python.
        if not isinstance(value, kind) or isinstance(value, bool):
            self.refuse(name, _kind(value), expected, _MADE_BY)
        return value

    def _present(self, name: str, expected: str) -> Any:
        if name not in self._data:
            self.refuse(name, "nothing", expected, _MADE_BY)
        return self._data[name]


def _kind(value: Any) -> str:
    """Describe what came, shortly: the content of a wrong file can be long."""
    names = {dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value)) or repr(value)[:60]
