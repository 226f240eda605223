"""What an audit finds, and the pieces that every report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as expected.

    Parameters
    ----------
    severity
        ``"error"`` fails the audit; ``"warning"`` is only shown.
    what
        What was found, what was expected, and what to do.
    where
        The file it is about.
    """

    severity: Severity
    what: str
    where: str


def shortened(names: tuple[str, ...], limit: int = 8) -> str:
    """Join names, and say how many were left out."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
