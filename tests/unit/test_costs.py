"""What units have cost: from ninja's log and the compilers' memory, and kept for later builds."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from aot import costs
from aot.costs import Cost, UnitCost, ninja_seconds, read_costs, record_costs, unit_key
from aot.plan import BuildPlan, ModulePlan, Unit, Versions

UNITS = tuple(
    Unit(name, f"@FLASHINFER@/{name}.cu", "cuda", ("-O3",), "0" * 64, 700, 10) for name in "abcd"
)
PLAN = BuildPlan(
    preset="test",
    versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
    modules=(ModulePlan("m", "family", ("12.0f",), ("12.0f",), UNITS, ()),),
    tvm_ffi_sources=(),
    added_host_flags=(),
)
SECONDS = {f"units/m/{name}.o": 10.0 + index for index, name in enumerate("abcd")}


def key(index: int) -> str:
    return unit_key(UNITS[index], "13.0.88")


# Keys


@pytest.mark.parametrize(
    "change", [{"source": "@X@/a.cu"}, {"sha256": "1" * 64}, {"flags": ("-O2",)}]
)
def test_what_is_compiled_changes_the_key(change: dict[str, object]) -> None:
    assert unit_key(dataclasses.replace(UNITS[0], **change), "13.0.88") != key(0)
    assert unit_key(UNITS[0], "13.0.89") != key(0)


def test_estimates_do_not_change_the_key() -> None:
    other = dataclasses.replace(UNITS[0], memory_megabytes=1, seconds=1, name="x")
    assert unit_key(other, "13.0.88") == key(0)


def test_what_is_lowered_is_measured_apart(tmp_path: Path) -> None:
    """The compiler has the same version, and its assembler does other work."""
    path = tmp_path / "costs.json"
    lowered = dataclasses.replace(PLAN, lowering="0123456789abcdef")
    record_costs(path, PLAN, [UnitCost("m", "a", "compiled", 10.0, Cost(10.0, 700))])
    record_costs(path, lowered, [UnitCost("m", "a", "compiled", 90.0, Cost(90.0, 6600))])
    known = read_costs(path)
    assert len(known) == 2
    assert [known_cost(plan, known) for plan in (PLAN, lowered)] == [
        Cost(10.0, 700),
        Cost(90.0, 6600),
    ]


def known_cost(plan: BuildPlan, known: dict[str, Cost]) -> Cost | None:
    """What a build that takes everything from the cache says of unit `a`."""
    found = costs.unit_costs(plan, steps={"m/a"}, seconds={}, peaks={}, compiled=set(), known=known)
    return next(one.cost for one in found if one.unit == "a")


# One build


def build(
    *,
    steps: str = "abcd",
    compiled: str | None = "abcd",
    peaks: dict[str, int] | None = None,
    known: dict[str, Cost] | None = None,
    seconds: dict[str, float] | None = None,
) -> dict[str, UnitCost]:
    found = costs.unit_costs(
        PLAN,
        steps={f"m/{name}" for name in steps},
        seconds=SECONDS if seconds is None else seconds,
        peaks={f"m/{name}": value for name, value in (peaks or {}).items()},
        compiled=None if compiled is None else {f"m/{name}" for name in compiled},
        known=known or {},
    )
    return {one.unit: one for one in found}


def test_each_unit_has_its_origin_and_its_cost() -> None:
    earlier = {key(1): Cost(138.0, 6100), key(2): Cost(99.0, None)}
    found = build(steps="abd", compiled="a", peaks={"a": 6600, "b": 50}, known=earlier)
    assert found == {
        "a": UnitCost("m", "a", "compiled", 10.0, Cost(10.0, 6600)),
        # Its object came from the cache: fetching it took 11 s.
        "b": UnitCost("m", "b", "cache", 11.0, Cost(138.0, 6100)),
        "c": UnitCost("m", "c", "kept", 0.0, Cost(99.0, None)),
        "d": UnitCost("m", "d", "cache", 13.0, None),
    }


def test_without_a_cache_whatever_was_made_was_compiled() -> None:
    found = build(steps="ab", compiled=None)
    assert {name: one.origin for name, one in found.items()} == {
        **dict.fromkeys("ab", "compiled"),
        **dict.fromkeys("cd", "kept"),
    }
    assert found["a"].cost == Cost(10.0, None)


def test_a_unit_that_failed_has_no_cost() -> None:
    assert build(seconds={}, peaks={"a": 100})["a"].cost is None


# Between builds


def test_a_later_build_from_the_cache_knows_what_its_units_cost(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    first = build(peaks=dict.fromkeys("abcd", 700))
    record_costs(path, PLAN, first.values())
    later = build(compiled="", seconds=dict.fromkeys(SECONDS, 1.0), known=read_costs(path))
    assert {one.origin for one in later.values()} == {"cache"}
    assert [one.cost for one in later.values()] == [one.cost for one in first.values()]


def test_only_what_was_compiled_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    record_costs(path, PLAN, build(compiled="a", peaks={"a": 1}, steps="ab").values())
    assert set(read_costs(path)) == {key(0)}
    # A build from the cache takes a second and leaves the record as it is.
    before = path.read_text()
    record_costs(path, PLAN, build(compiled="").values())
    assert path.read_text() == before


def test_other_builds_records_stay_and_units_can_be_recognized(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    record_costs(path, PLAN, build(compiled="a").values())
    other = dataclasses.replace(
        PLAN, versions=dataclasses.replace(PLAN.versions, cuda_compiler="13.1.80")
    )
    record_costs(path, other, build(compiled="a").values())
    data = json.loads(path.read_text())
    assert len(data) == 2
    assert {entry["unit"] for entry in data.values()} == {"m/a"}


def test_a_build_that_compiled_nothing_leaves_no_file(tmp_path: Path) -> None:
    record_costs(tmp_path / "costs.json", PLAN, build(compiled="").values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', '{"x": {"seconds": 1}}', "null"])
def test_a_damaged_record_counts_as_none_and_is_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    assert read_costs(path) == {}
    record_costs(path, PLAN, build(compiled="a").values())
    assert read_costs(path) == {key(0): Cost(10.0, None)}


# Ninja's log


def test_the_last_time_of_an_output_counts(tmp_path: Path) -> None:
    log = tmp_path / ".ninja_log"
    log.write_text(
        "# ninja log v7\n18\t207\t179\tunits/m/a.o\t26882c\n208\t255\t179\tunits/m/b.o\t53f4\n"
        "5\t138005\t180\tunits/m/a.o\t26882c\ngarbage\nx\ty\tz\tunits/m/c.o\t1\n"
    )
    assert ninja_seconds(log) == {"units/m/a.o": 138.0, "units/m/b.o": 0.047}


def test_no_log_is_no_time(tmp_path: Path) -> None:
    assert ninja_seconds(tmp_path / "absent") == {}


def test_a_real_ninjas_log_is_read(tmp_path: Path) -> None:
    ninja = shutil.which("ninja")
    if ninja is None:
        pytest.skip("NOT TESTED: ninja's own log, because this machine has no ninja")
    (tmp_path / "build.ninja").write_text(
        "rule slow\n  command = sleep 0.2 && touch $out\nbuild units/m/a.o: slow\n"
    )
    subprocess.run([ninja, "-C", tmp_path], check=True, capture_output=True)
    assert 0.2 <= ninja_seconds(tmp_path / ".ninja_log")["units/m/a.o"] < 60
