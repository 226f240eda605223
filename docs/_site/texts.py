"""Every text that the sources can say, with … for what is filled in.

By this the troubleshooting page cannot go stale: what it quotes is looked up here.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from _site.source import ROOT

FILLED_IN = "…"
# A quotation with fewer letters than this could be found anywhere: it must be a whole text.
_LETTERS = 12


@dataclass(frozen=True)
class Text:
    """One text of one file."""

    file: str
    text: str


@functools.cache
def all_texts() -> tuple[Text, ...]:
    """Read the build side, the package and its operators."""
    python = [*ROOT.glob("aot/**/*.py"), *ROOT.glob("wheels/fp4aot/**/*.py")]
    operators = ROOT.glob("wheels/fp4aot/csrc/**/*.cpp")
    found: list[Text] = []
    for paths, read in ((python, python_texts), (operators, cpp_texts)):
        for path in sorted(paths):
            name = str(path.relative_to(ROOT))
            found += (Text(name, text) for text in read(path.read_text(encoding="utf-8")))
    return tuple(found)


def files_that_say(message: str, texts: Iterable[Text] | None = None) -> tuple[str, ...]:
    """List the files with a text that a message quotes."""
    pattern = _pattern(message)
    found = (one for one in (all_texts() if texts is None else texts) if pattern.search(one.text))
    return tuple(dict.fromkeys(one.file for one in found))


def _pattern(message: str) -> re.Pattern[str]:
    parts = message.split(FILLED_IN)
    text = ".*?".join(map(re.escape, parts))
    whole = len("".join(parts)) < _LETTERS
    return re.compile(rf"\A{text}\Z" if whole else text, re.DOTALL)


def python_texts(source: str) -> Iterator[str]:
    """Yield the texts of a Python file; docstrings say nothing to a user."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in silent or id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield template(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def template(node: ast.expr) -> str:
    """Write a string expression with … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return FILLED_IN


_TOKEN = re.compile(r'//[^\n]*|"((?:[^"\\]|\\.)*)"|\s+|;|[^\s";/]+|/')


def cpp_texts(source: str) -> Iterator[str]:
    """Yield the texts of a C++ file: the string literals of a statement, with … between them."""
    text, gap = "", False
    for token in _TOKEN.finditer(source):
        word = token[0]
        if word.isspace() or word.startswith("//"):
            continue
        if word == ";":
            if text:
                yield text
            text, gap = "", False
        elif token[1] is not None:
            text += (FILLED_IN if gap and text else "") + token[1].replace('\\"', '"')
            gap = False
        else:
            gap = True
    if text:
        yield text


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def raises(path: Path, error: str) -> Iterator[str]:
    """Yield what a file raises an error with."""
    for node in ast.walk(_parsed(path)):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        if ast.unparse(node.exc.func) == error and node.exc.args:
            yield template(node.exc.args[0])
