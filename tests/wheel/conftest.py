"""Tests of the installed wheel; ``nox -s test`` builds and installs it first.

Nothing here may import the source tree: what is tested is what a user gets.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from flashinfer_programs import Programs, output_of

import fp4aot

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))


def pytest_report_header() -> str:
    """Say which wheel is tested."""
    manifest = fp4aot._MANIFEST
    return f"fp4aot {fp4aot.__version__}, plan {manifest.plan_hash[:12]}, {fp4aot.__file__}"


@pytest.fixture(scope="session", autouse=True)
def _installed_not_source() -> None:
    assert ROOT / "wheels" not in Path(fp4aot.__file__).parents, "the source tree was imported"


@pytest.fixture(scope="session")
def report() -> dict:
    """What the build said of the wheel."""
    return json.loads(Path(os.environ["FP4AOT_REPORT"]).read_text())


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.fixture
def python():
    """Run a program in a fresh interpreter and return what it printed."""

    def run(program: str, *arguments: str, check: bool = True, **environ: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        return output_of(command, os.environ | environ, check)

    return run


@pytest.fixture(scope="session")
def with_flashinfer(tmp_path_factory) -> Programs:
    """Run a program where FlashInfer and the installed wheel are; return what it printed."""
    return Programs(tmp_path_factory.mktemp("flashinfer"))
