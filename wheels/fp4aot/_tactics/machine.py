"""The GPUs of this machine, as `python -m fp4aot tune` uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fp4aot import _gpus, _manifest
from fp4aot._gpus import Gpu
from fp4aot._tactics.active import SetTables, set_operators_tables
from fp4aot._tactics.bench import Bench
from fp4aot._tactics.cuda_timer import CudaTimer
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.wheel import Wheel, this_wheel


@dataclass(frozen=True)
class Machine:
    """What the commands need of a machine.

    Parameters
    ----------
    gpus
        Those that torch sees.
    wheel
        What is installed.
    carried
        The targets of the wheel's FP4 GEMMs and mixtures of experts, for messages.
    set_tables
        The operators' setter.
    make_bench
        Prepares measuring on one GPU.
    moe_tactic_count
        How many tactics a product of a mixture of experts has on a GPU: of 1 or 2, with fused
        finalize or without.
    """

    gpus: tuple[Gpu, ...]
    wheel: Wheel
    carried: tuple[str, ...]
    set_tables: SetTables
    make_bench: Callable[[Gpu], Bench]
    moe_tactic_count: Callable[[Gpu, int, bool], int]

    def find_capability(self, name: str) -> tuple[int, int] | None:
        """Return the capability of a GPU here, by its name."""
        return next((gpu.capability for gpu in self.gpus if gpu.name == name), None)

    def moe_counts(
        self, capability: tuple[int, int], use_fused_finalize: bool
    ) -> tuple[int, int] | None:
        """Count the tactics of both products; None without such a GPU, or kernels for it."""
        gpu = next((gpu for gpu in self.gpus if gpu.capability == capability), None)
        if gpu is None or not self.wheel.has_moe(*capability):
            return None
        return (
            self.moe_tactic_count(gpu, 1, use_fused_finalize),
            self.moe_tactic_count(gpu, 2, use_fused_finalize),
        )


def this_machine() -> Machine:
    """Describe this machine. Initialises CUDA where there is a GPU."""
    manifest = _manifest.read()
    return Machine(
        gpus=_gpus.visible(),
        wheel=this_wheel(manifest),
        carried=tuple(
            str(target)
            for target in sorted(
                {*manifest.targets_of("mm_fp4"), *manifest.targets_of("cutlass_fused_moe")}
            )
        ),
        set_tables=set_operators_tables,
        make_bench=_bench,
        moe_tactic_count=_moe_tactic_count,
    )


def choose(machine: Machine, device: str) -> Gpu:
    """Return the GPU to measure on.

    Parameters
    ----------
    machine
        The machine.
    device
        What ``--device`` says: ``cuda`` or ``cuda:0``.

    Raises
    ------
    TacticsError
        When there is none, or the wheel has neither FP4 GEMM nor mixture of experts for it.
    """
    if not machine.gpus:
        raise TacticsError(
            "fp4aot.tactics: PyTorch sees no GPU on this machine, and tactics are measured on the "
            "device that will use them; run this there (python -m fp4aot doctor says more)"
        )
    kind, _, index = device.partition(":")
    present = {str(gpu.index): gpu for gpu in machine.gpus}
    if kind != "cuda" or (index or "0") not in present:
        names = ", ".join(str(gpu) for gpu in machine.gpus)
        raise TacticsError(
            f"fp4aot.tactics: --device: got {device!r}, expected one of {names}; choose one of them"
        )
    gpu = present[index or "0"]
    wheel = machine.wheel
    if wheel.tactic_count(*gpu.capability) == 0 and not wheel.has_moe(*gpu.capability):
        carried = ", ".join(machine.carried) or "no architecture at all"
        raise TacticsError(
            f"fp4aot.tactics: this wheel has no FP4 GEMM for {gpu}, and no mixture of experts; it "
            f"has them for {carried}. Choose another --device, or install a wheel that covers it "
            "(python -m fp4aot doctor says more)"
        )
    return gpu


def _bench(gpu: Gpu) -> Bench:
    device = torch.device("cuda", gpu.index)
    return Bench(
        call=torch.ops.fp4aot.mm_fp4.out,
        call_moe=torch.ops.fp4aot.cutlass_fused_moe.out,
        timer=CudaTimer(device),
        synchronize=lambda: torch.cuda.synchronize(device),
        device=device,
    )


def _moe_tactic_count(gpu: Gpu, product: int, use_fused_finalize: bool) -> int:
    count: int = torch.ops.fp4aot._cutlass_fused_moe_tactic_count(
        product, use_fused_finalize, gpu.index
    )
    return count
