"""The errors of the build side and the exit codes that they end a command with."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from _site.page import Page
from _site.source import ROOT, code, table

BASE = "AotError"


@dataclass(frozen=True)
class ErrorClass:
    """One kind of failure."""

    name: str
    exit_code: int
    meaning: str
    file: str


@functools.cache
def error_classes() -> tuple[ErrorClass, ...]:
    """Find every subclass of `AotError`, with its own exit code or its base's."""
    found: dict[str, ErrorClass] = {}
    declared = [
        (node, str(path.relative_to(ROOT)))
        for path in sorted(ROOT.glob("aot/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    codes = {BASE: 1}
    # A base may be declared in a file that is read later.
    while new := [
        (node, base.id, file)
        for node, file in declared
        for base in node.bases
        if node.name not in codes and isinstance(base, ast.Name) and base.id in codes
    ]:
        for node, base_name, file in new:
            codes[node.name] = _own_code(node) or codes[base_name]
            meaning = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
            found[node.name] = ErrorClass(node.name, codes[node.name], meaning, file)
    return tuple(sorted(found.values(), key=lambda one: (one.exit_code, one.name)))


def _own_code(node: ast.ClassDef) -> int | None:
    for item in node.body:
        if (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and item.target.id == "exit_code"
            and isinstance(item.value, ast.Constant)
        ):
            return int(str(item.value.value))
    return None


def markdown(_: Sequence[str]) -> Page:
    """Write the table of `python -m aot`."""
    rows = [(str(one.exit_code), code(one.name), one.meaning) for one in error_classes()]
    return Page(
        table(("exit code", "error", "what it means"), rows),
        sorted({one.file for one in error_classes()}),
    )
