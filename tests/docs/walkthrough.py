"""Reads a page whose code blocks are changes to the tree, and applies them to a copy of it.

The sentence before a block says what it is:

    New file `path`:
    In `path`, before `line`:
    In `path`, after `line` and `next line`:

Lines are compared without the blanks around them, and must occur once. A `console` block holds
commands, each after a `$`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A code span that holds backticks is written with two.
_SPAN = r"(?:``.+?``|`[^`]+`)"
_NEW = re.compile(r"New file `(?P<path>[^`]+)`:")
_CHANGE = re.compile(
    rf"In `(?P<path>[^`]+)`, (?P<where>before|after) (?P<lines>{_SPAN}(?: and {_SPAN})*):"
)


@dataclass(frozen=True)
class NewFile:
    """A file that the page adds."""

    path: str
    text: str


@dataclass(frozen=True)
class Insertion:
    """Lines that the page adds to a file that is there."""

    path: str
    anchor: tuple[str, ...]
    before: bool
    text: str


@dataclass(frozen=True)
class Commands:
    """Commands that the page runs."""

    lines: tuple[str, ...]


Step = NewFile | Insertion | Commands


class WalkthroughError(Exception):
    """A page that does not fit the tree, or a block that says not what it is."""


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of a page in order."""
    for block in _FENCE.finditer(page):
        language, text = block[1], block[2]
        if language == "console":
            yield Commands(tuple(re.findall(r"^\$ (.+)$", text, re.MULTILINE)))
            continue
        # The paragraph before the block, whose lines may be wrapped.
        sentence = " ".join(page[: block.start()].rstrip().rsplit("\n\n", 1)[-1].split("\n"))
        if new := _NEW.fullmatch(sentence):
            yield NewFile(new["path"], text)
        elif change := _CHANGE.fullmatch(sentence):
            anchor = tuple(span.strip("`").strip() for span in re.findall(_SPAN, change["lines"]))
            yield Insertion(change["path"], anchor, change["where"] == "before", text)
        else:
            raise WalkthroughError(
                f"the block after {sentence!r} says neither 'New file `path`:' nor "
                "'In `path`, before `line`:' (or after)"
            )


def apply(step: NewFile | Insertion, tree: Path) -> None:
    """Make one change in a tree."""
    path = tree / step.path
    if isinstance(step, NewFile):
        if path.exists():
            raise WalkthroughError(f"{step.path} is there already; the page says it is new")
        path.write_text(step.text, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    stripped, count = [line.strip() for line in lines], len(step.anchor)
    found = [at for at in range(len(lines)) if tuple(stripped[at : at + count]) == step.anchor]
    if len(found) != 1:
        raise WalkthroughError(
            f"{step.path} has {len(found)} times the line {' and '.join(step.anchor)!r}, expected "
            "one; name another line in docs/adding-a-module.md"
        )
    lines.insert(found[0] if step.before else found[0] + count, step.text)
    path.write_text("".join(lines), encoding="utf-8")
