"""Build what the checks run on a Hopper: ``python tests/lowering/build.py TOOLKIT FOLDER``.

Two programs are compiled to PTX for their Blackwell, lowered, and assembled; then once more with
each wrong replacement. Only what lies in FOLDER has to travel to the machine with the GPU.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from controls import CONTROLS, TARGETS  # noqa: E402

from aot.errors import BuildError  # noqa: E402
from aot.lowering.lower import lower_text  # noqa: E402
from aot.lowering.tensor_map_coordinates import WRAPPED_FUNCTIONS, compiler_flags  # noqa: E402
from aot.process import run  # noqa: E402

LOWERING = HERE.parents[1] / "aot" / "lowering"


def build_program(toolkit: Path, program: str, folder: Path) -> None:
    """Make ``<program>.cubin`` and a cubin for each of its controls."""
    ptx = folder / f"{program}.ptx"
    virtual = f"compute_{TARGETS[program]}"
    run(
        [
            *(toolkit / "bin/nvcc", "-std=c++17", "-O2", f"-gencode=arch={virtual},code={virtual}"),
            *("-ptx", HERE / f"{program}.cu", "-o", ptx),
        ],
        purpose=f"compile {program}.cu",
        error=BuildError,
    )
    right = lower_text(ptx.read_text())
    assemble(toolkit, program, right, folder)
    for control in CONTROLS:
        if control.program != program:
            continue
        if control.old not in right:
            raise BuildError(f"the control {control.name} changes nothing: {control.old}")
        assemble(toolkit, control.name, right.replace(control.old, control.new), folder)
    ptx.unlink()


def assemble(toolkit: Path, name: str, text: str, folder: Path) -> None:
    """Assemble PTX for Hopper."""
    source = folder / f"{name}.lowered.ptx"
    source.write_text(text)
    run(
        [toolkit / "bin/ptxas", "-arch=sm_90a", source, "-o", folder / f"{name}.cubin"],
        purpose=f"assemble {name}",
        error=BuildError,
    )
    source.unlink()


def build_tensor_map_library(toolkit: Path, path: Path, flags: Iterable[str]) -> None:
    """Link the tensor map wrapper as a lowered library does."""
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED_FUNCTIONS]
    run(
        [
            *("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *(f"-isystem{toolkit / 'include'}", *flags),
            *(LOWERING / "tensor_map.cpp", HERE / "encode.cpp", *wraps),
            *(toolkit / "lib64" / "libcudart_static.a", "-lrt", "-lpthread", "-ldl"),
            *("-static-libstdc++", "-static-libgcc", "-o", path),
        ],
        purpose="link the tensor map wrapper",
        error=BuildError,
    )


def main() -> int:
    """Build everything into an empty folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("toolkit", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    try:
        for program in TARGETS:
            build_program(given.toolkit, program, given.folder)
        right = compiler_flags()
        wrong = tuple(flag.replace("TAG=", "TAG=1+") for flag in right)
        for name, flags in (("tensor_map", right), ("tensor_map_elsewhere", wrong)):
            build_tensor_map_library(given.toolkit, given.folder / f"lib{name}.so", flags)
    except BuildError as reason:
        sys.stderr.write(f"{reason}\n")
        return reason.exit_code
    for file in ("controls.py", "driver.py", "check.py"):
        shutil.copy2(HERE / file, given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
