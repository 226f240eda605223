"""Whether a table of tactics is to be loaded when `fp4aot` is imported; if not, nothing else is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FP4AOT_TACTICS"
SHIPPED = "tactics.json"


def is_asked_for(package: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the environment names a table, or the package holds one.

    Parameters
    ----------
    package
        The folder that may hold `tactics.json`.
    environment
        Environment variables.
    """
    return bool(environment.get(VARIABLE)) or (package / SHIPPED).is_file()
