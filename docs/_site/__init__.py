"""What the site is made of beside its pages.

A block of a page such as::

    ```{operators}
    fp4aot.mm_fp4
    ```

is replaced by Markdown before the page is parsed, so that its headings are headings of the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _site import benchmarks, evidence, exit_codes, messages, operators, root_files, wheels
from _site.page import Page
from _site.public_names import UnknownNameError
from _site.root_files import RootFileError
from _site.source import ROOT

GENERATED = {
    "operators": operators.markdown,
    "module-docstring": operators.module_docstring,
    "messages": messages.markdown,
    "exit-codes": exit_codes.markdown,
    "wheels": wheels.markdown,
    "evidence": evidence.markdown,
    "speeds": benchmarks.speeds,
    "host-times": benchmarks.host_times,
    "build-time": benchmarks.build_time,
    "root-file": root_files.markdown,
}

_OWN_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_BLOCK = re.compile(
    rf"^```\{{(?P<name>{'|'.join(GENERATED)})\}} *(?P<argument>.*)\n(?P<lines>(?:.*\n)*?)```$",
    re.MULTILINE,
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what replaces the blocks."""
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def expand(text: str) -> Page:
    """Replace the blocks of a page."""
    sources: list[str] = []

    def made(block: re.Match[str]) -> str:
        lines = [block["argument"].strip(), *map(str.strip, block["lines"].splitlines())]
        part = GENERATED[block["name"]]([line for line in lines if line])
        sources.extend(part.sources)
        return part.text.strip()

    return Page(_BLOCK.sub(made, text), tuple(dict.fromkeys(sources)))


def _replace(app: Sphinx, docname: str, source: list[str]) -> None:
    before = source[0]
    try:
        page = expand(before)
    except (RootFileError, UnknownNameError) as error:
        raise ExtensionError(f"{docname}: {error}") from error
    source[0] = page.text
    if page.text == before:
        return
    for path in (*map(ROOT.joinpath, page.sources), *_OWN_SOURCES):
        app.env.note_dependency(path, docname=docname)
