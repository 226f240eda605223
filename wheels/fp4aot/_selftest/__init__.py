"""``python -m fp4aot selftest``: every operator against the reference, on the devices present."""

from __future__ import annotations

import time

import torch

from fp4aot import _manifest
from fp4aot._selftest.checks import run_case
from fp4aot._selftest.inputs import cases
from fp4aot._selftest.report import Report, render
from fp4aot._selftest.weights import examine

__all__ = ["Report", "render", "run"]


def run(weights: str | None = None) -> Report:
    """Run the self-test.

    Parameters
    ----------
    weights
        A ``.safetensors`` file, or an installed package that contains one; quantized as well.
    """
    start = time.monotonic()
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    outcomes = tuple(
        run_case(case, device)
        for device in devices
        for case in cases()
        if case.devices == "any" or device.type == "cpu"
    )
    model = examine(weights) if weights else None
    return Report(
        tuple(str(device) for device in devices),
        outcomes,
        model,
        time.monotonic() - start,
        _manifest.read().label,
    )
