"""Find compilers in a root file system."""

from __future__ import annotations

import os
import re
from pathlib import Path

# With a prefix for another machine and a version behind: x86_64-linux-gnu-gcc-12.
_COMPILER = re.compile(
    r"(?:\w+-linux-gnu-)?"
    r"(?:gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|cc1|cc1plus|collect2|ld|as"
    r"|nvcc|cicc|cudafe\+\+|ptxas|fatbinary|nvlink|tileiras|ninja|cmake|make|sccache)"
    r"(?:-[\w.]+)?"
)


def compilers(root: Path) -> list[str]:
    """List the files and links whose names are those of compilers and their like.

    Executable ones alone, by the path inside the file system.
    """
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            if _COMPILER.fullmatch(name):
                path = Path(folder) / name
                # A link counts too, wherever it points: its target need not exist from outside.
                if path.is_symlink() or os.access(path, os.X_OK):
                    found.append(str(path.relative_to(root)))
    return sorted(found)
