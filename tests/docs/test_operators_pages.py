"""Every public name is on a page, with all that its docstring says."""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "wheels" / "fp4aot"
LABELS = ("Parameters", "Attributes", "Returns", "Yields", "Raises")
# Modules with an `__all__` of their own that users import from.
MODULES = {
    "fp4aot": PACKAGE / "__init__.py",
    "fp4aot.nn": PACKAGE / "nn" / "__init__.py",
    "fp4aot.tactics": PACKAGE / "tactics.py",
    "fp4aot.integrations.flashinfer": PACKAGE / "integrations" / "flashinfer.py",
}


def exported(path: Path) -> list[str]:
    """The `__all__` of a file, read without the code that makes the pages."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no __all__")


NAMES = [
    f"{module}.{name}"
    for module, path in MODULES.items()
    for name in exported(path)
    if not name.startswith("__") and f"{module}.{name}" not in MODULES
]


class Entry(HTMLParser):
    """The text of one object's description on a page."""

    def __init__(self, anchor: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchor, self.depth, self.text, self.found = anchor, 0, "", False

    def handle_starttag(self, tag, attrs):
        if tag == "dt" and ("id", self.anchor) in attrs:
            self.found = True
            self.depth = 1
        elif self.depth and tag == "dl":
            self.depth += 1

    def handle_endtag(self, tag):
        if self.depth and tag == "dl":
            self.depth -= 1

    def handle_data(self, data):
        if self.depth:
            self.text += data


@pytest.fixture(scope="module")
def pages(site) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(site.glob("operators/*.html"))]


def described(name: str, pages: list[str]) -> str:
    """The text that the one page with this name has of it."""
    texts = []
    for page in pages:
        entry = Entry(name)
        entry.feed(page)
        if entry.found:
            texts.append(entry.text)
    assert len(texts) == 1, f"{name} is described {len(texts)} times; add it to docs/operators/"
    return texts[0]


def squeezed(text: str) -> str:
    """Letters and digits alone: a page's quotes and dashes are typography."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    loader = griffe.GriffeLoader(search_paths=[ROOT / "wheels"], allow_inspection=False)
    loaded = loader.load("fp4aot")
    loader.resolve_aliases()
    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_described_as_its_docstring_does(name, pages, package):
    text = described(name, pages)
    thing = package[name.removeprefix("fp4aot.")]
    if thing.docstring is None:
        # Another name of a function, or a bare list of values.
        assert thing.kind.value == "attribute"
        return
    words = squeezed(text)
    for section in re.split(r"\n(?=\w[^\n]*\n-{3,}\n)", thing.docstring.value):
        title = section.splitlines()[0]
        if title in LABELS:
            assert title.lower() in words
        # Examples are code, whose highlighting splits nothing that matters here.
        for line in section.splitlines():
            if not set(line) <= {"-"} and title not in ("Notes", "Examples"):
                assert squeezed(line) in words, f"{name}: {line!r} is not on its page"


@pytest.mark.parametrize("name", NAMES)
def test_a_signature_is_documented(name, package):
    thing = package[name.removeprefix("fp4aot.")]
    if not thing.is_function or thing.docstring is None:
        return
    documented = {
        parameter.name
        for section in thing.docstring.parse("numpy")
        if section.kind is griffe.DocstringSectionKind.parameters
        for parameter in section.value
    }
    parameters = {parameter.name for parameter in thing.parameters}
    # A function that needs none of its parameters explained has no such section at all.
    assert not documented or documented == parameters


def test_operators_that_are_not_modules_are_all_listed():
    assert len(NAMES) == len(set(NAMES))
    assert len([name for name in NAMES if name.count(".") == 1]) > 25


def test_the_package_need_not_be_importable():
    import sys

    assert "torch" not in sys.modules
    assert "fp4aot" not in sys.modules
