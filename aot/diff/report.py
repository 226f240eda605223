"""Print what changed between two wheels."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aot.diff.compare import Change, Difference

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def print_difference(difference: Difference, console: Console) -> None:
    """Print a table with one row a change, what was not compared, and a verdict."""
    console.print(f"- {difference.before}\n+ {difference.after}", highlight=False, markup=False)
    if difference.changes:
        console.print(_table(difference))
    for text in difference.not_compared:
        console.print(f"not compared: {text}", highlight=False, markup=False)
    console.print(difference.verdict, highlight=False, markup=False)


def _table(difference: Difference) -> Table:
    table = Table()
    for title in ("section", "", "what", "before", "after"):
        table.add_column(title, overflow="fold")
    for section, changes in groupby(difference.changes, key=lambda change: change.section):
        for number, change in enumerate(changes):
            title = section if number == 0 else ""
            row = (title, _SIGNS[change.kind], change.what, *_shown(change))
            table.add_row(*map(escape, row))
        table.add_section()
    return table


def _shown(change: Change) -> tuple[str, str]:
    """Shorten hashes: a table is for reading, and ``--json`` has them whole."""
    before, after = (
        " ".join(_short(word) for word in text.split(" ")) for text in (change.before, change.after)
    )
    return before, after


def _short(word: str) -> str:
    is_hash = len(word) == 64 and set(word) <= set("0123456789abcdef")
    return f"{word[:12]}…" if is_hash else word
