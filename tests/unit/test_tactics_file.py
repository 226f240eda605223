"""Files of tactics: what is written is read back, and what does not fit is refused by field."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tactics_table import (
    UNMEASURED,
    WHEEL,
    make_entry,
    make_imported,
    make_moe_entry,
    make_section,
    make_table,
)

import fp4aot.tactics
from fp4aot._gpus import driver_version
from fp4aot._tactics import file
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.table import Table

TABLE = Table(
    (
        make_section(make_entry(1, -1), make_entry(33), make_imported(65, 7)),
        make_section(
            replace(make_entry(), out_dtype="float16"),
            capability=(12, 1),
            device='a "GB10"\n',
            driver=None,
            moe_entries=(
                make_moe_entry(1, -1, 31),
                make_moe_entry(33, use_fused_finalize=False, **UNMEASURED),
            ),
        ),
    )
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


def refused(path: Path, content: str | dict[str, Any]) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TacticsError) as caught:
        file.read(path, WHEEL)
    assert str(path) in str(caught.value)
    return str(caught.value)


# What fits


@pytest.mark.parametrize(
    "table",
    [
        *(TABLE, Table(), make_table(), make_table(make_entry())),
        make_table(moe_entries=(make_moe_entry(),)),
    ],
)
def test_what_is_written_is_read(table: Table, path: Path) -> None:
    file.write(table, path)
    assert file.read(path, WHEEL) == (table, [])
    assert json.loads(path.read_text()) == table.to_json()


def test_an_entry_is_a_line(path: Path) -> None:
    file.write(TABLE, path)
    lines = path.read_text().splitlines()
    assert sum('"tactic":' in line for line in lines) == 4
    assert sum('{"n": 4096, "k": 2048' in line for line in lines) == 4
    assert sum('{"hidden_size": 6144' in line and "gemm2_count" in line for line in lines) == 2


def test_a_file_of_schema_1_is_read(path: Path) -> None:
    """What was written before there were mixtures of experts."""
    data = make_table(make_entry()).to_json() | {"schema": 1}
    assert "moe_entries" not in data["sections"][0]
    path.write_text(json.dumps(data))
    assert file.read(path, WHEEL) == (make_table(make_entry()), [])
    file.write(file.read(path, WHEEL)[0], path)
    assert json.loads(path.read_text())["schema"] == 2


def test_the_documented_file_is_one(path: Path) -> None:
    text = fp4aot.tactics.__doc__ or ""
    example = text[text.index("    {\n") : text.index("\n    }\n") + 7]
    table = file.parse(json.loads(example), "the example")
    assert table.sections[0].entries[0].tactic == 5
    assert table.sections[0].moe_entries[0].gemm2_tactic == 17
    assert json.loads(example) == table.to_json()


def test_fields_that_nobody_knows_are_ignored(path: Path) -> None:
    data = TABLE.to_json()
    data["comment"] = data["sections"][0]["comment"] = "ours"
    data["sections"][0]["entries"][0]["comment"] = "ours"
    path.write_text(json.dumps(data))
    assert file.read(path, WHEEL)[0] == TABLE


def test_another_driver_is_a_warning(path: Path) -> None:
    file.write(make_table(make_entry(), driver="570.1"), path)
    table, (warning,) = file.read(path, WHEEL)
    assert len(table) == 1
    for part in (
        str(path),
        "sections[0]",
        "NVIDIA B200 (10.0)",
        "570.1",
        "580.95.05",
        "tune again",
    ):
        assert part in warning


def test_an_unknown_driver_is_none(path: Path) -> None:
    file.write(make_table(make_entry(), driver=None), path)
    assert file.read(path, WHEEL)[1] == []
    file.write(make_table(make_entry(), driver="570.1"), path)
    assert file.read(path, replace(WHEEL, driver=None))[1] == []


# Whole files that are refused


def test_no_file(path: Path) -> None:
    with pytest.raises(TacticsError, match=r"cannot be read .*check the path"):
        file.read(path, WHEEL)
    with pytest.raises(TacticsError, match="cannot be read"):
        file.read(path.parent, WHEEL)


@pytest.mark.parametrize(
    "text", ["", "{", '{"format": "fp4aot mm_fp4 tactics", "schema": 1, "sections": [', "[" * 10000]
)
def test_no_json(text: str, path: Path) -> None:
    assert "is not JSON" in refused(path, text)


def test_no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TacticsError, match="is not JSON"):
        file.read(path, WHEEL)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"text"'])
def test_no_object(text: str, path: Path) -> None:
    assert "expected an object" in refused(path, text)


# Fields


def at(data: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        data = data[key]
    return data


SECTION = ("sections", 0)
ENTRY = (*SECTION, "entries", 1)
MOE = ("sections", 1, "moe_entries", 1)
MOE_FIELD = "sections[1].moe_entries[1]"


@pytest.mark.parametrize(
    ("keys", "value", "field", "expected"),
    [
        (("format",), "something else", "format", "'fp4aot mm_fp4 tactics'"),
        (("schema",), 3, "schema", "1 or 2"),
        (("schema",), 0, "schema", "1 or 2"),
        (("schema",), "1", "schema", "a whole number"),
        (("schema",), True, "schema", "a whole number"),
        (("sections",), {}, "sections", "a list"),
        (("sections", 0), [], "sections[0]", "an object"),
        ((*SECTION, "device"), 5, "sections[0].device", "text"),
        ((*SECTION, "device"), " ", "sections[0].device", "text that is not empty"),
        ((*SECTION, "compute_capability"), 10.0, "sections[0].compute_capability", "text"),
        ((*SECTION, "compute_capability"), "10", "sections[0].compute_capability", "'12.0'"),
        ((*SECTION, "compute_capability"), "10.0a", "sections[0].compute_capability", "'12.0'"),
        ((*SECTION, "compute_capability"), "9.0", "sections[0].compute_capability", "FP4 GEMM"),
        ((*SECTION, "wheel"), "0.1.0", "sections[0].wheel", "an object"),
        ((*SECTION, "wheel", "plan_hash"), None, "sections[0].wheel.plan_hash", "text"),
        ((*SECTION, "driver"), 580, "sections[0].driver", "text"),
        ((*SECTION, "written"), "yesterday", "sections[0].written", "a time in UTC"),
        ((*SECTION, "entries"), None, "sections[0].entries", "a list"),
        (ENTRY, 3, "sections[0].entries[1]", "an object"),
        ((*ENTRY, "n"), 4095, "sections[0].entries[1].n", "a multiple of 32"),
        ((*ENTRY, "k"), 0, "sections[0].entries[1].k", "from 32 to"),
        ((*ENTRY, "k"), 2**40, "sections[0].entries[1].k", "from 32 to"),
        ((*ENTRY, "m"), 0, "sections[0].entries[1].m", "from 1 to"),
        ((*ENTRY, "m"), 1.5, "sections[0].entries[1].m", "a whole number"),
        ((*ENTRY, "m"), "33", "sections[0].entries[1].m", "a whole number"),
        (
            (*ENTRY, "out_dtype"),
            "float32",
            "sections[0].entries[1].out_dtype",
            "bfloat16 or float16",
        ),
        ((*ENTRY, "tactic"), 32, "sections[0].entries[1].tactic", "-1 to 31"),
        ((*ENTRY, "tactic"), -2, "sections[0].entries[1].tactic", "from -1"),
        ((*ENTRY, "tactic"), None, "sections[0].entries[1].tactic", "a whole number"),
        ((*ENTRY, "tactic"), False, "sections[0].entries[1].tactic", "a whole number"),
        ((*ENTRY, "microseconds"), 0, "sections[0].entries[1].microseconds", "above 0"),
        ((*ENTRY, "microseconds"), float("nan"), "sections[0].entries[1].microseconds", "above 0"),
        ((*ENTRY, "microseconds"), "1", "sections[0].entries[1].microseconds", "a number"),
        ((*ENTRY, "measured_m"), -1, "sections[0].entries[1].measured_m", "from 1 to"),
        (MOE[:3], {}, "sections[1].moe_entries", "a list"),
        (MOE, 3, MOE_FIELD, "an object"),
        ((*MOE, "hidden_size"), 48, f"{MOE_FIELD}.hidden_size", "a multiple of 32"),
        ((*MOE, "intermediate_size"), 0, f"{MOE_FIELD}.intermediate_size", "from 32 to"),
        ((*MOE, "experts"), 0, f"{MOE_FIELD}.experts", "from 1 to"),
        ((*MOE, "top_k"), "8", f"{MOE_FIELD}.top_k", "a whole number"),
        ((*MOE, "output_dtype"), "float32", f"{MOE_FIELD}.output_dtype", "bfloat16 or float16"),
        ((*MOE, "quantized_input"), 1, f"{MOE_FIELD}.quantized_input", "true or false"),
        ((*MOE, "use_fused_finalize"), None, f"{MOE_FIELD}.use_fused_finalize", "true or false"),
        ((*MOE, "tokens"), 0, f"{MOE_FIELD}.tokens", "from 1 to"),
        ((*MOE, "gemm1_tactic"), 16, f"{MOE_FIELD}.gemm1_tactic", "-1 to 15"),
        ((*MOE, "gemm2_tactic"), 32, f"{MOE_FIELD}.gemm2_tactic", "-1 to 31"),
        ((*MOE, "gemm2_tactic"), -2, f"{MOE_FIELD}.gemm2_tactic", "from -1"),
        ((*MOE, "gemm1_count"), 0, f"{MOE_FIELD}.gemm1_count", "from 1 to"),
        ((*MOE, "measured_tokens"), 1.5, f"{MOE_FIELD}.measured_tokens", "a whole number"),
    ],
)
def test_a_field_is_refused_by_name(
    keys: tuple[Any, ...], value: Any, field: str, expected: str, path: Path
) -> None:
    data = TABLE.to_json()
    at(data, keys[:-1])[keys[-1]] = value
    message = refused(path, data)
    assert f"field '{field}': got " in message
    assert expected in message.partition(", expected ")[2].partition(";")[0]
    assert message.partition("; ")[2]


def required() -> list[tuple[Any, ...]]:
    """What no file can do without, of `TABLE`'s first section and last entry."""
    data = make_table(make_imported()).to_json()
    found: list[tuple[Any, ...]] = [(name,) for name in data]
    found += [(*SECTION, name) for name in data["sections"][0] if name != "driver"]
    found += [(*SECTION, "wheel", name) for name in data["sections"][0]["wheel"]]
    found += [(*SECTION, "entries", 0, name) for name in data["sections"][0]["entries"][0]]
    return found + [(*MOE, name) for name in make_moe_entry(**UNMEASURED).to_json()]


