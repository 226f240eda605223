"""The built site: no broken link, nothing from elsewhere; and the check can fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from site_check import broken, read

ROOT = Path(__file__).resolve().parents[2]


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(site):
    pages = read(site)
    assert len(pages) > 25
    assert list(broken(site, pages)) == []


def test_styles_load_nothing_from_elsewhere(site):
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"@import\s|url\(\s*['\"]?(https?:)?//", text), style


def test_every_page_has_a_title_and_one_main_heading(site):
    for page in read(site).values():
        if page.path in ("genindex.html", "search.html"):
            continue
        assert page.title.strip(), page.path
        assert page.headings == 1, page.path


def test_every_file_of_the_documentation_is_a_page(site):
    sources = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "_site"]
    assert len(sources) > 20
    for source in sources:
        assert (site / source.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), source


def test_no_block_was_left_as_it_was(site):
    for path in site.rglob("*.html"):
        assert not re.search(r"```\{|:::\{|\{py:", path.read_text(encoding="utf-8")), path


PAGE = "<html><head><title>A</title></head><body><h1 id='top'>A</h1>{}</body></html>"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<a href='absent.html'>x</a>", "no such file"),
        ("<a href='#absent'>x</a>", "no such anchor"),
        ("<a href='other.html#absent'>x</a>", "other.html has no such anchor"),
        ("<a href='/other.html'>x</a>", "not relative"),
        ("<a href='../outside.html'>x</a>", "outside the site"),
        ("<img src='absent.png'>", "no such file"),
        ("<img src='https://example.org/x.png'>", "from elsewhere"),
        ("<script src='//example.org/x.js'></script>", "from elsewhere"),
        ("<link rel='stylesheet' href='https://example.org/x.css'>", "from elsewhere"),
    ],
)
def test_the_check_finds(tmp_path, body, words):
    (tmp_path / "index.html").write_text(PAGE.format(body))
    (tmp_path / "other.html").write_text(PAGE.format(""))
    (found,) = broken(tmp_path, read(tmp_path))
    assert words in found


def test_the_check_accepts_what_is_there(tmp_path):
    body = (
        "<a href='other.html#top'>x</a><a href='#top'>x</a><a href='https://example.org/'>x</a>"
        "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><a href='mailto:a@b.c'>x</a>"
    )
    (tmp_path / "index.html").write_text(PAGE.format(body))
    (tmp_path / "other.html").write_text(PAGE.format(""))
    assert list(broken(tmp_path, read(tmp_path))) == []
