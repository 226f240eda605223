"""FlashInfer's JIT specifications, read on a machine without a GPU.

FlashInfer stays the source of truth: its generators run in their own pinned environment and tell
which sources a module has and with which flags each is compiled. Nothing is retyped here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.architectures import Architecture
from aot.catalog import Module
from aot.environment import FlashInferEnvironment
from aot.errors import PlanError
from aot.process import run
from aot.toolchain import Toolkit

_READER = Path(__file__).with_name("flashinfer_reader.py")


@dataclass(frozen=True)
class SourceUnit:
    """A source file, and the flags that FlashInfer compiles it with: all, in FlashInfer's order."""

    source: Path
    flags: tuple[str, ...]

    @property
    def is_cuda(self) -> bool:
        """Whether nvcc compiles it; else it is the host compiler."""
        return self.source.suffix == ".cu"


@dataclass(frozen=True)
class Specification:
    """What FlashInfer's generator says of one module."""

    name: str
    units: tuple[SourceUnit, ...]


@dataclass(frozen=True)
class SpecificationSet:
    """The answer of one FlashInfer: its specifications and the paths its flags refer to."""

    flashinfer_version: str
    python_include: Path
    workspace: Path
    specifications: tuple[Specification, ...]


def reader_environment(
    architectures: Sequence[Architecture], toolkit: Toolkit, workspace: Path
) -> dict[str, str]:
    """Environment variables for FlashInfer's generators.

    Without ``FLASHINFER_CUDA_ARCH_LIST`` they ask for a GPU, and importing FlashInfer creates
    folders under ``FLASHINFER_WORKSPACE_BASE``. Everything else that could change its flags is left
    out: a build must not depend on who runs it.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {
        "FLASHINFER_CUDA_ARCH_LIST": " ".join(str(item) for item in architectures),
        "FLASHINFER_WORKSPACE_BASE": str(workspace),
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        "CUDA_HOME": str(toolkit.root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }


def read(
    modules: Sequence[Module],
    environment: FlashInferEnvironment,
    toolkit: Toolkit,
    workspace: Path,
) -> SpecificationSet:
    """Ask FlashInfer for the specifications of some modules.

    Parameters
    ----------
    modules
        Catalogue rows. Rows with different targets are read by separate processes, as FlashInfer
        reads its target list once.
    environment
        The pinned environment that has FlashInfer.
    toolkit
        The toolkit that FlashInfer should find: some flags depend on its version.
    workspace
        Folder for whatever FlashInfer generates.

    Raises
    ------
    PlanError
        When a generator is missing or fails, or yields another module than the catalogue says.
    """
    found: dict[str, Specification] = {}
    version, include = "", Path()
    for targets in sorted({module.architectures for module in modules}):
        group = [module for module in modules if module.architectures == targets]
        answer = _ask(group, targets, environment, toolkit, workspace)
        version, include = answer["flashinfer"], Path(answer["python_include"])
        for module, item in zip(group, answer["specifications"], strict=True):
            found[module.name] = _specification(module, item)
    return SpecificationSet(
        version, include, workspace, tuple(found[module.name] for module in modules)
    )


def _ask(
    group: Sequence[Module],
    targets: Sequence[str],
    environment: FlashInferEnvironment,
    toolkit: Toolkit,
    workspace: Path,
) -> dict[str, Any]:
    names = ", ".join(module.name for module in group)
    done = run(
        [environment.python, "-I", _READER, *(module.generator for module in group)],
        purpose=f"read FlashInfer's specifications of {names}",
        error=PlanError,
        environ=reader_environment([Architecture.parse(t) for t in targets], toolkit, workspace),
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as cause:
        raise PlanError(
            f"FlashInfer's answer about {names} is not JSON:\n{done.stdout}\n{done.stderr}"
        ) from cause
    return answer


def _specification(module: Module, item: dict[str, Any]) -> Specification:
    if item["name"] != module.name:
        raise PlanError(
            f"the generator {module.generator} yields the module '{item['name']}', and the "
            f"catalogue says '{module.name}'; correct the row in aot/catalog.py"
        )
    dropped = module.selection.dropped_linker_flags if module.selection else ()
    linker_flags = [flag for flag in item["extra_ldflags"] if flag not in dropped]
    if item["needs_device_linking"] or linker_flags:
        raise PlanError(
            f"{module.name} asks for device linking or for linker flags {linker_flags}, "
            "which this build does not do; extend CMakeLists.txt before shipping it"
        )
    units = {Path(unit["source"]): tuple(unit["flags"]) for unit in item["units"]}
    if module.selection:
        chosen = module.selection.choose(module.name, list(units))
        # Sorted: FlashInfer lists generated files in the order of the file system.
        units = {source: units[chosen[source]] for source in sorted(chosen)}
    return Specification(module.name, tuple(SourceUnit(*unit) for unit in units.items()))
