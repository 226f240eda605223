"""How a single check fails."""

from __future__ import annotations

from typing import ClassVar

from aot.errors import AotError


class ReleaseError(AotError):
    """Something that a release needs is not there."""

    exit_code: ClassVar[int] = 14
