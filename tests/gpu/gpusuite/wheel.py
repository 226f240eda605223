"""Which wheel is tested, on which devices, and what of it runs there."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from typing import Any, NoReturn

import pytest
import torch

import fp4aot
from fp4aot.operators import DEVICE_OPERATORS
from fp4aot.operators.structured import OPERATORS as _ALL
from gpusuite.records import DID_NOT_RUN_PREFIX, NOT_APPLICABLE_PREFIX

IN_PLACE = ("nvfp4_quantize_append_paged_kv_cache",)
"""Operators that return nothing and write to their arguments; their tests are their own."""

OPERATORS = tuple(name for name in DEVICE_OPERATORS if name not in IN_PLACE)
"""Operators that run compiled device code, and return its results."""

ON_EVERY_DEVICE = tuple(name for name, operator in _ALL.items() if "CUDA" in operator.keys)
"""Operators that PyTorch runs."""


def did_not_run(reason: str) -> NoReturn:
    """End a test that this machine cannot run: a gap."""
    pytest.skip(DID_NOT_RUN_PREFIX + reason)


def not_applicable(reason: str) -> NoReturn:
    """End a test that makes no sense for this wheel on this device: no gap."""
    pytest.skip(NOT_APPLICABLE_PREFIX + reason)


def covers(operator: str, capability: tuple[int, int] | None = None) -> bool:
    """Tell whether the wheel holds an image of an operator for a device, cuda:0 by default."""
    if operator in ON_EVERY_DEVICE:
        return True
    if capability is None:
        capability = torch.cuda.get_device_capability(0)
    return any(target.runs_on(capability) for target in fp4aot._MANIFEST.targets_of(operator))


def require(*operators: str) -> None:
    """End a test of operators that the wheel does not hold for this device."""
    absent = [operator for operator in operators if not covers(operator)]
    if absent:
        major, minor = torch.cuda.get_device_capability(0)
        not_applicable(
            f"this wheel holds no image of {', '.join(absent)} for compute capability "
            f"{major}.{minor}; its refusal is tested"
        )


def describe() -> dict[str, Any]:
    """Say what is tested, where and when."""
    manifest = fp4aot._MANIFEST
    driver_cuda = torch.ops.fp4aot._cuda_driver_version()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "wheel": {
            "version": fp4aot.__version__,
            "preset": manifest.preset,
            "lowered": manifest.is_lowered,
            "lowering": manifest.lowering,
            "plan_hash": manifest.plan_hash,
            "library_sha256": manifest.library_sha256,
            "versions": dict(manifest.versions),
        },
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "driver": _driver(),
        "driver_cuda": f"{driver_cuda // 1000}.{driver_cuda % 1000 // 10}",
        "platform": platform.platform(),
        "devices": [
            {
                "index": index,
                "name": torch.cuda.get_device_name(index),
                "capability": list(torch.cuda.get_device_capability(index)),
            }
            for index in range(torch.cuda.device_count())
        ],
    }


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown (no nvidia-smi)"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else "none"
