"""What an image weighs, by where it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

INSTALLED = Path("opt/fp4aot")
"""Where the environment is, with PyTorch and the wheel."""


def files(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file below a folder, by its path in there, with its size."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink():
                yield path.relative_to(root), path.stat().st_size


def weigh(root: Path, base: Path) -> dict[str, int]:
    """Add up the bytes of an image's files.

    Parameters
    ----------
    root, base
        The files of the image, and those of the image that it is made from.

    Returns
    -------
    dict[str, int]
        By part: the base, what its base has not and no package brought, PyTorch, fp4aot.
    """
    parts = {"base": 0, "fp4aot": 0, "PyTorch and what it needs": 0, "anything else": 0}
    of_base = dict(files(base))
    for path, size in files(root):
        if path.is_relative_to(INSTALLED):
            ours = any(part.startswith("fp4aot") for part in path.relative_to(INSTALLED).parts)
            parts["fp4aot" if ours else "PyTorch and what it needs"] += size
        else:
            parts["base" if of_base.get(path) == size else "anything else"] += size
    return parts
