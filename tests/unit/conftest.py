"""Unit tests run on the source tree, without a built library."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import package_without_library  # noqa: E402, F401 (needs the path)
