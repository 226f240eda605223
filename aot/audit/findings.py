"""What an audit finds, and the pieces that every report is made of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
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


def sha256(path: Path) -> str:
    """Hash a file without holding it in memory."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def shortened(names: tuple[str, ...], limit: int = 8) -> str:
    """Join names, and say how many were left out."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