@pytest.mark.parametrize("keys", required(), ids=lambda keys: ".".join(map(str, keys)))
def test_a_missing_field_is_named(keys: tuple[Any, ...], path: Path) -> None:
    data = copy.deepcopy(TABLE.to_json())
    del at(data, keys[:-1])[keys[-1]]
    message = refused(path, data)
    assert f"{keys[-1]}': got nothing, expected " in message


def test_a_second_entry_for_the_same_is_refused(path: Path) -> None:
    data = make_table(make_entry(33, 5), make_entry(33, 6)).to_json()
    message = refused(path, data)
    assert (
        "'sections[0].entries[1]': got a second entry for N=4096, K=2048, bfloat16, M=33" in message
    )


def test_a_second_entry_for_the_same_mixture_is_refused(path: Path) -> None:
    data = make_table(moe_entries=(make_moe_entry(33, 5), make_moe_entry(33, 6))).to_json()
    message = refused(path, data)
    assert "'sections[0].moe_entries[1]': got a second entry for hidden_size=6144" in message
    assert "32 experts, top_k=8, bfloat16, quantized_input=False" in message


def test_a_wheel_without_one_of_the_two(path: Path) -> None:
    dense = replace(WHEEL, has_moe=lambda *_: False)
    moe = replace(WHEEL, tactic_count=lambda *_: 0)
    file.write(make_table(make_entry()), path)
    file.read(path, dense)
    with pytest.raises(TacticsError, match=r"compute_capability': got 10\.0.*an FP4 GEMM for"):
        file.read(path, moe)
    file.write(make_table(moe_entries=(make_moe_entry(),)), path)
    file.read(path, moe)
    with pytest.raises(TacticsError, match=r"compute_capability': got 10\.0.*mixture of experts"):
        file.read(path, dense)


