"""The version of a wheel: the project's, with a label for a wheel that is unlike the others.

The build backend calls this. The label comes from the environment because a backend does not hand
its settings on; CMakeLists.txt refuses a wheel whose label is not the one that its plan needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

VARIABLE: Final = "FP4AOT_LOCAL_VERSION"


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    """Return the version, such as ``0.1.0`` or ``0.1.0+lowered``.

    Parameters
    ----------
    settings
        Of pyproject.toml: ``version``, without a label.
    project
        The rest of the project's metadata, which is not looked at.
    """
    label = os.environ.get(VARIABLE, "")
    return {"version": settings["version"] + (f"+{label}" if label else "")}
