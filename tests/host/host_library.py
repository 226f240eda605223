"""Builds the operators' real C++ over recording stand-ins for FlashInfer and CUDA, and loads it.

The library defines the operators in the namespace `fp4aot_host`, for every device. It needs what a
wheel's build leaves in `build/`: FlashInfer's environment, for headers and the TVM-FFI runtime, and
the headers of the CUDA toolkit. No GPU is needed, and no nvcc.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aot import catalog, files, pipeline
from aot.codegen.flashinfer_functions import flashinfer_functions
from aot.codegen.kernel_table import kernel_table
from aot.codegen.symbols import entry_symbol
from aot.compile.own_sources import GENERATED_FOLDER, own_sources
from aot.plan import BuildPlan, ModulePlan

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMESPACE = "fp4aot_host"
SANITIZERS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "-D_GLIBCXX_ASSERTIONS",
)
# A device of each compute capability, in the order of stand_ins.cpp.
DEVICES = {(10, 0): 0, (10, 3): 1, (11, 0): 2, (12, 0): 3, (12, 1): 4, (9, 0): 5}


def place(*, sanitized: bool) -> Path:
    """Return where `build` puts the library."""
    return ROOT / "build" / ("host-sanitized" if sanitized else "host") / "libfp4aot_host.so"


def build(*, sanitized: bool) -> Path:
    """Compile what is not up to date, and return the C++ compiler.

    Parameters
    ----------
    sanitized
        Whether with AddressSanitizer and UndefinedBehaviorSanitizer, whose run time must then be
        loaded before Python.
    """
    library = place(sanitized=sanitized)
    folder = library.parent
    prepared = pipeline.prepare("quick", ROOT / "build")
    folder.mkdir(parents=True, exist_ok=True)
    plan = replace(prepared.plan, modules=_modules())
    files.write_text(folder / "kernel_entries.cpp", kernel_table(plan))
    files.write_text(folder / "record_functions.cpp", _record_functions(plan))
    files.write_text(folder / "flashinfer_functions.h", flashinfer_functions(catalog.MODULES))
    added = [
        *(f"-DFP4AOT_NAMESPACE={NAMESPACE}", "-DFP4AOT_DEVICE_KEY=CompositeExplicitAutograd"),
        *("-DFP4AOT_HOST_KEY=CompositeExplicitAutograd", "-g1", f"-I{HERE}"),
        *(SANITIZERS if sanitized else ()),
    ]
    sources = {}
    flags: tuple[str, ...] = ()
    for source in own_sources(plan, prepared.roots, folder):
        flags = tuple(
            prepared.roots.expand(flag).replace(GENERATED_FOLDER, str(folder))
            for flag in source.flags
        )
        sources[source.name.replace("/", "_")] = (source.path, flags)
    # The last are the operators' flags: those of our own sources too.
    sources |= {
        path.stem: (path, flags)
        for path in (HERE / "stand_ins.cpp", folder / "record_functions.cpp")
    }
    compiler = prepared.host_compiler.path
    _write_ninja(folder / "build.ninja", str(compiler), sources, added, library)
    subprocess.run([_program("ninja"), "-C", str(folder), "--quiet"], check=True)
    return compiler


def _modules() -> tuple[ModulePlan, ...]:
    """Every module there is, for all its targets, with nothing to compile."""
    return tuple(
        ModulePlan(
            name=module.name,
            family=module.family,
            architectures=module.architectures,
            images=module.architectures,
            units=(),
            functions=module.functions,
        )
        for module in catalog.MODULES
    )


def _record_functions(plan: BuildPlan) -> str:
    """Define the entry point of each function of each module."""
    lines = ['#include "stand_ins.h"', 'extern "C" {']
    for module in plan.modules:
        for function in module.functions:
            if function.operator:
                lines += [
                    f"int {entry_symbol(module.name, function.name)}"
                    "(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {",
                    f'  return record_call("{function.name}", arguments, count, result);',
                    "}",
                ]
    return "\n".join((*lines, "}", ""))


def _write_ninja(
    path: Path,
    compiler: str,
    sources: dict[str, tuple[Path, tuple[str, ...]]],
    added: list[str],
    library: Path,
) -> None:
    link = [
        *("-shared", f"-Wl,--version-script={HERE / 'exported.map'}", "-Wl,--no-as-needed"),
        str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"),
        *("-ldl", "-lpthread"),
        *(SANITIZERS if "-fsanitize=address,undefined" in added else ()),
    ]
    lines = [
        "rule compile",
        f"  command = {compiler} $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {compiler} -o $out $in {shlex.join(link)}",
    ]
    for name, (source, flags) in sources.items():
        lines += [
            f"build {name}.o: compile {source}",
            f"  flags = {shlex.join((*flags, *added))}",
        ]
    objects = " ".join(f"{name}.o" for name in sources)
    lines += [f"build {library.name}: link {objects} | {HERE / 'exported.map'}", ""]
    files.write_text(path, "\n".join(lines))


def _program(name: str) -> str:
    """Find a program of this environment."""
    return str(Path(sys.executable).parent / name)


class HostLibrary:
    """The loaded library, and the machine that its stand-ins pretend to be."""

    def __init__(self, path: Path) -> None:
        torch.ops.load_library(str(path))
        self._functions = ctypes.CDLL(str(path))
        self._functions.fp4aot_host_calls.restype = ctypes.c_char_p
        self._functions.fp4aot_host_stream.restype = ctypes.c_uint64
        self._functions.fp4aot_host_allocated.restype = ctypes.c_int64
        self._functions.fp4aot_host_need_workspace.argtypes = [ctypes.c_int64]

    def reset(self, capability: tuple[int, int], *, current_device: int | None = None) -> None:
        """Forget everything; tensors are on a device of this compute capability from now on.

        Parameters
        ----------
        capability
            Of the device.
        current_device
            Which device is current; by default, that of the tensors.
        """
        device = DEVICES[capability]
        current = device if current_device is None else current_device
        self._functions.fp4aot_host_reset(device, current)

    def fail(self) -> None:
        """Make FlashInfer's functions raise."""
        self._functions.fp4aot_host_fail(True)

    def set_cuda_error(self, error: int) -> None:
        """Make CUDA report an error after the next launch."""
        self._functions.fp4aot_host_set_error(error)

    def need_workspace(self, size: int) -> None:
        """Make FlashInfer's functions ask their environment for a workspace."""
        self._functions.fp4aot_host_need_workspace(size)

    @property
    def current_device(self) -> int:
        """The device that is current."""
        return int(self._functions.fp4aot_host_current_device())

    def stream(self, device: int) -> int:
        """Return the stream that a FlashInfer function would launch on."""
        return int(self._functions.fp4aot_host_stream(device))

    @property
    def allocated(self) -> int:
        """How many tensors the operators have allocated and neither freed nor written off."""
        return int(self._functions.fp4aot_host_allocated())

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What FlashInfer's functions were called with since `reset`."""
        text: bytes = self._functions.fp4aot_host_calls()
        return list(json.loads(text))


