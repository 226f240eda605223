"""The benchmark's numbers: reduced, compared, written and read again."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from benchmarks import names, table
from benchmarks.results import Failure, Measurement, Report, from_json, summarize, to_json
from benchmarks.targets import MIXTURE_TARGETS, TARGETS, Target, judge
from hypothesis import given
from hypothesis import strategies as st

GROUP = names.QUANTIZE_SMALL


def measurement(contender: str, median: float, family="fp4aot", group=GROUP, unit="µs"):
    return Measurement(group, contender, family, unit, median, median * 0.9, median * 1.2, 100)


def report(*measurements: Measurement, failures=(), lowered=True) -> Report:
    return Report(
        date="2026-01-02 03:04 UTC",
        wheel={"version": "0.1.0+lowered", "lowered": lowered, "library_sha256": "0f" * 32},
        flashinfer={"flashinfer": "0.7.2"},
        machine={"device": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0"},
        settings={"rounds": 100},
        measurements=measurements,
        failures=tuple(failures),
    )


def quantize_report(ours: float, theirs: float, operator: float, one_kernel: float) -> Report:
    name = "fp4_quantize"
    return report(
        measurement(names.OURS.format(name), ours),
        measurement(names.THEIRS.format(name), theirs, "flashinfer"),
        measurement(names.THEIRS_OP.format(name), operator, "flashinfer"),
        measurement(names.ONE_KERNEL, one_kernel, "torch"),
    )


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=50))
def test_summary_has_the_quartiles(samples):
    found = summarize("g", "c", "torch", "µs", samples)
    assert found.median == pytest.approx(statistics.median(samples))
    order = [min(samples), found.q1, found.median, found.q3, max(samples)]
    # Quartiles of samples that are next to each other differ by rounding.
    assert all(low <= high * (1 + 1e-12) for low, high in itertools.pairwise(order))
    assert found.samples == len(samples)


def test_an_outlier_does_not_move_the_median():
    assert summarize("g", "c", "torch", "µs", [1.0, 2.0, 3.0, 4.0, 1000.0]).median == 3.0


def test_ratios_are_held_against_the_issue_s_limits():
    verdicts = judge(quantize_report(10, 25, 40, 6))[:3]
    assert [v.value for v in verdicts] == [0.4, 0.25, pytest.approx(10 / 6)]
    assert [v.target.limit for v in verdicts] == [0.42, 0.22, 1.7]
    assert [v.reached for v in verdicts] == [True, False, True]
    assert [v.word for v in verdicts] == ["reached", "NOT REACHED", "reached"]


def test_a_limit_itself_reaches_it():
    assert judge(quantize_report(42, 100, 200, 50))[0].reached is True


def test_what_was_not_measured_is_neither_reached_nor_hidden():
    verdicts = judge(report(measurement(names.OURS.format("fp4_quantize"), 10)))
    assert len(verdicts) == len(TARGETS)
    assert {v.reached for v in verdicts} == {None}
    text = table.render(report(measurement("x", 1.0)), verdicts)
    assert text.count("NOT MEASURED") == len(TARGETS)


def test_import_is_held_against_a_time_and_against_flashinfer():
    imports = report(
        measurement("import fp4aot", 31.0, group=names.IMPORT, unit="ms"),
        measurement("import flashinfer", 3700.0, "flashinfer", names.IMPORT, "ms"),
    )
    time, ratio = (v for v in judge(imports) if "import" in v.target.name)
    assert (time.value, time.unit, time.reached) == (31.0, "ms", False)
    assert ratio.value == pytest.approx(31 / 3700)
    assert ratio.reached is True


def test_every_limit_of_the_issue_is_among_the_targets():
    limits = [target.limit for target in TARGETS]
    for limit in (0.42, 0.22, 1.7, 0.3, 30.0, 0.02):
        assert limit in limits
    gemms = [target for target in TARGETS if target.limit == 0.3]
    assert len(gemms) == 2 * len(names.GEMM_SIZES)
    for target in gemms:
        assert target.ours[0] == target.beside[0], "ours and theirs are of one group"


def moe_report(ours: float, theirs: float, **wheel) -> Report:
    name, group = "cutlass_fused_moe", names.moe_group(16)
    found = report(
        measurement(names.OURS.format(name), ours, group=group),
        measurement(names.THEIRS.format(name), theirs, "flashinfer", group),
    )
    found.wheel.update(wheel)
    return found


def test_mixtures_are_judged_where_the_wheel_has_them():
    with_them = {v.target: v for v in judge(moe_report(20, 50, mixtures=True))}
    assert set(with_them) == {*TARGETS, *MIXTURE_TARGETS}
    eager = next(t for t in MIXTURE_TARGETS if "T=16" in t.name and "eager" in t.name)
    assert (with_them[eager].value, with_them[eager].reached) == (0.4, True)
    assert {with_them[other].reached for other in MIXTURE_TARGETS if other != eager} == {None}
    for without in ({}, {"mixtures": False}):
        assert len(judge(moe_report(20, 50, **without))) == len(TARGETS)


def test_mixtures_are_held_against_flashinfer_s_call_of_the_same_kind():
    assert {target.limit for target in MIXTURE_TARGETS} == {0.4}
    assert len(MIXTURE_TARGETS) == 2 * len(names.MOE_TOKENS)
    for target in MIXTURE_TARGETS:
        assert target.ours[0] == target.beside[0], "ours and theirs are of one group"
        assert ("workspace" in target.ours[1]) == ("workspace" in target.beside[1])


def test_units_are_not_mixed():
    mixed = report(measurement("a", 1.0), measurement("b", 1.0, unit="ms"))
    with pytest.raises(ValueError, match="cannot be divided"):
        judge(mixed, (Target("t", (GROUP, "a"), (GROUP, "b"), 1.0),))


def test_a_report_survives_its_file():
    failed = Failure(GROUP, "torch.compile(…)", "Unsupported: _thread.allocate_lock")
    original = report(measurement("a", 1.25), measurement("b", 2.5, "torch"), failures=[failed])
    verdicts = judge(original)
    data = json.loads(json.dumps(to_json(original, [v.to_json() for v in verdicts])))
    assert from_json(data) == original
    assert {"name", "value", "unit", "limit", "reached"} == set(data["targets"][0])
    assert data["wheel"]["library_sha256"] == "0f" * 32


def test_another_schema_is_refused():
    data = to_json(report(measurement("a", 1.0)), [])
    with pytest.raises(ValueError, match="schema 99"):
        from_json(data | {"schema": 99})


def test_the_table_shows_ratios_failures_and_what_a_lowered_wheel_is():
    failed = Failure(GROUP, "compiled FlashInfer", "Unsupported: _thread.allocate_lock\nmore")
    full = report(
        measurement("torch.add", 6.0, "torch"),
        measurement("fp4aot.fp4_quantize", 12.0),
        measurement("flashinfer.fp4_quantize", 30.0, "flashinfer"),
        failures=[failed],
    )
    text = table.render(full, judge(full))
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert lines["torch.add"].endswith("0.50")
    assert lines["flashinfer.fp4_quantize"].endswith("2.50")
    assert "compiled FlashInfer failed: Unsupported: _thread.allocate_lock" in text
    assert "more" not in text
    assert table.LOWERED in text
    normal = report(measurement("a", 1.0), lowered=False)
    assert table.LOWERED not in table.render(normal, judge(normal))


def test_the_table_says_what_flashinfer_runs_without():
    one = report(measurement("a", 1.0))
    assert "runs without" not in table.render(one, judge(one))
    one.flashinfer["absent_dependencies"] = ["nvidia-cutlass-dsl"]
    assert "runs without nvidia-cutlass-dsl" in table.render(one, judge(one))


@pytest.mark.parametrize(("value", "text"), [(1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234")])
def test_numbers_have_three_digits(value, text):
    assert table.number(value) == text
