"""The walk-through of docs/adding-a-module.md, done in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from walkthrough import Commands, NewFile, WalkthroughError, apply, steps

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-module.md"
# Always the same folder: compilers are told paths, and the object cache goes by what they are told.
TREE = ROOT / "build" / "adding-a-module"
LEFT_OUT = {".git", ".nox", ".lowered", "build", "dist"}
# Installed once for all builds of this checkout.
SHARED = ("toolchain", "environments")


@pytest.fixture(scope="module")
def tree() -> Path:
    """Copy the tree; share what builds install, and keep the object cache of earlier runs."""
    TREE.mkdir(parents=True, exist_ok=True)
    for old in TREE.iterdir():
        if old.name == "build":
            continue
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for path in ROOT.iterdir():
        if path.name in LEFT_OUT:
            continue
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, TREE / path.name, ignore=ignored)
        else:
            shutil.copy2(path, TREE / path.name)
    build = TREE / "build"
    build.mkdir(exist_ok=True)
    shutil.rmtree(build / "wheel", ignore_errors=True)
    shutil.rmtree(build / "installed", ignore_errors=True)
    for name in SHARED:
        (ROOT / "build" / name).mkdir(exist_ok=True)
        if not (build / name).exists():
            (build / name).symlink_to(ROOT / "build" / name)
    return TREE


def run(command: str, tree: Path) -> str:
    """Run a command of the page as its reader would, with this environment's Python."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=tree,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"$ {command}\n{done.stdout}")
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def test_the_walk_through(tree):
    printed = {}
    for step in steps(PAGE.read_text(encoding="utf-8")):
        if isinstance(step, Commands):
            printed |= {line: run(line, tree) for line in step.lines}
        else:
            apply(step, tree)

    def of(words: str) -> str:
        (text,) = (text for line, text in printed.items() if words in line)
        return text

    assert "cascade" in of("aot plan")
    assert "Audit passed" in of("aot build")
    for tests in (of("tests/unit"), of("tests/wheel")):
        assert " passed" in tests
        assert "failed" not in tests
    # The unit tests name what this machine has no tools for, another processor's compiler say.
    assert "skipped" not in of("tests/wheel")


BLOCK = "```python\nx = 1\n```\n"


def only(page: str):
    (step,) = steps(page)
    return step


def test_a_block_that_says_not_what_it_is_is_refused():
    with pytest.raises(WalkthroughError, match="neither"):
        list(steps(f"For example:\n\n{BLOCK}"))


def test_a_line_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("one\ntwo\ntwo\n")
    for line, count in (("three", 0), ("two", 2)):
        step = only(f"In `a.py`, after `{line}`:\n\n{BLOCK}")
        with pytest.raises(WalkthroughError, match=f"has {count} times"):
            apply(step, tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("before `two`", "one\nx = 1\ntwo\ntwo three\n"),
        ("after `one`", "one\nx = 1\ntwo\ntwo three\n"),
        ("after `one` and `two`", "one\ntwo\nx = 1\ntwo three\n"),
        ("after\n`two three`", "one\ntwo\ntwo three\nx = 1\n"),
    ],
)
def test_lines_are_put_where_the_page_says(tmp_path, words, expected):
    (tmp_path / "a.py").write_text("one\ntwo\ntwo three\n")
    apply(only(f"In `a.py`, {words}:\n\n{BLOCK}"), tmp_path)
    assert (tmp_path / "a.py").read_text() == expected


def test_a_new_file_must_be_new(tmp_path):
    step = only(f"New file `a.py`:\n\n{BLOCK}")
    assert step == NewFile("a.py", "x = 1\n")
    apply(step, tmp_path)
    with pytest.raises(WalkthroughError, match="there already"):
        apply(step, tmp_path)
