"""Which image of a library belongs to which module, what each takes, and whether it can work.

A library holds the images of all its modules, in the order in which the plan lists the translation
units. That order is not taken on trust: every container must have exactly the targets of its unit,
and the machine code of a module must hold what only kernels of its kind do.
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot.architectures import Architecture
from aot.audit import fatbin, instructions, machine_code
from aot.audit.fatbin import Packed
from aot.audit.images import Image
from aot.audit.instructions import Instruction
from aot.audit.machine_code import Scan
from aot.toolchain import Toolkit

_DISASSEMBLERS: Final = 2  # one takes up to half a gigabyte: quantization has 15 MB of code

Progress = Callable[[int, int, str], None]
"""Is told how many images have been read, of how many, and of which module the last one is."""


def no_progress(done: int, total: int, module: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class DeviceUnit:
    """A translation unit with device code, as the plan has it.

    Parameters
    ----------
    module, name
        Names of its module, and of itself within it.
    architectures
        The targets that it is compiled for.
    """

    module: str
    name: str
    architectures: tuple[Architecture, ...]


@dataclass(frozen=True)
class ModuleImages:
    """The images of one module for one target.

    Parameters
    ----------
    module, architecture
        Whose, and for what, such as ``"12.0f"``.
    images
        How many: one for each translation unit.
    size
        Bytes of machine code, as the driver unpacks it.
    packed_size
        Bytes that it takes in the library.
    instructions
        Those that the audit looks for and has found, as the disassembler calls them.
    """

    module: str
    architecture: str
    images: int
    size: int
    packed_size: int
    instructions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _OwnedImage:
    """One image, and where it belongs."""

    unit: DeviceUnit
    architecture: Architecture
    packed: Packed
    cubin: Path

    @property
    def wanted(self) -> tuple[Instruction, ...]:
        """What its machine code must hold."""
        name = f"{self.unit.module}/{self.unit.name}"
        for pattern, required in instructions.REQUIRED:
            if fnmatch.fnmatchcase(name, pattern):
                return tuple(one for one in required if self.architecture.major in one.majors)
        return ()

    @property
    def may_be_empty(self) -> bool:
        """Whether it needs no kernel."""
        return any(
            fnmatch.fnmatchcase(self.unit.name, pattern) for pattern in instructions.WITHOUT_KERNELS
        )


def audit_modules(
    path: Path,
    listed: Sequence[Image],
    units: Sequence[DeviceUnit],
    toolkit: Toolkit,
    progress: Progress = no_progress,
) -> tuple[tuple[ModuleImages, ...], tuple[str, ...]]:
    """Read the machine code of a library, module by module.

    Parameters
    ----------
    path
        The library, or an object.
    listed
        Its images, as `aot.audit.images.read_images` lists them.
    units
        What the plan makes, in its order.
    toolkit
        Its ``cuobjdump`` and ``nvdisasm`` are run.
    progress
        Is told how far it is.

    Returns
    -------
    tuple[tuple[ModuleImages, ...], tuple[str, ...]]
        What each module has, and what is wrong with it.
    """
    containers = fatbin.read_containers(path)
    targets = [image.architecture for image in listed if image.kind == "cubin"]
    problem = _order_problem(containers, targets, units)
    if problem:
        return (), (problem,)
    with tempfile.TemporaryDirectory() as scratch:
        cubins = machine_code.extract(path, Path(scratch), toolkit)
        packed = [one for container in containers for one in container]
        owners = [unit for unit, held in zip(units, containers, strict=True) for _ in held]
        owned = [_OwnedImage(*parts) for parts in zip(owners, targets, packed, cubins, strict=True)]
        scans = _scan_all(owned, toolkit, progress)
        sizes = {image: image.cubin.stat().st_size for image in owned}
    groups: dict[tuple[str, Architecture], list[_OwnedImage]] = {}
    for image in owned:
        groups.setdefault((image.unit.module, image.architecture), []).append(image)
    held = tuple(
        ModuleImages(
            module=module,
            architecture=str(architecture),
            images=len(group),
            size=sum(sizes[image] for image in group),
            packed_size=sum(image.packed.size for image in group),
            instructions=_found(scans[image] for image in group),
        )
        for (module, architecture), group in groups.items()
    )
    problems = tuple(
        f"{module} for {architecture}: {problem}"
        for (module, architecture), group in groups.items()
        for problem in _problems(group, scans)
    )
    return held, problems


def _order_problem(
    containers: Sequence[Sequence[Packed]],
    targets: Sequence[Architecture],
    units: Sequence[DeviceUnit],
) -> str | None:
    """Check that what the file holds is what the plan makes, unit by unit (case 7)."""
    packed = [one.capability for container in containers for one in container]
    if packed != [target.capability for target in targets]:
        return (
            f"packs {len(packed)} images where cuobjdump lists {len(targets)}, or in another "
            f"order; the format has changed: update {fatbin.__name__}"
        )
    left = iter(targets)
    for unit, container in zip(units, containers, strict=False):
        found = sorted(next(left) for _ in container)
        if found != sorted(unit.architectures):
            return (
                f"holds images for {' '.join(map(str, found))} where the plan has those of "
                f"{unit.module}/{unit.name} for {' '.join(map(str, sorted(unit.architectures)))}"
            )
    if len(containers) != len(units):
        return (
            f"holds the device code of {len(containers)} translation units; "
            f"its plan makes {len(units)}"
        )
    return None


def _scan_all(
    owned: Sequence[_OwnedImage], toolkit: Toolkit, progress: Progress
) -> dict[_OwnedImage, Scan]:
    """Disassemble what something is looked for in, a few images at once."""
    demanding = [image for image in owned if image.wanted]
    scans = {image: Scan() for image in owned}
    with ThreadPoolExecutor(_DISASSEMBLERS) as pool:
        tasks = {
            pool.submit(machine_code.scan, image.cubin, image.wanted, toolkit): image
            for image in demanding
        }
        try:
            for done, task in enumerate(as_completed(tasks), start=1):
                scans[tasks[task]] = task.result()
                progress(done, len(demanding), tasks[task].unit.module)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return scans


def _found(scans: Iterator[Scan]) -> tuple[str, ...]:
    return tuple(
        sorted({name for scan in scans for names in scan.found.values() for name in names})
    )


def _problems(group: Sequence[_OwnedImage], scans: dict[_OwnedImage, Scan]) -> Iterator[str]:
    """Say what the images of one module for one target lack."""
    demanding = [image for image in group if image.wanted]
    with_kernels = [image for image in demanding if scans[image].kernels]
    empty = [i.unit.name for i in demanding if not scans[i].kernels and not i.may_be_empty]
    if empty:
        yield f"{_counted(empty, demanding)} hold no kernel: all of it was compiled out"
    for wanted in dict.fromkeys(one for image in demanding for one in image.wanted):
        lacking = [i.unit.name for i in with_kernels if wanted in scans[i].missing()]
        if lacking:
            yield (
                f"{_counted(lacking, with_kernels)} lack {wanted.what}, which is "
                f"{wanted.mnemonic.pattern} in machine code; likely cause: {wanted.cause}"
            )


def _counted(names: Sequence[str], among: Sequence[object]) -> str:
    return f"{len(names)} of {len(among)} images ({names[0]}{', ...' if len(names) > 1 else ''})"
