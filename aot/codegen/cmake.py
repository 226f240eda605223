"""The plan in CMake's own syntax, with the tokens replaced by this machine's paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from aot.errors import PlanError
from aot.lowering import LOWERED_VERSION
from aot.lowering.tensor_map_coordinates import (
    TENSOR_MAP_SOURCE,
    WRAPPED_FUNCTIONS,
    compiler_flags,
)
from aot.memory import Schedule
from aot.plan import BuildPlan, Roots, Unit


def cmake_variables(
    plan: BuildPlan,
    roots: Roots,
    schedule: Schedule,
    *,
    nvcc: Path,
    host_compiler: Path,
    launcher: Iterable[str],
    prefix_maps: Iterable[tuple[str, str]],
) -> str:
    """Return the file that CMakeLists.txt includes.

    Parameters
    ----------
    plan, roots
        What is built, and where its tokens point.
    schedule
        Limits of the job pools.
    nvcc, host_compiler
        The compilers.
    launcher
        Command before each compiler: the object cache.
    prefix_maps
        Pairs of folder and the name it gets in messages and debug information, so that no path of
        the build machine ends up in a binary.
    """
    maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in prefix_maps]

    def command(unit: Unit) -> list[str]:
        flags = [roots.expand(flag) for flag in unit.flags]
        if unit.language == "cuda":
            host = ["-ccbin", str(host_compiler)]
            return [str(nvcc), *host, *flags, *(f"-Xcompiler={flag}" for flag in maps)]
        return [str(host_compiler), *flags, *maps]

    lines = ["# Generated from the build plan; do not edit."]
    add = lines.append
    add(_set("FP4AOT_PLAN_HASH", [plan.hash]))
    add(_set("FP4AOT_LAUNCHER", launcher))
    add(_set("FP4AOT_HOST_COMPILER", [str(host_compiler)]))
    add(_set("FP4AOT_SMALL_JOBS", [str(schedule.small_jobs)]))
    add(_set("FP4AOT_LARGE_JOBS", [str(schedule.large_jobs)]))
    # When one unit may run at a time, our own small sources wait their turn too.
    alone = schedule.large_megabytes == 1
    add(_set("FP4AOT_OWN_POOL", ["large_units" if alone else "small_units"]))
    add(_set("FP4AOT_HOST_FLAGS", [*plan.added_host_flags, *maps]))
    includes = [roots.tvm_ffi / "include"]
    add(_set("FP4AOT_TVM_FFI_INCLUDES", [f"-I{path}" for path in includes]))
    add(_set("FP4AOT_TVM_FFI_SOURCES", [str(roots.tvm_ffi / s) for s in plan.tvm_ffi_sources]))
    includes = [roots.torch / "include", roots.tvm_ffi / "include", roots.cuda / "include"]
    # System headers: their warnings are not ours.
    add(_set("FP4AOT_OPERATOR_INCLUDES", [f"-isystem{path}" for path in includes]))
    add(_set("FP4AOT_TORCH_LIBRARY_DIR", [str(roots.torch / "lib")]))
    add(_set("FP4AOT_TORCH_TARGET_VERSION", [torch_target_macro(plan.versions.torch_target)]))
    add(_set("FP4AOT_CUDA_LIBRARY_DIR", [str(_library_folder(roots.cuda))]))
    lines += [_set(*variable) for variable in _lowering(plan, nvcc)]
    add(_set("FP4AOT_MODULES", [module.name for module in plan.modules]))
    for module in plan.modules:
        add(_set(f"FP4AOT_UNITS_{module.name}", [unit.name for unit in module.units]))
        for unit in module.units:
            key = f"{module.name}_{unit.name}"
            add(_set(f"FP4AOT_SOURCE_{key}", [roots.expand(unit.source)]))
            add(_set(f"FP4AOT_POOL_{key}", [schedule.pool(unit)]))
            add(_set(f"FP4AOT_COMMAND_{key}", command(unit)))
    return "\n".join(lines) + "\n"


def _lowering(plan: BuildPlan, nvcc: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield what only a lowered plan needs; the variables are there, and empty, in every other."""
    variables = (
        # Made anew when the lowering changes; nothing else of a toolkit changes under one path.
        ("FP4AOT_UNIT_DEPENDS", [str(nvcc.with_name("ptxas"))]),
        ("FP4AOT_LOCAL_VERSION", [LOWERED_VERSION]),
        ("FP4AOT_ADDED_SOURCES", [str(TENSOR_MAP_SOURCE)]),
        ("FP4AOT_ADDED_SOURCE_FLAGS", list(compiler_flags())),
        ("FP4AOT_ADDED_LINK_FLAGS", [f"-Wl,--wrap={name}" for name in WRAPPED_FUNCTIONS]),
    )
    for name, values in variables:
        yield name, values if plan.lowering else []


def torch_target_macro(version: str) -> str:
    """Write a torch release as ``TORCH_TARGET_VERSION`` wants it: major and minor in the top bytes.

    The encoding is given in torch/csrc/stable/version.h.
    """
    major, minor = (int(part) for part in version.split("."))
    return f"0x{(major << 56) | (minor << 48):016x}"


def _library_folder(cuda: Path) -> Path:
    for name in ("lib64", "lib"):
        if (cuda / name / "libcudart_static.a").exists():
            return cuda / name
    return cuda / "lib64"


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
