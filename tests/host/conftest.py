"""Host tests run the operators' real C++ on the CPU, over stand-ins for FlashInfer and CUDA.

With FP4AOT_SANITIZED=1 the library is the one that `host_library.py` has built with sanitizers,
whose run time must have been loaded before Python: `nox -s sanitize`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import package_without_library  # noqa: E402, F401 (needs the path)

from aot import catalog  # noqa: E402
from host.flashinfer_recordings import record  # noqa: E402
from host.host_library import HostLibrary, build, place  # noqa: E402


@pytest.fixture(scope="session")
def library() -> HostLibrary:
    sanitized = os.environ.get("FP4AOT_SANITIZED") == "1"
    if not sanitized:
        build(sanitized=False)
    return HostLibrary(place(sanitized=sanitized))


@pytest.fixture(scope="session")
def recordings():
    return record(ROOT / "build" / "environments" / f"flashinfer-{catalog.DEFAULT_FLASHINFER}")
