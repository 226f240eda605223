"""Markdown that is made when the site is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A part of a page.

    Parameters
    ----------
    text
        Its Markdown.
    sources
        The files that it was made from, relative to the repository: the page is built anew when one
        of them changes.
    """

    text: str
    sources: Sequence[str] = ()
