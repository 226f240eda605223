"""How the private TVM-FFI runtime and the operators are compiled: flags, with the plan's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot.errors import PlanError
from aot.lowering.tensor_map_coordinates import TENSOR_MAP_SOURCE, compiler_flags
from aot.plan import BuildPlan, Roots

COMMON_FLAGS: Final = (
    *("-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-ffunction-sections", "-fdata-sections"),
)
TVM_FFI_FLAGS: Final = (
    *("-std=c++17", "-DTVM_FFI_EXPORTS", "-DTVM_FFI_USE_LIBBACKTRACE=0", "-I@TVM_FFI@/include"),
)
GENERATED_FOLDER: Final = "@GENERATED@"
"""Token of the folder of what `aot.pipeline.write` makes from the plan and the catalogue."""
_OPERATOR_INCLUDES: Final = (
    *("-I@OPERATORS@", f"-I{GENERATED_FOLDER}"),
    # System headers: their warnings are not ours.
    *("-isystem@TORCH@/include", "-isystem@TVM_FFI@/include", "-isystem@CUDA@/include"),
)
GENERATED: Final = ("kernel_entries.cpp",)
"""Sources of operators that are made from the plan."""


@dataclass(frozen=True)
class OwnSource:
    """A source that is no part of a FlashInfer module.

    Parameters
    ----------
    name
        ``tvm_ffi/error`` or ``operators/matmul``.
    path
        On this machine.
    flags
        All flags, with tokens.
    """

    name: str
    path: Path
    flags: tuple[str, ...]


def own_sources(plan: BuildPlan, roots: Roots, generated: Path) -> Iterator[OwnSource]:
    """List them: the runtime, then the operators, except what is compiled within a module.

    Parameters
    ----------
    plan, roots, generated
        As in `aot.compile.jobs.make_jobs`.

    Raises
    ------
    PlanError
        When two sources would make an object of one name.
    """
    common = (*COMMON_FLAGS, *plan.added_host_flags)
    for relative in plan.tvm_ffi_sources:
        path = roots.tvm_ffi / relative
        yield OwnSource(f"tvm_ffi/{path.stem}", path, (*common, *TVM_FFI_FLAGS))
    flags = (
        *common,
        *("-std=c++20", "-Wall", "-Wextra", "-Werror", "-DUSE_CUDA"),
        f"-DTORCH_TARGET_VERSION={torch_target_macro(plan.versions.torch_target)}",
        *(compiler_flags() if plan.lowering else ()),
        *_OPERATOR_INCLUDES,
    )
    modules = roots.operators / "modules"
    found = (path for path in roots.operators.rglob("*.cpp") if path.parent != modules)
    paths = [*sorted(found), *(generated / name for name in GENERATED)]
    if plan.lowering:
        paths.append(TENSOR_MAP_SOURCE)
    by_stem: dict[str, Path] = {}
    for path in paths:
        if (other := by_stem.setdefault(path.stem, path)) != path:
            raise PlanError(
                f"{other} and {path} would both be the object operators/{path.stem}; rename one"
            )
        yield OwnSource(f"operators/{path.stem}", path, flags)


def torch_target_macro(version: str) -> str:
    """Write a torch release as ``TORCH_TARGET_VERSION`` wants it: major and minor in the top bytes.

    The encoding is given in torch/csrc/stable/version.h.
    """
    major, minor = (int(part) for part in version.split("."))
    return f"0x{(major << 56) | (minor << 48):016x}"
