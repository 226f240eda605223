"""Tests on a real GPU, from an installed wheel: ``pytest tests/gpu`` (or ``nox -s gpu``).

They need a CUDA build of torch and a GPU. Without one they fail: a run that tested nothing must not
look like a run that passed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fp4aot


def pytest_report_header() -> list[str]:
    """Say what is tested, on what."""
    manifest = fp4aot._MANIFEST
    lines = [
        f"fp4aot {fp4aot.__version__}, preset {manifest.preset}, plan {manifest.plan_hash[:12]}, "
        f"library {manifest.library_sha256[:12]}, from {Path(fp4aot.__file__).parent}",
        f"torch {torch.__version__}",
    ]
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        lines.append(f"cuda:{index} {torch.cuda.get_device_name(index)} ({major}.{minor})")
    return lines


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    assert torch.cuda.device_count() > 0, "these tests need a GPU and a CUDA build of torch"


@pytest.fixture
def capability() -> tuple[int, int]:
    """Compute capability of cuda:0."""
    return torch.cuda.get_device_capability(0)


@pytest.fixture(autouse=True)
def _fresh_compiler_and_no_late_errors():
    """Start each test without compiled code; end it by waiting for what it launched."""
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()
