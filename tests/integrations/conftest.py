"""Tests that run the servers' own code against the installed wheel.

``nox -s test`` runs `test_original_failure.py`, for which 7 MB are downloaded; ``nox -s
integrations`` runs everything, for which 590 MB are. FlashInfer comes from the environment of the
build, whose interpreter runs the servers' code; it sees of this one only the installed wheel.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path

import pytest

import fp4aot

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integrations import run, wheels  # noqa: E402

BUILD = ROOT / "build"
SOURCES = BUILD / "integrations"


@pytest.fixture(scope="session", autouse=True)
def _installed_not_source() -> None:
    assert ROOT / "wheels" not in Path(fp4aot.__file__).parents, "the source tree was imported"


@pytest.fixture(scope="session")
def machine(tmp_path_factory) -> run.Machine:
    """The build's FlashInfer, with the installed wheel on its path."""
    roots = json.loads((BUILD / "wheel/plan/roots.json").read_text())
    site = tmp_path_factory.mktemp("site")
    (site / "fp4aot").symlink_to(Path(fp4aot.__file__).parent)
    place = Path(str(importlib.metadata.distribution("fp4aot").locate_file("")))
    (dist_info,) = place.glob("fp4aot-*.dist-info")
    (site / dist_info.name).symlink_to(dist_info)
    for name in list(os.environ):
        if name.startswith(("FLASHINFER_", "FP4AOT_", "SGLANG_", "VLLM_", "PYTHON")):
            del os.environ[name]
    os.environ["PYTHONPATH"] = str(site)
    python = str(Path(roots["torch"]).parents[3] / "bin/python")
    for need in wheels.MSGSPEC.values():
        wheels.provide(need, SOURCES)
    return run.Machine(SOURCES, python)
