"""What compiler runs have cost: kept for later builds, and what the next build expects of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from compile_jobs import make_job
from hypothesis import given
from hypothesis import strategies as st

from aot.compile.job import Job
from aot.compile.record import JobRecord, Origin
from aot.costs import (
    Cost,
    Measured,
    UnitCost,
    add_costs,
    expect,
    read_costs,
    record_costs,
    unit_costs,
)

JOBS = tuple(make_job(f"m/{name}") for name in "abcd")
ESTIMATE = (700, 10)


def record(
    name: str,
    origin: Origin | None = "compiled",
    seconds: float | None = 10.0,
    peak: int | None = 7,
) -> JobRecord:
    start, end = (None, None) if seconds is None else (1.0, 1.0 + seconds)
    return JobRecord(f"m/{name}", origin, 0, start, end, *ESTIMATE, peak_megabytes=peak)


def kept(name: str) -> JobRecord:
    return record(name, "kept", None, None)


def write(
    path: Path,
    records: Iterable[JobRecord],
    jobs: Iterable[Job] = JOBS,
    known: dict[str, Measured] | None = None,
) -> dict[str, Measured]:
    known = read_costs(path) if known is None else known
    return record_costs(path, known, jobs, records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.json"


# Between builds


def test_what_was_compiled_is_known_afterwards(path: Path) -> None:
    records = [record("a"), record("b", seconds=138.04, peak=6600), record("c", peak=None)]
    result = write(path, [*records, kept("d")])
    assert result == read_costs(path)
    assert result == {
        JOBS[0].key: Measured("m/a", Cost(10.0, 7)),
        JOBS[1].key: Measured("m/b", Cost(138.0, 6600)),
        JOBS[2].key: Measured("m/c", Cost(10.0, None)),
    }


def test_only_what_was_compiled_is_recorded(path: Path) -> None:
    """A job from the cache takes a second, and one that failed no time worth knowing."""
    records = [
        record("a"),
        record("b", "cache"),
        record("c", None),
        record("d", "imported", None, None),
    ]
    assert set(write(path, records)) == {JOBS[0].key}
    before = path.read_text()
    write(path, [record(name, "cache") for name in "abcd"])
    assert path.read_text() == before


def test_a_build_that_compiled_nothing_leaves_no_file(path: Path) -> None:
    assert write(path, map(kept, "abcd")) == {}
    assert list(path.parent.iterdir()) == []


def test_the_latest_is_the_last(path: Path) -> None:
    write(path, map(record, "abcd"))
    # Measured again: it goes to the end, although its key is known.
    write(path, [record("a", seconds=20.0), *map(kept, "bcd")])
    assert [one.name for one in read_costs(path).values()] == ["m/b", "m/c", "m/d", "m/a"]
    assert read_costs(path)[JOBS[0].key].cost.seconds == 20.0


def test_other_builds_records_stay_and_can_be_recognized(path: Path) -> None:
    write(path, map(record, "abcd"))
    others = [dataclasses.replace(job, key=f"{number:064}") for number, job in enumerate(JOBS)]
    write(path, map(record, "abcd"), others)
    data = json.loads(path.read_text())
    assert len(data) == 8
    assert {entry["name"] for entry in data.values()} == {job.name for job in JOBS}


def test_records_of_other_jobs_are_an_error(path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        write(path, map(record, "abc"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "null", '{"x": 1}', '{"x": {"name": "m/a", "seconds": 1}}'),
        '{"x": {"unit": "m/a", "seconds": 1, "megabytes": 7}}',
        '{"x": {"name": "m/a", "seconds": "long", "megabytes": 7}}',
        '{"x": {"name": "m/a", "seconds": 1, "megabytes": "many"}}',
        '{"x": {"name": "m/a", "seconds": null, "megabytes": 7}}',
        "\0\0\0",
    ],
)
def test_a_damaged_file_counts_as_none_and_is_written_anew(path: Path, text: str) -> None:
    path.write_text(text)
    assert read_costs(path) == {}
    write(path, map(record, "abcd"))
    assert len(read_costs(path)) == 4


def test_bytes_that_are_no_text_count_as_none(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{}")
    assert read_costs(path) == {}


# What is expected


def test_without_a_measurement_the_estimate_counts() -> None:
    assert expect({}, "key", "m/a", ESTIMATE) == (700, 10)
    known = {"other": Measured("n/a", Cost(1.0, 1))}
    assert expect(known, "key", "m/a", ESTIMATE) == (700, 10)


def test_the_same_object_counts_first_then_the_latest_of_the_same_name() -> None:
    known = {
        "old": Measured("m/a", Cost(30.0, 3000)),
        "key": Measured("m/a", Cost(10.0, 1000)),
        "latest": Measured("m/a", Cost(20.0, 2000)),
        "other": Measured("m/b", Cost(90.0, 9000)),
    }
    assert expect(known, "key", "m/a", ESTIMATE) == (1100, 10.0)
    # Its source, a flag or a compiler has changed.
    assert expect(known, "new", "m/a", ESTIMATE) == (2200, 20.0)


def test_the_order_of_measuring_outlasts_the_file(path: Path) -> None:
    later = dataclasses.replace(JOBS[0], key="0" * 64)  # before the first one, in alphabetic order
    write(path, [record("a", seconds=1.0, peak=1000)], JOBS[:1])
    write(path, [record("a", seconds=2.0, peak=2000)], [later])
    assert expect(read_costs(path), "new", "m/a", ESTIMATE) == (2200, 2.0)


def test_where_no_peak_was_seen_the_estimate_of_memory_stays() -> None:
    known = {"key": Measured("m/a", Cost(3.5, None))}
    assert expect(known, "key", "m/a", ESTIMATE) == (700, 3.5)


@given(st.integers(0, 100_000), st.integers(1, 20_000))
def test_a_peak_gets_a_margin_and_never_nothing(peak: int, estimate: int) -> None:
    known = {"key": Measured("m/a", Cost(1.0, peak))}
    megabytes, _ = expect(known, "key", "m/a", (estimate, 10))
    assert megabytes >= 100
    assert megabytes >= peak * 1.1
    assert megabytes <= max(100, peak * 1.1 + 1)


# What units have cost


def test_each_unit_has_its_origin_and_its_cost() -> None:
    jobs = [*JOBS, make_job("operators/a", group="own")]
    records = [
        *(record("a"), record("b", "cache", 11.04), kept("c"), record("d", None, 3.0)),
        record("operators"),
    ]
    known = {
        JOBS[0].key: Measured("m/a", Cost(10.0, 6600)),
        JOBS[1].key: Measured("m/b", Cost(138.0, 6100)),
        jobs[-1].key: Measured("operators/a", Cost(5.0, 300)),
    }
    assert unit_costs(jobs, records, known) == (
        UnitCost("m", "a", "compiled", 10.0, Cost(10.0, 6600)),
        # Its object came from the cache: fetching it took 11 s.
        UnitCost("m", "b", "cache", 11.0, Cost(138.0, 6100)),
        UnitCost("m", "c", "kept", 0.0, None),
        UnitCost("m", "d", None, 3.0, None),
    )


def test_a_later_build_from_the_cache_knows_what_its_units_cost(path: Path) -> None:
    first = unit_costs(JOBS, [*map(record, "abcd")], write(path, map(record, "abcd")))
    later = [record(name, "cache", 1.0, None) for name in "abcd"]
    again = unit_costs(JOBS, later, write(path, later))
    assert {one.origin for one in again} == {"cache"}
    assert [one.cost for one in again] == [one.cost for one in first]
    assert None not in [one.cost for one in again]


def test_what_is_lowered_is_measured_apart(path: Path) -> None:
    """The same unit with an assembler that does other work has another key."""
    lowered = dataclasses.replace(JOBS[0], key="f" * 64)
    write(path, [record("a", seconds=10.0)], JOBS[:1])
    known = write(path, [record("a", seconds=90.0)], [lowered])
    for job, seconds in ((JOBS[0], 10.0), (lowered, 90.0)):
        (found,) = unit_costs([job], [kept("a")], known)
        assert found.cost == Cost(seconds, 7)


def test_what_another_machine_has_measured_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    here = {"a": Measured("m/a", Cost(10.0, 100))}
    add_costs(path, here)
    assert read_costs(path) == here
    there = {"a": Measured("m/a", Cost(99.0, 999)), "b": Measured("m/a", Cost(5.0, None))}
    add_costs(path, there)
    found = read_costs(path)
    assert found == {"a": here["a"], "b": there["b"]}
    # The latest of a name, for a key that nobody knows, is the one of this machine.
    assert expect(found, "unknown", "m/a", (700, 10))[1] == 10.0
