"""What differs between the machines that a library is built for. Data, no logic of its own.

A library for another machine than this one is cross-built: nvcc, its assembler and FlashInfer's
generators run here, and only what they hand to the host compiler is for the other machine.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aot.errors import PlanError


@dataclass(frozen=True)
class Platform:
    """A machine that a library can run on.

    Parameters
    ----------
    machine
        Its name, as ``uname -m`` prints it there.
    elf_machine
        The machine in the head of its ELF files, as pyelftools names it.
    loader
        The file name of its dynamic loader.
    emulator
        The program of QEMU that runs its programs elsewhere.
    cuda_target
        The folder of its libraries below ``targets`` in NVIDIA's own toolkits.
    package_tags
        Platform tags of NVIDIA's packages for it, which come with the static CUDA runtime.
    """

    machine: str
    elf_machine: str
    loader: str
    emulator: str
    cuda_target: str
    package_tags: tuple[str, ...]

    @property
    def is_here(self) -> bool:
        """Whether this machine is one."""
        return self.machine == platform.machine()


def _platform(machine: str, loader: str, cuda_target: str) -> Platform:
    glibc = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
    return Platform(
        machine=machine,
        elf_machine=f"EM_{machine.upper()}",
        loader=loader,
        emulator=f"qemu-{machine}",
        cuda_target=cuda_target,
        package_tags=tuple(f"{tag}_{machine}" for tag in glibc),
    )


PLATFORMS: Final[Mapping[str, Platform]] = MappingProxyType(
    {
        one.machine: one
        for one in (
            _platform("x86_64", "ld-linux-x86-64.so.2", "x86_64-linux"),
            # Grace (GB200, GB300), Thor and DGX Spark: NVIDIA's "server base system architecture".
            _platform("aarch64", "ld-linux-aarch64.so.1", "sbsa-linux"),
        )
    }
)
"""By machine."""


def platform_named(machine: str | None = None) -> Platform:
    """Look a platform up.

    Parameters
    ----------
    machine
        ``"x86_64"`` or ``"aarch64"``; by default this machine.

    Raises
    ------
    PlanError
        When libraries are not built for it, with those that they are built for.
    """
    wanted = machine or platform.machine()
    try:
        return PLATFORMS[wanted]
    except KeyError:
        raise PlanError(
            f"libraries are not built for the machine {wanted!r}; they are for "
            f"{' and '.join(PLATFORMS)}"
        ) from None


def check_wheel_platform(machine: str) -> None:
    """Refuse a build whose wheel would be tagged for another machine than its library is for.

    Python's tools tag a wheel for this machine, unless they are told otherwise.

    Raises
    ------
    PlanError
        With both, and how to build such a wheel.
    """
    tagged = sysconfig.get_platform()
    if tagged != f"linux-{machine}":
        raise PlanError(
            f"the wheel would be tagged {tagged}, and its library is for {machine}; build it with "
            f"`python -m aot build --platform {machine}`, or set _PYTHON_HOST_PLATFORM to "
            f"linux-{machine}"
        )
