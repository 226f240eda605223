"""Plans of builds for the unit tests, with the same versions everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aot.catalog import Module
from aot.plan import BuildPlan, ModulePlan, Roots, Unit, Versions

VERSIONS = Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0")


def plan_of(
    *modules: ModulePlan,
    preset: str = "test",
    versions: Versions = VERSIONS,
    tvm_ffi_sources: tuple[str, ...] = (),
    added_host_flags: tuple[str, ...] = (),
) -> BuildPlan:
    return BuildPlan(preset, versions, modules, tvm_ffi_sources, added_host_flags)


def module_of(row: Module, *units: Unit) -> ModulePlan:
    """Plan a module of the catalogue."""
    return ModulePlan(*(row.name, row.family), *(row.architectures,) * 2, units, row.functions)


def roots_of(site: Path, **others: Any) -> Roots:
    """Say where packages are that are installed in one folder."""
    return Roots(
        flashinfer=site / "flashinfer/data",
        tvm_ffi=site / "tvm_ffi",
        torch=site / "torch",
        **{"python_include": Path("/usr/include/python3.11"), **others},
    )
