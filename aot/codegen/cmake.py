"""What CMake has to know of the plan, in its own syntax: which objects there are, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from aot.compile.job import Job
from aot.compile.jobs import prefix_map_flags
from aot.compile.own_sources import COMMON_FLAGS
from aot.errors import PlanError
from aot.lowering import LOWERED_VERSION
from aot.lowering.tensor_map_coordinates import WRAPPED_FUNCTIONS
from aot.plan import BuildPlan, Roots
from aot.platform_tools import PlatformTools


def cmake_variables(
    plan: BuildPlan,
    roots: Roots,
    objects: Sequence[tuple[Job, Path]],
    *,
    host_compiler: Path,
    tools: PlatformTools,
    prefix_maps: Sequence[tuple[str, str]],
) -> str:
    """Return the file that CMakeLists.txt includes.

    Parameters
    ----------
    plan, roots
        What is built, and where its tokens point.
    objects
        Every job, and where its object is.
    host_compiler
        Links, and compiles the probe of the type schemas.
    tools
        What else links, what is linked in, and what runs the probe.
    prefix_maps
        Pairs of folder and the name it gets in messages and debug information, so that no path of
        the build machine ends up in a binary.
    """
    maps = prefix_map_flags(prefix_maps)
    lines = ["# Generated from the build plan; do not edit."]
    add = lines.append
    add(_set("FP4AOT_PLAN_HASH", [plan.hash]))
    add(_set("FP4AOT_HOST_COMPILER", [str(host_compiler)]))
    for name, path in vars(tools.binutils).items():
        add(_set(f"FP4AOT_{name.upper()}", [str(path)]))
    add(_set("FP4AOT_EMULATION", [f"--emulation={word}" for word in tools.emulation]))
    add(_set("FP4AOT_HOST_FLAGS", ["-std=c++17", *COMMON_FLAGS, *plan.added_host_flags, *maps]))
    add(_set("FP4AOT_TVM_FFI_INCLUDES", [f"-I{roots.tvm_ffi / 'include'}"]))
    add(_set("FP4AOT_CUDA_RUNTIME", [str(tools.cuda_runtime)]))
    # What only a lowered plan needs; the variables are there, and empty, in every other.
    wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED_FUNCTIONS]
    add(_set("FP4AOT_LOCAL_VERSION", [LOWERED_VERSION] if plan.lowering else []))
    add(_set("FP4AOT_ADDED_LINK_FLAGS", wrapped if plan.lowering else []))
    modules = [module.name for module in plan.modules]
    add(_set("FP4AOT_MODULES", modules))
    for name in (*modules, "tvm_ffi", "operators"):
        paths = [str(path) for job, path in objects if job.module == name]
        add(_set(f"FP4AOT_OBJECTS_{name}", paths))
    return "\n".join(lines) + "\n"


def _set(name: str, values: Iterable[str]) -> str:
    # A bracket argument is literal, but a list is split at semicolons, except within square
    # brackets and after a backslash.
    quoted = []
    for value in values:
        if any(character in value for character in ";[]\n") or value.endswith("\\"):
            raise PlanError(
                f"CMake cannot hold {value!r} in a list: build in a folder whose name has no "
                "semicolon, square bracket, line break or backslash"
            )
        quoted.append(f"[=[{value}]=]")
    return f"set({name} {' '.join(quoted)})" if quoted else f"set({name})"
