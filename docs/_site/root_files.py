"""Files of the repository's root, or sections of them, as parts of a page in ``docs/``.

So README says a thing once, for those who read the files and for those who read the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from _site.page import Page
from _site.source import ROOT

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")

_HEADING = re.compile(r"(#+) (.+)\n")


class RootFileError(Exception):
    """A page that asks for what the root does not have, or a link that leads out of the site."""


def markdown(lines: Sequence[str]) -> Page:
    """Return a file, or what stands below one of its headings.

    Parameters
    ----------
    lines
        One line: ``README.md``, or ``README.md: Limits``.
    """
    name, _, heading = lines[0].partition(": ")
    text = (ROOT / name).read_text(encoding="utf-8")
    if heading:
        text = section(text, heading, name)
    return Page(_LINK.sub(_from_docs, text), (name,))


def section(text: str, heading: str, name: str) -> str:
    """Return what stands between a heading and the next one that is no lower.

    Of the title, what stands before the first heading below it.
    """
    lines = text.splitlines(keepends=True)
    headings = [
        (at, len(found[1]), found[2])
        for at, line in _outside_code(lines)
        if (found := _HEADING.match(line))
    ]
    for number, (at, level, title) in enumerate(headings):
        if title == heading:
            ends = [other for other, found, _ in headings[number + 1 :] if found <= max(level, 2)]
            return "".join(lines[at + 1 : ends[0] if ends else None])
    raise RootFileError(f"{name} has no heading {heading!r}; correct the page that names it")


def _outside_code(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, but for fenced code: a comment there is no heading."""
    fenced = False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _from_docs(link: re.Match[str]) -> str:
    """Write a link of the root as one of a page in ``docs/``."""
    path, anchor = PurePosixPath(link["path"]), link["anchor"] or ""
    if not (ROOT / path).exists():
        raise RootFileError(f"a link leads to {path}, which is not there")
    if path.parts[0] == "docs":
        return str(path.relative_to("docs")) + anchor
    if path.suffix == ".md":
        # Each Markdown file of the root is a page that holds nothing else.
        page = path.name.lower()
        if not (ROOT / "docs" / page).is_file():
            raise RootFileError(f"a link leads to {path}, which is no page; write docs/{page}")
        return page + anchor
    return f"../{path}{anchor}"