def test_another_wheel(path: Path) -> None:
    data = make_table(make_entry(), plan_hash="cd" * 32, version="0.0.9").to_json()
    message = refused(path, data)
    assert (
        "'sections[0].wheel.plan_hash': got cdcdcdcdcdcd (fp4aot 0.0.9, FlashInfer 0.7.2)"
        in message
    )
    assert "expected abababababab (this wheel: fp4aot 0.1.0, FlashInfer 0.7.2)" in message
    assert "python -m fp4aot tune" in message


def test_every_section_must_fit(path: Path) -> None:
    sections = (make_section(make_entry()), make_section(make_entry(), plan_hash="cd" * 32))
    assert "sections[1].wheel.plan_hash" in refused(path, Table(sections).to_json())
    sections = (make_section(make_entry()), make_section(make_entry(tactic=11), capability=(12, 0)))
    message = refused(path, Table(sections).to_json())
    assert "sections[1].entries[0].tactic': got 11, expected -1 to 9" in message
    assert "compute capability 12.0 has 10 tactics" in message


@pytest.mark.parametrize(("tactic", "fits"), [(-1, True), (0, True), (31, True), (32, False)])
def test_the_range_of_tactics(tactic: int, fits: bool, path: Path) -> None:
    file.write(make_table(make_entry(tactic=tactic)), path)
    if fits:
        file.read(path, WHEEL)
    else:
        with pytest.raises(TacticsError):
            file.read(path, WHEEL)


# Writing


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(TABLE, path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(TacticsError, match=r"table\.json: cannot be written \(No space left"):
        file.write(Table(), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    write_text: Callable[..., int] = Path.write_text

    def watch(self: Path, *arguments: Any, **options: Any) -> int:
        seen.append((self, path.exists()))
        return write_text(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", watch)
    file.write(TABLE, path)
    ((temporary, was_there),) = seen
    assert temporary != path
    assert temporary.parent == path.parent
    assert not was_there
    assert list(path.parent.iterdir()) == [path]


def test_others_may_read_it(path: Path) -> None:
    old = os.umask(0o022)
    try:
        file.write(TABLE, path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(path)
    file.write(TABLE, link)
    assert link.is_symlink()
    assert file.read(path, WHEEL)[0] == TABLE


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TacticsError, match=r"cannot be written .*in a folder that exists"):
        file.write(TABLE, tmp_path / "nowhere" / "table.json")


# The driver


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
            "GCC version:  gcc version 12.3.0\n",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  590.44  Release\n", "590.44"),
        ("GCC version: 12.3.0\n", None),
        ("", None),
    ],
)
def test_the_drivers_version(text: str, version: str | None, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version


def test_no_driver(tmp_path: Path) -> None:
    assert driver_version(tmp_path / "version") is None
