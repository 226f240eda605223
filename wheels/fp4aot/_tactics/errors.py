"""The one error of this package, and its form."""

from __future__ import annotations

from typing import NoReturn


class TacticsError(ValueError):
    """A table, cache, list of shapes or device that cannot be used, and what to do about it."""


def refuse(source: str, field: str, got: str, expected: str, what_to_do: str) -> NoReturn:
    """Raise the error that every refused field of a file gets.

    Parameters
    ----------
    source
        The file, as the user named it.
    field
        Where in the file, such as ``sections[0].entries[3].tactic``.
    got, expected, what_to_do
        The rest of the sentence.
    """
    raise TacticsError(
        f"fp4aot.tactics: {source}: field '{field}': got {got}, expected {expected}; {what_to_do}"
    )
