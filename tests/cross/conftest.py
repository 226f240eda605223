"""The wheel for aarch64 that was built, and an interpreter for aarch64 that has it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from emulated import NEEDED, EmulatedPython, ensure

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel() -> Path:
    """Named by the report of its build."""
    report = os.environ.get("FP4AOT_REPORT")
    assert report, "set FP4AOT_REPORT to the report of `python -m aot build --platform aarch64`"
    return Path(json.loads(Path(report).read_text())["wheel"])


@pytest.fixture(scope="session")
def python(wheel: Path) -> EmulatedPython:
    """With the wheel installed."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    assert not absent, f"{', '.join(absent)} not on PATH: this needs Debian and its qemu-user"
    made = ensure(ROOT / "build" / "python-aarch64")
    made.install(wheel)
    return made
