"""Tables for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Lay rows out under a head, as lines without trailing blanks.

    Parameters
    ----------
    head, rows
        The cells.
    right
        Columns of numbers, aligned to the right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