@contextmanager
def public_functions() -> Iterator[dict[str, Any]]:
    """Yield what the package's modules offer, by name, imported so that they call the library.

    They look their operators up when they are imported: they are imported anew for it.
    """
    package = sys.modules["fp4aot"]
    modules = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("fp4aot.")}
    attributes, operators = dict(vars(package)), torch.ops.fp4aot
    torch.ops.fp4aot = getattr(torch.ops, NAMESPACE)
    try:
        found: dict[str, Any] = {}
        for path in sorted(Path(package.__path__[0]).glob("[a-z]*.py")):
            found |= vars(importlib.import_module(f"fp4aot.{path.stem}"))
        yield found | vars(importlib.import_module("fp4aot._recipes"))
    finally:
        torch.ops.fp4aot = operators
        for name in [name for name in sys.modules if name.startswith("fp4aot.")]:
            del sys.modules[name]
        sys.modules |= modules
        vars(package).clear()
        vars(package).update(attributes)


def main() -> None:
    """Build the library with sanitizers, and print what must be loaded before Python."""
    compiler = build(sanitized=True)
    found = []
    # Without libstdc++ beside it, the sanitizer does not find what throws an exception.
    for library in ("libasan.so", "libstdc++.so.6"):
        question = [compiler, f"-print-file-name={library}"]
        done = subprocess.run(question, check=True, capture_output=True, text=True)
        found.append(done.stdout.strip())
    print(":".join(found))


if __name__ == "__main__":
    main()
