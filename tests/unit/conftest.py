"""Unit tests run on the source tree, without a built library."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import package_without_library  # noqa: E402, F401 (needs the path)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libfp4aot.so"
    path.write_bytes(b"\x7fELF and so on")
    return path


@pytest.fixture(scope="session")
def cc() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("NOT TESTED: what a C compiler makes, because this machine has none")
    return found
