"""The errors of troubleshooting.toml, by section."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tomllib

from _site.exit_codes import error_classes
from _site.page import Page
from _site.source import ROOT, code
from _site.texts import files_that_say

FILE = "docs/troubleshooting.toml"


@dataclass(frozen=True)
class Entry:
    """One message and what to make of it; see the file."""

    section: str
    message: str
    meaning: str
    do: str
    error: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Messages:
    """The whole file: sections by their id, and entries in order."""

    sections: dict[str, str]
    entries: tuple[Entry, ...]


@functools.cache
def read() -> Messages:
    """Read the file."""
    data = tomllib.loads((ROOT / FILE).read_text(encoding="utf-8"))
    return Messages(
        {one["id"]: one["title"] for one in data["section"]},
        tuple(Entry(**one) for one in data["entry"]),
    )


def markdown(_: Sequence[str]) -> Page:
    """Write every section with its entries."""
    found = read()
    sources = {FILE}
    lines: list[str] = []
    for section, title in found.sections.items():
        lines += [f"## {title}", ""]
        for entry in found.entries:
            if entry.section == section:
                files = () if entry.origin else files_that_say(entry.message)
                sources |= set(files[:1])
                lines += _entry(entry, files)
    return Page("\n".join(lines), sorted(sources))


def _entry(entry: Entry, files: Sequence[str]) -> Iterator[str]:
    yield f"### {code(entry.message)}"
    yield ""
    yield entry.meaning
    yield ""
    yield f"**What to do:** {entry.do}"
    yield ""
    said_by = "PyTorch" if entry.origin == "torch" else _shown(files)
    yield f"*{entry.error or 'Printed'}{_exit_code(entry.error)}, from {said_by}*"
    yield ""


def _shown(files: Sequence[str]) -> str:
    """Name the first file; a message that nothing says is found by a test, not by a reader."""
    return code(files[0]) if files else "an earlier version"


def _exit_code(error: str) -> str:
    codes = {one.name: one.exit_code for one in error_classes()}
    return f" (exit code {codes[error]})" if error in codes else ""
