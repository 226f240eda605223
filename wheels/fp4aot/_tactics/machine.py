"""The GPUs of this machine, as `python -m fp4aot tune` uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fp4aot import _manifest
from fp4aot._tactics.active import SetTable
from fp4aot._tactics.cuda_timer import CudaTimer
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.measure import Bench
from fp4aot._tactics.wheel import Wheel, this_wheel


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
        The targets of the wheel's FP4 GEMMs, for messages.
    set_table
        The operator's setter.
    make_bench
        Prepares measuring on one GPU.
    """

    gpus: tuple[Gpu, ...]
    wheel: Wheel
    carried: tuple[str, ...]
    set_table: SetTable
    make_bench: Callable[[Gpu], Bench]

    def find_capability(self, name: str) -> tuple[int, int] | None:
        """Return the capability of a GPU here, by its name."""
        return next((gpu.capability for gpu in self.gpus if gpu.name == name), None)


def this_machine() -> Machine:
    """Describe this machine. Initialises CUDA where there is a GPU."""
    manifest = _manifest.read()
    return Machine(
        gpus=tuple(
            Gpu(
                index,
                torch.cuda.get_device_name(index),
                torch.cuda.get_device_capability(index),
            )
            for index in range(torch.cuda.device_count())
        ),
        wheel=this_wheel(manifest),
        carried=tuple(str(target) for target in sorted(set(manifest.targets_of("mm_fp4")))),
        set_table=torch.ops.fp4aot._set_mm_fp4_tactics.default,
        make_bench=_bench,
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
        When there is none, or the wheel has no FP4 GEMM for it.
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
    if machine.wheel.tactic_count(*gpu.capability) == 0:
        carried = ", ".join(machine.carried) or "no architecture at all"
        raise TacticsError(
            f"fp4aot.tactics: this wheel has no FP4 GEMM for {gpu}; it has them for {carried}. "
            "Choose another --device, or install a wheel that covers it "
            "(python -m fp4aot doctor says more)"
        )
    return gpu


def _bench(gpu: Gpu) -> Bench:
    device = torch.device("cuda", gpu.index)
    return Bench(
        call=torch.ops.fp4aot.mm_fp4.out,
        timer=CudaTimer(device),
        synchronize=lambda: torch.cuda.synchronize(device),
        device=device,
    )
