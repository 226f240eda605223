"""The C++ programs of docs/cpp, built as its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fp4aot

PROGRAMS = Path(__file__).resolve().parents[1] / "docs" / "cpp"
LIBRARY = Path(fp4aot.__file__).parent / fp4aot._MANIFEST.library_name


def build(source: str, folder: Path) -> Path:
    program = folder / source.removesuffix(".cpp")
    done = subprocess.run(
        ["sh", PROGRAMS / "build.sh", source, program],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program
