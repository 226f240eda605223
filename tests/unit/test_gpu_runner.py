"""The runner of the GPU tests: what it makes of records, and when it says that all is well."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))

from gpusuite import records, report  # noqa: E402

spec = importlib.util.spec_from_file_location("gpu_run", GPU / "run.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


def environment(*, lowered=True, capability=(9, 0)):
    return {
        "event": "environment",
        "date": "2026-01-01T00:00:00+00:00",
        "wheel": {
            "version": "0.1.0",
            "preset": "lowered" if lowered else "dense",
            "lowered": lowered,
            "plan_hash": "a" * 64,
            "library_sha256": "b" * 64,
        },
        "python": "3.12.3",
        "torch": "2.11.0",
        "torch_cuda": "13.0",
        "driver": "580.1",
        "driver_cuda": "13.0",
        "devices": [{"index": 0, "name": "NVIDIA X", "capability": list(capability)}],
    }


def record_of(name="a", subject="mm_fp4", outcome="passed", reason="", details=None):
    fields = {"name": name, "subject": subject, "outcome": outcome, "seconds": 1.5}
    return {"event": "test", **fields, "reason": reason, "details": details or {}}


def read(*lines, status=0):
    lines = [environment(), *lines]
    if status is not None:
        lines.append({"event": "finish", "status": status})
    return report.read(json.dumps(line) for line in lines)


SKIPPED = record_of("b", "two GPUs", "did not run", "needs two GPUs")


@pytest.mark.parametrize(
    ("lines", "status", "allowed", "expected"),
    [
        ([record_of()], 0, False, 0),
        ([record_of(), SKIPPED], 0, False, 3),
        ([record_of(), SKIPPED], 0, True, 0),
        ([record_of("c", outcome="not applicable"), record_of()], 0, False, 0),
        ([record_of(), record_of("c", outcome="failed"), SKIPPED], 1, True, 1),
        # pytest was interrupted, broke, or found no test.
        ([record_of()], 2, True, 1),
        ([], 5, True, 1),
        ([record_of()], None, True, 1),
        # Nothing but what makes no sense here is no test of anything.
        ([record_of(outcome="not applicable")], 0, True, 1),
        # No GPU at all: allowed only where it was said to be.
        ([SKIPPED], 0, False, 3),
        ([SKIPPED], 0, True, 0),
    ],
)
def test_exit_status(lines, status, allowed, expected):
    assert read(*lines, status=status).exit_status(allowed) == expected


def test_a_crash_fails_the_test_in_which_it_happened():
    start = {"event": "start", "name": "b", "subject": "mm_fp4"}
    result = read({"event": "start", "name": "a", "subject": "x"}, record_of(), start, status=None)
    assert result.crashed == "b"
    assert [(test.name, test.outcome) for test in result.tests] == [
        ("a", "passed"),
        ("b", "failed"),
    ]
    assert "CRASHED: b" in report.render(result)


def test_a_run_that_ended_early_says_so():
    """Interrupted, for example: what ran until then is reported all the same."""
    result = read(record_of(), status=2)
    assert "CRASHED: pytest ended early, with status 2" in report.render(result)
    assert report.rows(result)[0].passed == 1


def test_a_line_that_was_cut_off_is_left_out():
    lines = [json.dumps(environment()), json.dumps(record_of()), '{"event": "te']
    result = report.read(lines)
    assert len(result.tests) == 1
    assert result.exit_status() == 1


def test_a_process_that_wrote_nothing_is_a_failure():
    result = report.read([])
    assert result.exit_status(allow_missing=True) == 1
    assert "wrote nothing" in report.render(result)


def test_rows_sum_up_what_was_compared():
    first = records.Details()
    first.compared("codes", 1_000_000, 3)
    first.error("norm", 1e-3)
    second = records.Details()
    second.compared("codes", 500)
    second.error("norm", 2e-3)
    result = read(
        record_of(details=first.to_json()),
        record_of("b", details=second.to_json()),
        record_of("c", outcome="failed", reason="assert 1 == 2"),
        record_of("d", "two GPUs", "did not run", "needs two GPUs"),
    )
    row, gap = report.rows(result)
    assert (row.subject, row.run, row.passed, row.failed) == ("mm_fp4", 3, 2, 1)
    assert row.compared == ("codes: 1,000,500, 3 differ", "norm: largest error 0.002")
    assert (gap.run, gap.did_not_run) == (0, 1)
    text = report.render(result)
    assert "codes: 1,000,500, 3 differ" in text
    assert "needs two GPUs (d)" in text
    assert "FAILED c\n  assert 1 == 2" in text


def test_every_output_of_a_lowered_wheel_says_so():
    result = read(record_of())
    assert report.render(result).splitlines()[0] == report.LOWERED
    assert report.render(result).splitlines()[-1] == report.LOWERED
    assert report.to_json(result)["label"] == report.LOWERED
    normal = report.read([json.dumps(environment(lowered=False, capability=(12, 0)))])
    assert report.LOWERED not in report.render(normal)
    assert report.to_json(normal)["label"] == ""


@pytest.mark.parametrize(
    ("lowered", "capability", "expected"),
    [
        (True, (9, 0), ("10.0, 10.3, 11.0", "agreement with Blackwell silicon", "speed")),
        (False, (9, 0), ("10.0, 10.3, 11.0", "agreement with Blackwell silicon", "speed")),
        (False, (12, 0), ("10.0, 10.3, 11.0", "speed")),
        (False, (10, 0), ("10.3, 11.0", "speed")),
    ],
)
def test_what_cannot_be_shown(lowered, capability, expected):
    result = report.read([json.dumps(environment(lowered=lowered, capability=capability))])
    found = report.cannot_be_shown(result)
    assert len(found) == len(expected)
    for text, fragment in zip(found, expected, strict=True):
        assert fragment in text
    assert report.to_json(result)["cannot_be_shown_here"] == found


def test_reasons_are_listed_once_with_their_tests():
    missing = [record_of(str(n), "x", "did not run", "no Y") for n in range(3)]
    data = report.to_json(read(*missing))
    assert data["did_not_run"] == [{"reason": "no Y", "tests": ["0", "1", "2"]}]
    assert data["not_applicable"] == []
    assert data["exit_status"] == 3


def test_a_skip_without_a_kind_counts_as_missing():
    assert records.outcome_of_skip("DID NOT RUN: no Y") == ("did not run", "no Y")
    assert records.outcome_of_skip("not applicable: it is X") == ("not applicable", "it is X")
    assert records.outcome_of_skip("could not import Z") == ("did not run", "could not import Z")


def test_a_test_goes_on_after_a_case_and_fails_at_its_end():
    details = records.Details()
    for number in range(4):
        with details.case(f"case {number}"):
            assert number % 2, "even"
    with pytest.raises(AssertionError, match="2 of 4 cases failed\ncase 0: even"):
        details.raise_failures()


def test_a_broken_device_ends_a_test_at_once():
    details = records.Details()
    with pytest.raises(AssertionError, match="1 of 1 cases failed"), details.case("first"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_records_are_complete_while_the_process_lives(tmp_path):
    writer = records.Writer(tmp_path / "records")
    writer.write("start", name="a")
    assert json.loads((tmp_path / "records").read_text()) == {"event": "start", "name": "a"}
    writer.close()


def test_a_path_among_the_arguments_selects_tests(tmp_path):
    everything = runner.command(["-x", "-k", "alpha"], tmp_path / "r")
    assert everything[-1] == str(GPU)
    one = runner.command([f"{GPU / 'test_mm_fp4.py'}::test_alpha"], tmp_path / "r")
    assert str(GPU) not in one


def run(*arguments, **environ):
    return subprocess.run(
        [sys.executable, str(GPU / "run.py"), *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_source_tree_is_refused():
    done = run(PYTHONPATH=str(GPU.parents[1] / "wheels"))
    assert done.returncode == 2
    assert "is the source tree" in done.stderr


def test_without_a_wheel_nothing_is_tested():
    # Without site-packages: this environment may have one.
    command = [sys.executable, "-S", str(GPU / "run.py")]
    environ = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "fp4aot is not installed" in done.stderr
