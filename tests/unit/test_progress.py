"""Progress: ninja's lines, and when it will be over."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from aot import progress
from aot.progress import NINJA_STATUS, Estimate, Finished, clock, follow, parse_line


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def shown(lines: list[str], estimate: Estimate, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    follow(lines, estimate, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


# Lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[aot 3/40] compile kv/dequant\n", Finished(3, 40, "compile kv/dequant")),
        # pip indents what a build backend prints.
        ("  [aot 40/40] link libfp4aot.so\n", Finished(40, 40, "link libfp4aot.so")),
        (
            "[aot 0/2] Re-checking globbed directories...",
            Finished(0, 2, "Re-checking globbed directories..."),
        ),
        ("[3/40] compile kv/dequant", None),
        ("warning: see [aot 3/40] compile", None),
        ("", None),
    ],
)
def test_lines(line: str, expected: Finished | None) -> None:
    assert parse_line(line) == expected


def test_lines_of_a_real_ninja(tmp_path: Path) -> None:
    ninja = shutil.which("ninja")
    if ninja is None:
        pytest.skip("NOT TESTED: ninja's own lines, because this machine has no ninja")
    (tmp_path / "build.ninja").write_text(
        "rule touch\n  command = touch $out\n  description = compile m/$out\n"
        "build a: touch\nbuild b: touch a\n"
    )
    done = subprocess.run(
        [ninja, "-C", tmp_path],
        env={"NINJA_STATUS": NINJA_STATUS, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    steps = [step for step in map(parse_line, done.stdout.splitlines()) if step]
    assert steps == [Finished(1, 2, "compile m/a"), Finished(2, 2, "compile m/b")]


# The estimate


def test_at_first_the_catalogue_is_all_there_is(time: Clock) -> None:
    estimate = Estimate({"m/a": 100, "m/b": 60, "m/c": 40}, jobs=2)
    assert estimate.seconds_left() == 100
    time.now += 30
    assert estimate.seconds_left() == 70
    # Later than expected: soon, but never over while something is left.
    time.now += 1000
    assert estimate.seconds_left() == 1


def test_then_this_machines_speed_counts(time: Clock) -> None:
    estimate = Estimate({"m/a": 100, "m/b": 60, "m/c": 40}, jobs=2)
    time.now += 200
    estimate.finish("compile m/a")
    # Half of the work took 200 s.
    assert estimate.seconds_left() == 200
    estimate.finish("compile m/b")
    time.now += 40
    assert estimate.seconds_left() == pytest.approx(60)
    estimate.finish("compile m/c")
    assert estimate.seconds_left() == 0


def test_less_than_half_does_not_tell_the_speed(time: Clock) -> None:
    estimate = Estimate({"m/a": 10, "m/b": 90}, jobs=2)
    time.now += 20
    estimate.finish("compile m/a")
    assert estimate.seconds_left() == 70


def test_other_steps_do_not_count(time: Clock) -> None:
    estimate = Estimate({"m/a": 100}, jobs=1)
    estimate.finish("link libfp4aot.so")
    estimate.finish("compile operators/quantization")
    assert estimate.seconds_left() == 100
    estimate.finish("compile m/a")
    estimate.finish("compile m/a")
    assert estimate.seconds_left() == 0


# What is shown


def test_a_log_gets_a_line_a_step_and_nothing_of_the_compilers(time: Clock) -> None:
    lines = [
        "*** Building project with Ninja...\n",
        "  [aot 1/3] compile m/[a]\n",
        "a.cu(3): warning: [red]unused[/red]\n",
        "  [aot 2/3] compile m/b\n",
        "  [aot 3/3] link libfp4aot.so\n",
    ]
    estimate = Estimate({"m/[a]": 100, "m/b": 100}, jobs=1)
    time.now += 65
    assert shown(lines, estimate).splitlines() == [
        "[1/3] compile m/[a] (about 1:05 left)",
        "[2/3] compile m/b (about 0:00 left)",
        "[3/3] link libfp4aot.so (about 0:00 left)",
    ]


def test_a_terminal_gets_a_bar(time: Clock) -> None:
    text = shown(["[aot 2/3] compile m/b\n"], Estimate({"m/b": 1}, jobs=1), terminal=True)
    assert "compile m/b" in text
    assert "2/3" in text


def test_after_a_resumed_build_nothing_is_left(time: Clock) -> None:
    estimate = Estimate({"m/a": 115, "m/b": 10}, jobs=1)
    time.now += 10
    # Ninja finds m/a finished, and has one step to do.
    assert shown(["[aot 1/1] compile m/b\n"], estimate) == "[1/1] compile m/b (about 0:00 left)\n"


# The audit


def read(count: int, *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    with progress.reading(console) as show:
        for done in range(1, count + 1):
            show(done, count, "fp4_gemm")
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_log_is_told_ten_times_how_far_the_audit_is() -> None:
    lines = read(58, terminal=False).splitlines()
    assert len(lines) == 10
    assert lines[0] == "machine code: 6 of 58 images read"
    assert lines[-1] == "machine code: 58 of 58 images read"
    assert read(1, terminal=False).splitlines() == ["machine code: 1 of 1 images read"]


def test_a_terminal_gets_a_bar_of_the_audit() -> None:
    text = read(58, terminal=True)
    assert "reading fp4_gemm" in text
    assert "58/58" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (5.4, "0:05"), (59.6, "1:00"), (65, "1:05"), (3600, "60:00")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
