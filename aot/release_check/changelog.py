"""Sections of CHANGELOG.md: what a release's notes are made of."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Final

from aot.errors import ReleaseError

_HEADING: Final = re.compile(r"^## (?P<version>\S+)(?: \((?P<when>[^)]*)\))?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """What changed in a version.

    Parameters
    ----------
    version
        As in its heading.
    date
        The day of the release; None while it is unreleased.
    body
        Everything below the heading.
    """

    version: str
    date: datetime.date | None
    body: str


def sections(text: str) -> tuple[Section, ...]:
    """Read a changelog, newest version first, as it stands there.

    Raises
    ------
    ReleaseError
        When a heading has something other than a date or ``unreleased`` behind its version.
    """
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)][: len(headings)]
    return tuple(
        Section(
            heading["version"],
            _date(heading["version"], heading["when"]),
            text[heading.end() : end].strip(),
        )
        for heading, end in zip(headings, ends, strict=True)
    )


def _date(version: str, when: str | None) -> datetime.date | None:
    if when == "unreleased":
        return None
    try:
        return datetime.date.fromisoformat(when or "")
    except ValueError:
        raise ReleaseError(
            f"CHANGELOG.md has {when!r} behind '## {version}'; write (unreleased), or the day of "
            "the release such as (2026-11-30)"
        ) from None


def section_of(text: str, version: str) -> Section:
    """Return what changed in a version.

    Raises
    ------
    ReleaseError
        When there is no such section, or nothing in it.
    """
    every = sections(text)
    found = next((section for section in every if section.version == version), None)
    if found is None:
        there = ", ".join(section.version for section in every) or "none"
        raise ReleaseError(
            f"CHANGELOG.md has no section of version {version}, only {there}; write one"
        )
    if not found.body:
        raise ReleaseError(f"CHANGELOG.md says nothing about version {version}; write what changed")
    return found
