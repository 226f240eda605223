"""Progress: ninja's lines while it links, and the audit's."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from aot import progress
from aot.progress import NINJA_STATUS, Finished, clock, follow, parse_line


def shown(lines: list[str], *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    follow(lines, console)
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


# What is shown


def test_a_log_gets_a_line_a_step_and_nothing_of_the_linker() -> None:
    lines = [
        "*** Building project with Ninja...\n",
        "  [aot 1/3] merge m/[a]\n",
        "a.cu(3): warning: [red]unused[/red]\n",
        "  [aot 2/3] check the type schemas\n",
        "  [aot 3/3] link libfp4aot.so\n",
    ]
    assert shown(lines).splitlines() == [
        "[1/3] merge m/[a]",
        "[2/3] check the type schemas",
        "[3/3] link libfp4aot.so",
    ]


def test_a_terminal_gets_a_bar() -> None:
    text = shown(["[aot 2/3] merge m\n"], terminal=True)
    assert "merge m" in text
    assert "2/3" in text


def test_after_a_resumed_build_the_steps_that_are_left_count() -> None:
    # Ninja finds the modules merged, and has one step to do.
    assert shown(["[aot 1/1] link libfp4aot.so\n"]) == "[1/1] link libfp4aot.so\n"


def test_nothing_to_link_shows_nothing() -> None:
    assert shown(["ninja: no work to do.\n"]) == ""


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
