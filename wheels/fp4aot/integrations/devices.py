"""Which GPUs this machine has, without initializing CUDA: a parent that forks must not."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch

Capability = tuple[int, int]

# NVML's ways to say that there is no NVIDIA driver.
_NO_DRIVER = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")


def capabilities(environment: Mapping[str, str] = os.environ) -> tuple[Capability, ...] | None:
    """List the compute capabilities of the visible GPUs.

    Returns
    -------
    tuple of pairs, or None
        Empty without a GPU, or with a PyTorch that cannot use one. None when there is a GPU and
        nobody can tell which.
    """
    if torch.version.cuda is None:
        return ()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        # torch counts through NVML too; a negative number is its way to say that it cannot.
        return () if torch.cuda._device_count_nvml() == 0 else None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return () if type(error).__name__ in _NO_DRIVER else None
    try:
        found = [_capability(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return tuple(found[index] for index in visible(len(found), environment))


def visible(count: int, environment: Mapping[str, str]) -> list[int]:
    """Choose devices as ``CUDA_VISIBLE_DEVICES`` does; all of them where it names no numbers.

    Names of devices (UUIDs) are not resolved: a machine's GPUs are usually alike.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(count))
    chosen = []
    for part in text.split(",") if text.strip() else ():
        if not part.strip().lstrip("-").isdigit():
            return list(range(count))
        index = int(part)
        # CUDA stops at the first number that is no device.
        if not 0 <= index < count:
            break
        chosen.append(index)
    return chosen


def _capability(nvml: Any, index: int) -> Capability:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(index))
    return int(major), int(minor)
