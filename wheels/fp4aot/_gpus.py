"""The GPUs of this machine and their driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

# The kernel's part of the driver tells its version here, on Linux other than WSL.
KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
_NVRM = re.compile(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)(?:\s|$)", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Parameters
    ----------
    index, name, capability
        As torch reports them.
    """

    index: int
    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return "cuda:{} ({}, compute capability {}.{})".format(
            self.index, self.name, *self.capability
        )


def visible() -> tuple[Gpu, ...]:
    """List the GPUs that torch sees. Initialises CUDA where there is one."""
    cuda = torch.cuda
    return tuple(
        Gpu(index, cuda.get_device_name(index), cuda.get_device_capability(index))
        for index in range(cuda.device_count())
    )


def driver_version(path: Path = KERNEL_DRIVER) -> str | None:
    """Return the version of the NVIDIA driver in the kernel, or None where it does not tell."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _NVRM.search(text)
    return found[1] if found else None
