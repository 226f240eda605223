"""Reads a built site: its pages, what they link to, and what a browser would load for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches without being asked.
_LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "video": "src",
}
# Links of the head that only name something.
_NAMED_ONLY = {"author", "canonical", "index", "license", "next", "prev", "search", "top", "help"}


@dataclass
class Page:
    """One page.

    Attributes
    ----------
    path
        Relative to the site.
    ids
        What can be linked to in it.
    links
        Targets of its links.
    loaded
        What it loads.
    title, headings
        For people.
    """

    path: str
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    title: str = ""
    headings: int = 0


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__(convert_charrefs=True)
        self.page = page
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.page.ids.add(values["id"])
        if tag == "a":
            if "name" in values:
                self.page.ids.add(values["name"])
            if "href" in values:
                self.page.links.append(values["href"])
        relation = set(values.get("rel", "").split())
        if (attribute := _LOADED.get(tag)) in values and not relation & _NAMED_ONLY:
            self.page.loaded.append(values[attribute])
        self.in_title |= tag == "title"
        self.page.headings += tag == "h1"

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.page.title += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self.in_title = False


def read(site: Path) -> dict[str, Page]:
    """Read every page of a site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = Page(path.relative_to(site).as_posix())
        _Reader(page).feed(path.read_text(encoding="utf-8"))
        pages[page.path] = page
    return pages


def broken(site: Path, pages: dict[str, Page]) -> Iterator[str]:
    """Yield what is linked to or loaded and is not there, and what is loaded from elsewhere."""
    for page in pages.values():
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                yield from _missing(site, pages, page, link)
        for link in page.loaded:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                yield f"{page.path} loads {link} from elsewhere"
            else:
                yield from _missing(site, pages, page, link)


def _missing(site: Path, pages: dict[str, Page], page: Page, link: str) -> Iterator[str]:
    parts = urlsplit(link)
    name = unquote(parts.path)
    if name.startswith("/"):
        yield f"{page.path} links to {link}: not relative, so it needs a site at the root"
        return
    target = (site / page.path).parent / name if name else site / page.path
    if not target.resolve().is_relative_to(site.resolve()):
        yield f"{page.path} links to {link}: outside the site"
        return
    if not target.is_file():
        yield f"{page.path} links to {link}: there is no such file"
        return
    fragment = unquote(parts.fragment)
    found = pages.get(target.resolve().relative_to(site.resolve()).as_posix())
    if fragment and found is not None and fragment not in found.ids:
        yield f"{page.path} links to {link}: {found.path} has no such anchor"
