"""Sections of the root's files become parts of pages, with links that lead there."""

from __future__ import annotations

import re

import pytest
from _site.root_files import RootFileError, markdown, section

TEXT = """\
# Title

Intro.

## One

```console
# no heading
```

### Below

Text.

## Two

End.
"""


def test_a_section_ends_where_the_next_one_begins():
    assert section(TEXT, "One", "x") == (
        "\n```console\n# no heading\n```\n\n### Below\n\nText.\n\n"
    )
    assert section(TEXT, "Two", "x") == "\nEnd.\n"
    assert section(TEXT, "Below", "x") == "\nText.\n\n"


def test_of_the_title_it_is_what_stands_before_the_first_heading():
    assert section(TEXT, "Title", "x") == "\nIntro.\n\n"


def test_a_heading_that_is_not_there_is_named():
    with pytest.raises(RootFileError, match="'Three'"):
        section(TEXT, "Three", "x")
    with pytest.raises(RootFileError, match="no heading"):
        section(TEXT, "no heading", "x")


def test_links_lead_from_docs():
    links = re.findall(r"\]\(([^)]+)\)", markdown(["README.md: Use"]).text)
    assert "integrations/flashinfer.md" in links
    assert not any(link.startswith("docs/") for link in links)
