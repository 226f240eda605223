"""What lowered kernels' host code takes the device for: the one that it was written for.

FlashInfer's host code asks for the compute capability and chooses by the answer, so a Hopper's own
would lead a lowered module away from its kernels. Each lowered module asks a function of this
library instead, which answers with the capability that the module was compiled for, and with the
device's own words to every other question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aot.architectures import Architecture
from aot.plan import BuildPlan, ModulePlan

_ASKED: Final = "cudaDeviceGetAttribute"
# cudaDevAttrComputeCapabilityMajor and -Minor.
_MAJOR: Final = 75
_MINOR: Final = 76


def lowered_symbols(module: ModulePlan) -> dict[str, str]:
    """Say what a module's undefined symbols are renamed to; nothing where it is not lowered."""
    return {_ASKED: _name(_written_for(module))} if _is_lowered(module) else {}


def lowered_functions(plan: BuildPlan) -> Iterator[str]:
    """Yield the lines of C++ that define them, for the inside of an ``extern "C"`` block."""
    targets = sorted({_written_for(module) for module in plan.modules if _is_lowered(module)})
    if targets:
        # The enumerations are ints to the linker: no header of CUDA's is needed.
        yield f"int {_ASKED}(int* value, int attribute, int device);"
    for target in targets:
        yield (
            f"int {_name(target)}(int* value, int attribute, int device) {{\n"
            f"  if (attribute != {_MAJOR} && attribute != {_MINOR}) {{\n"
            f"    return {_ASKED}(value, attribute, device);\n"
            "  }\n"
            f"  *value = attribute == {_MAJOR} ? {target.major} : {target.minor};\n"
            "  return 0;\n"
            "}"
        )


def _is_lowered(module: ModulePlan) -> bool:
    return module.images != module.architectures


def _written_for(module: ModulePlan) -> Architecture:
    return Architecture.parse(module.architectures[0])


def _name(target: Architecture) -> str:
    return f"fp4aot_device_attribute_{target.major}_{target.minor}"
