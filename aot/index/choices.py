"""Which wheel is for which GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from aot import presets
from aot.architectures import Capability
from aot.index.collect import CudaIndex
from aot.index.wheel import IndexedWheel


@dataclass(frozen=True)
class Gpu:
    """A family of GPUs that are served alike.

    Parameters
    ----------
    name
        What people call them.
    capability
        Their compute capability.
    """

    name: str
    capability: Capability


GPUS: Final = (
    Gpu("B200, GB200", (10, 0)),
    Gpu("B300, GB300", (10, 3)),
    Gpu("Jetson Thor", (11, 0)),
    Gpu("RTX 50 series, RTX PRO 6000 Blackwell", (12, 0)),
    Gpu("DGX Spark (GB10)", (12, 1)),
    Gpu("H100, H200, GH200", (9, 0)),
)

_FAMILIES = MappingProxyType(
    {
        "quantization": "quantization",
        "kv_cache": "KV cache",
        "gemm": "GEMM",
        "moe": "mixture of experts",
        "group_gemm": "grouped GEMM",
    }
)


@dataclass(frozen=True)
class Choice:
    """A wheel that serves a GPU.

    Parameters
    ----------
    index, wheel
        Where it is, and which.
    machines
        Processors for which the same choice holds.
    pinned
        Whether its version must be named because a newer one would be installed otherwise.
    operators
        What runs on the GPU.
    """

    index: CudaIndex
    wheel: IndexedWheel
    machines: tuple[str, ...]
    pinned: bool
    operators: frozenset[str]

    @property
    def requirement(self) -> str:
        """What to tell the installer to install."""
        return f"fp4aot=={self.wheel.version}" if self.pinned else "fp4aot"

    @property
    def driver(self) -> str:
        """The driver that the wheel needs."""
        minimum = self.wheel.contents.minimum_driver
        return f"{minimum} or newer" if minimum else f"for CUDA {self.index.major}"

    @property
    def runs(self) -> str:
        """What runs on the GPU: complete families, single operators, and families without any."""
        words, missing = [], []
        for family, label in _FAMILIES.items():
            every = family_operators(family)
            here = every & self.operators
            words += [label] if here == every else sorted(here)
            missing += [] if here else [f"no {label}"]
        known = frozenset().union(*map(family_operators, _FAMILIES))
        words += sorted(self.operators - known)
        return ", ".join(words) + (f" ({', '.join(missing)})" if missing else "")

    def is_like(self, other: Choice) -> bool:
        """Tell whether two differ in nothing but the minor version of CUDA.

        A driver that runs one then runs the other.
        """
        return (
            self.index.major == other.index.major
            and self.driver == other.driver
            and self.machines == other.machines
            and self.requirement == other.requirement
            and self.operators == other.operators
            and self.wheel.contents.preset == other.wheel.contents.preset
        )


def family_operators(family: str) -> frozenset[str]:
    """Name the operators of a family that run compiled device code, in the fullest preset."""
    return frozenset(
        function.operator
        for module in presets.PRESETS["full"].modules
        if module.family == family
        for function in module.functions
        if function.operator and not function.operator.startswith("_")
        if not function.operator.endswith("_host")
    )


def offer(gpu: Gpu, indexes: Iterable[CudaIndex]) -> tuple[tuple[Choice, ...], ...]:
    """Choose from every index; choices that are alike are one group, the first to be shown.

    Returns
    -------
    tuple[tuple[Choice, ...], ...]
        In the order of the indexes.
    """
    groups: list[list[Choice]] = []
    for choice in (choice for index in indexes for choice in choices(gpu, index)):
        same = next((group for group in groups if choice.is_like(group[0])), None)
        if same is None:
            groups.append([choice])
        else:
            same.append(choice)
    return tuple(map(tuple, groups))


def choices(gpu: Gpu, index: CudaIndex) -> tuple[Choice, ...]:
    """Choose from an index what serves a GPU best, for each processor; the newest of equals.

    Returns
    -------
    tuple[Choice, ...]
        Equal choices for several processors are one; empty when nothing runs on the GPU.
    """
    found: dict[tuple[str, str, frozenset[str]], Choice] = {}
    for machine in sorted(
        {name for wheel in index.wheels for name in wheel.machines}, reverse=True
    ):
        # What an installer would take, first: the newest, and a pre-release only where there is
        # nothing else. The sort is stable, and an index has its newest version first.
        offered = sorted(
            (wheel for wheel in index.wheels if machine in wheel.machines),
            key=lambda wheel: wheel.version.is_prerelease,
        )
        best = max(offered, key=lambda wheel: len(wheel.contents.operators_on(gpu.capability)))
        operators = best.contents.operators_on(gpu.capability)
        if not operators:
            continue
        choice = Choice(index, best, (machine,), best is not offered[0], operators)
        key = (choice.requirement, best.contents.preset, operators)
        same = found.get(key)
        found[key] = replace(same, machines=(*same.machines, machine)) if same else choice
    return tuple(found.values())
