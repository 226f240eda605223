"""What a table must fit: the wheel, and what is known of the driver without touching a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fp4aot import _gpus, _manifest


@dataclass(frozen=True)
class Wheel:
    """The facts that decide whether a table fits.

    Parameters
    ----------
    version, plan_hash, flashinfer, cuda_runtime
        As in the manifest.
    driver
        Version of the NVIDIA driver, or None where there is none or it is not known.
    tactic_count
        How many tactics the wheel's FP4 GEMM for a capability has; 0 where it has no such GEMM.
    has_moe
        Whether the wheel has a mixture of experts for a capability. How many tactics its products
        have, only a device can tell.
    """

    version: str
    plan_hash: str
    flashinfer: str
    cuda_runtime: str
    driver: str | None
    tactic_count: Callable[[int, int], int]
    has_moe: Callable[[int, int], bool]


def this_wheel(manifest: _manifest.Manifest | None = None) -> Wheel:
    """Describe the wheel that is installed. Needs the operators, and no GPU."""
    manifest = manifest or _manifest.read()
    return Wheel(
        version=manifest.version,
        plan_hash=manifest.plan_hash,
        flashinfer=dict(manifest.versions)["flashinfer"],
        cuda_runtime=manifest.cuda_version,
        driver=_gpus.driver_version(),
        tactic_count=torch.ops.fp4aot._mm_fp4_tactic_count.default,
        has_moe=partial(torch.ops.fp4aot._has_kernel.default, "nvfp4_moe"),
    )
