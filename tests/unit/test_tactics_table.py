"""Tables of tactics as data: merging, and what the operator is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp4aot._tactics.entries import Choice, Entry, MoeChoice, MoeEntry
from fp4aot._tactics.table import Section, Table, merge, shared_capabilities
from fp4aot._tactics.wheel import Wheel

COUNTS = {(10, 0): 32, (12, 0): 10, (12, 1): 10}
WHEEL = Wheel(
    version="0.1.0",
    plan_hash="ab" * 32,
    flashinfer="0.7.2",
    cuda_runtime="13.0",
    driver="580.95.05",
    tactic_count=lambda major, minor: COUNTS.get((major, minor), 0),
    has_moe=lambda major, minor: (major, minor) in COUNTS,
)


def make_entry(m: int = 33, tactic: int = 5, **fields: object) -> Entry:
    measured = {"measured_m": 64, "microseconds": 11.2, "default_microseconds": 14.9}
    return Entry(4096, 2048, "bfloat16", m, tactic, **(measured | fields))


def make_imported(m: int = 33, tactic: int = 5) -> Entry:
    return Entry(4096, 2048, "bfloat16", m, tactic)


def make_moe_entry(tokens: int = 33, first: int = 5, second: int = 17, **fields: Any) -> MoeEntry:
    measured = {"measured_tokens": 64, "microseconds": 310.5, "default_microseconds": 402.1}
    shape = {"hidden_size": 6144, "intermediate_size": 2048, "experts": 32, "top_k": 8}
    flags = {"output_dtype": "bfloat16", "quantized_input": False, "use_fused_finalize": True}
    chosen = {"tokens": tokens, "gemm1_tactic": first, "gemm2_tactic": second}
    counts = {"gemm1_count": 16, "gemm2_count": 32}
    return MoeEntry(**(shape | flags | chosen | counts | measured | fields))


def make_section(*entries: Entry, **fields: object) -> Section:
    section = Section(
        device="NVIDIA B200",
        capability=(10, 0),
        plan_hash=WHEEL.plan_hash,
        version=WHEEL.version,
        flashinfer=WHEEL.flashinfer,
        driver=WHEEL.driver,
        cuda_runtime="13.0",
        written="2026-01-31T12:00:00Z",
        origin="tune",
        entries=entries,
    )
    return replace(section, **fields)


def make_table(*entries: Entry, **fields: object) -> Table:
    return Table((make_section(*entries, **fields),))


def look_up(choices: list[Choice], capability: tuple[int, int], dtype: str, m: int) -> int:
    """What the C++ operator does with one N and K: the largest start not above M."""
    found = [c for c in choices if (c.major, c.minor) == capability and c.out_dtype == dtype]
    if not found:
        return -1
    below = [c for c in found if c.m <= m]
    return max(below, key=lambda c: c.m).tactic if below else min(found, key=lambda c: c.m).tactic


OLD, NEW = "2026-01-31T12:00:00Z", "2026-02-01T08:00:00Z"


def test_different_buckets_are_kept() -> None:
    table = merge([make_table(make_entry(33, 5)), make_table(make_entry(1, 7))])
    assert [choice.m for choice in table.choices()] == [1, 33]
    assert len(table) == 2


@pytest.mark.parametrize("newer_first", [True, False])
def test_the_newer_measurement_wins_also_when_it_is_slower(newer_first: bool) -> None:
    old = make_table(make_entry(tactic=5, microseconds=1.0), written=OLD)
    new = make_table(make_entry(tactic=6, microseconds=9.0), written=NEW)
    table = merge([new, old] if newer_first else [old, new])
    assert [choice.tactic for choice in table.choices()] == [6]
    assert len(table.sections) == 1


@pytest.mark.parametrize("weaker_first", [True, False])
@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        (make_imported(tactic=3), make_entry(tactic=5)),
        (make_imported(tactic=-1), make_imported(tactic=3)),
        (make_imported(tactic=-1), make_entry(tactic=-1)),
    ],
)
def test_evidence_counts_more_than_age(weaker: Entry, stronger: Entry, weaker_first: bool) -> None:
    tables = [make_table(weaker, written=NEW), make_table(stronger, written=OLD)]
    merged = merge(tables if weaker_first else tables[::-1])
    assert merged.sections[0].entries == (stronger,)
    assert len(merged) == 1


def test_of_equally_old_ones_the_later_argument_wins() -> None:
    tables = [make_table(make_entry(tactic=tactic)) for tactic in (1, 2, 3)]
    assert merge(tables).choices()[0].tactic == 3
    assert merge(tables[::-1]).choices()[0].tactic == 1


def test_a_section_stays_the_record_of_one_run() -> None:
    old = make_table(make_entry(1, 1), make_entry(2, 2), written=OLD, driver="570.1")
    new = make_table(make_entry(2, 9), written=NEW)
    merged = merge([old, new])
    assert [section.driver for section in merged.sections] == ["570.1", WHEEL.driver]
    assert [[e.m for e in section.entries] for section in merged.sections] == [[1], [2]]


@pytest.mark.parametrize(
    "change",
    [
        {"capability": (12, 0)},
        {"entries": (Entry(32, 2048, "bfloat16", 33, 9),)},
        {"entries": (Entry(4096, 32, "bfloat16", 33, 9),)},
    ],
)
def test_another_capability_or_shape_is_another_key(change: dict[str, object]) -> None:
    other = Table((replace(make_section(make_entry()), **change),))
    assert len(merge([make_table(make_entry()), other])) == 2


def test_another_dtype_is_another_key() -> None:
    half = replace(make_entry(tactic=7), out_dtype="float16")
    choices = merge([make_table(make_entry()), make_table(half)]).choices()
    assert look_up(choices, (10, 0), "bfloat16", 40) == 5
    assert look_up(choices, (10, 0), "float16", 40) == 7
    assert look_up(choices, (12, 0), "float16", 40) == -1


def test_choices_settle_conflicts_within_a_table() -> None:
    table = Table(
        (
            make_section(make_entry(tactic=6), written=NEW),
            make_section(make_entry(tactic=5), written=OLD, device="NVIDIA GB200"),
        )
    )
    assert table.choices() == [Choice(10, 0, "bfloat16", 4096, 2048, 33, 6)]


def test_devices_of_one_capability_are_pointed_out() -> None:
    table = Table((make_section(make_entry()), make_section(make_entry(1), device="NVIDIA GB200")))
    (note,) = shared_capabilities(table)
    assert "compute capability 10.0 has sections of NVIDIA B200 and NVIDIA GB200" in note
    assert shared_capabilities(make_table(make_entry())) == []
    fleet = Table((make_section(make_entry()), make_section(make_entry(), capability=(12, 0))))
    assert shared_capabilities(fleet) == []


# Mixtures of experts

UNMEASURED = {"measured_tokens": None, "microseconds": None, "default_microseconds": None}


def test_mixtures_are_choices_of_their_own() -> None:
    entries = (
        make_moe_entry(33),
        make_moe_entry(1, -1, 31),
        make_moe_entry(33, 6, quantized_input=True),
    )
    table = make_table(make_entry(), moe_entries=entries)
    assert len(table) == 4
    assert len(table.choices()) == 1
    shape = (6144, 2048, 32, 8)
    assert table.moe_choices() == [
        MoeChoice(10, 0, "bfloat16", False, True, *shape, 1, -1, 31),
        MoeChoice(10, 0, "bfloat16", False, True, *shape, 33, 5, 17),
        MoeChoice(10, 0, "bfloat16", True, True, *shape, 33, 6, 17),
    ]


@pytest.mark.parametrize("weaker_first", [True, False])
@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        (make_moe_entry(33, 3, 3, **UNMEASURED), make_moe_entry(33, -1, -1)),
        (make_moe_entry(33, -1, -1, **UNMEASURED), make_moe_entry(33, -1, 3, **UNMEASURED)),
    ],
)
def test_evidence_counts_for_mixtures_too(
    weaker: MoeEntry, stronger: MoeEntry, weaker_first: bool
) -> None:
    found = [
        make_table(moe_entries=(weaker,), written=NEW),
        make_table(moe_entries=(stronger,), written=OLD),
    ]
    merged = merge(found if weaker_first else found[::-1])
    assert [section.moe_entries for section in merged.sections] == [(stronger,)]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 4096},
        {"intermediate_size": 4096},
        {"experts": 8},
        {"top_k": 4},
        {"output_dtype": "float16"},
        {"quantized_input": True},
        {"use_fused_finalize": False},
        {"tokens": 65},
    ],
)
def test_each_part_of_a_mixture_is_of_its_key(change: dict[str, Any]) -> None:
    one, other = make_moe_entry(), replace(make_moe_entry(), **change)
    assert len(merge([make_table(moe_entries=(one,)), make_table(moe_entries=(other,))])) == 2
    assert len(merge([make_table(moe_entries=(one,)), make_table(moe_entries=(one,))])) == 1


def test_a_section_keeps_what_it_has_of_either_operator() -> None:
    old = make_table(make_entry(1), moe_entries=(make_moe_entry(1),), written=OLD)
    new = make_table(moe_entries=(make_moe_entry(1, 9),), written=NEW)
    first, second = merge([old, new]).sections
    assert (first.entries, first.moe_entries) == (old.sections[0].entries, ())
    assert (second.entries, second.moe_entries) == ((), new.sections[0].moe_entries)


tables = st.lists(
    st.builds(
        lambda cells, written, device: make_table(
            *[
                make_entry(m, t) if known else make_imported(m, t)
                for m, (t, known) in cells.items()
            ],
            written=written,
            device=device,
        ),
        st.dictionaries(st.integers(1, 4), st.tuples(st.integers(-1, 9), st.booleans())),
        st.sampled_from([OLD, NEW]),
        st.sampled_from(["NVIDIA B200", "NVIDIA GB200"]),
    ),
    max_size=5,
)


@given(tables)
def test_merging_has_one_entry_for_each_key_and_loses_none(found: list[Table]) -> None:
    merged = merge(found)
    keys = [choice[:6] for choice in merged.choices()]
    assert len(keys) == len(set(keys)) == len(merged)
    assert {key[5] for key in keys} == {
        entry.m for table in found for section in table.sections for entry in section.entries
    }
    assert merge([merged]) == merged
    assert all(section.entries for section in merged.sections)


@given(tables, tables)
def test_merging_in_steps_is_merging_at_once(left: list[Table], right: list[Table]) -> None:
    assert merge([merge(left), merge(right)]).choices() == merge([*left, *right]).choices()
