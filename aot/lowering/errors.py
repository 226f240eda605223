"""How lowering fails."""

from __future__ import annotations

from aot.errors import BuildError


class LoweringError(BuildError):
    """PTX that cannot be lowered; names the instruction, its line and its kernel."""
