"""Disassemble images, and look for the instructions that a kernel is nothing without.

A define or a suffix that gets lost on the way leaves a library that builds, loads and launches, and
computes garbage or races. Only the machine code shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from aot import process
from aot.audit.instructions import Instruction
from aot.errors import AuditError, ToolchainError
from aot.toolchain import Toolkit

_KERNEL = re.compile(r'\s*\.other\s+(\S+),@"STO_CUDA_ENTRY')
# An instruction, after its address and its predicate.
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)")
_EXTRACTED = re.compile(r"^Extracting ELF file\s+\d+: (\S+)$", re.MULTILINE)


@dataclass
class Scan:
    """What an image holds.

    Parameters
    ----------
    kernels
        The number of its kernels; those that were read, where reading stopped early.
    found
        The names of instructions that were looked for and found, for each of those.
    lacking
        For each of them, the number of kernels without one.
    """

    kernels: int = 0
    found: dict[Instruction, set[str]] = field(default_factory=dict)
    lacking: dict[Instruction, int] = field(default_factory=dict)

    def missing(self) -> tuple[Instruction, ...]:
        """List what should be there and is not."""
        return tuple(
            wanted
            for wanted in self.found
            if not self.found[wanted] or (wanted.every_kernel and self.lacking[wanted])
        )


def extract(path: Path, folder: Path, toolkit: Toolkit) -> tuple[Path, ...]:
    """Unpack all machine code of an ELF file, in the order of the file.

    Parameters
    ----------
    path
        The file.
    folder
        An empty folder.
    toolkit
        Its ``cuobjdump`` is run.
    """
    if toolkit.cuobjdump is None:
        raise ToolchainError(f"the toolkit in {toolkit.root} has no bin/cuobjdump")
    printed = process.run(
        [toolkit.cuobjdump, "-xelf", "all", path.resolve()],
        purpose=f"unpack the device code of {path}",
        error=AuditError,
        cwd=folder,
    ).stdout
    files = tuple(folder / name for name in _EXTRACTED.findall(printed))
    if len(files) != len(list(folder.iterdir())) or not all(file.is_file() for file in files):
        raise AuditError(
            f"cuobjdump names {len(files)} files with device code of {path} and wrote "
            f"{len(list(folder.iterdir()))}; its format has changed: update {__name__}"
        )
    return files


def scan(cubin: Path, wanted: Sequence[Instruction], toolkit: Toolkit) -> Scan:
    """Read machine code, for as long as there is something to look for.

    Parameters
    ----------
    cubin
        One image, unpacked.
    wanted
        What to look for.
    toolkit
        Its ``nvdisasm`` is run; what it prints can be a hundred megabytes and is never held.

    Raises
    ------
    ToolchainError
        When the toolkit has no ``nvdisasm``.
    AuditError
        When it fails.
    """
    if toolkit.nvdisasm is None:
        raise ToolchainError(
            f"the toolkit in {toolkit.root} has no bin/nvdisasm, which the audit needs; "
            "install it, or let the build install a toolkit from packages"
        )
    result = Scan(0, {one: set() for one in wanted}, dict.fromkeys(wanted, 0))
    whole = any(one.every_kernel for one in wanted)
    left: set[Instruction] = set()  # of the kernel that is being read
    lines = process.lines(
        [toolkit.nvdisasm, "--print-code", "--no-dataflow", cubin],
        purpose=f"disassemble {cubin.name}",
        error=AuditError,
    )
    with closing(lines):
        for line in lines:
            if kernel := _KERNEL.match(line):
                _end_of_kernel(result, left)
                result.kernels += 1
                left = {one for one in wanted if one.is_about(kernel[1])}
            elif left and (match := _INSTRUCTION.match(line)):
                for one in [one for one in left if one.mnemonic.fullmatch(match[1])]:
                    result.found[one].add(match[1])
                    left.remove(one)
                if not whole and all(result.found.values()):
                    return result
    _end_of_kernel(result, left)
    return result


def _end_of_kernel(result: Scan, left: set[Instruction]) -> None:
    for one in left:
        result.lacking[one] += 1
