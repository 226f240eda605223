"""The build plan: every translation unit, its flags, what it may cost, and one hash over it all.

A plan does not name the machine it was made on: paths are written with the tokens of `Roots`, and
`Roots` says where each of them is. So the same inputs give the same hash everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version

from aot import catalog, presets
from aot.architectures import Architecture, check_fp4_buildable
from aot.catalog import Module
from aot.environment import FlashInferEnvironment
from aot.errors import PlanError
from aot.lowering.errors import LoweringError
from aot.lowering.lower import lowered_target
from aot.lowering.toolkit import digest
from aot.presets import Preset
from aot.selection import OWN_SOURCES
from aot.specs import SourceUnit, SpecificationSet
from aot.toolchain import Toolkit

ADDED_HOST_FLAGS = (
    # Unique symbols are process-wide: they escape from being made local, and then merge between
    # modules whose bodies differ.
    "-fno-gnu-unique",
)
ADDED_DEFINES = (
    # Each exported function then also exports its type schema, which the build checks.
    "-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1",
)

TVM_FFI_SOURCES = (
    *(f"src/ffi/{name}.cc" for name in ("backtrace", "container", "dtype", "error", "function")),
    *(f"src/ffi/{name}.cc" for name in ("init_once", "object", "tensor")),
    *(f"src/ffi/extra/{name}.cc" for name in ("env_c_api", "env_context")),
)
"""The part of the TVM-FFI runtime that the modules refer to; the linker drops what is unused."""


@dataclass(frozen=True)
class Roots:
    """Where the folders are that a plan refers to."""

    flashinfer: Path
    tvm_ffi: Path
    torch: Path
    cuda: Path
    python_include: Path
    workspace: Path
    operators: Path = OWN_SOURCES.parent

    def tokens(self) -> tuple[tuple[str, str], ...]:
        """Pairs of token and path, the longest path first so that nested folders win."""
        pairs = [(f"@{name.upper()}@", str(path)) for name, path in vars(self).items()]
        return tuple(sorted(pairs, key=lambda pair: -len(pair[1])))

    def tokenize(self, text: str) -> str:
        """Replace this machine's paths by tokens."""
        for token, path in self.tokens():
            text = text.replace(path, token)
        return text

    def expand(self, text: str) -> str:
        """Replace tokens by this machine's paths."""
        for token, path in self.tokens():
            text = text.replace(token, path)
        return text


@dataclass(frozen=True)
class Unit:
    """One compiler run.

    Parameters
    ----------
    name
        Unique within its module; names the object file.
    source
        The source, with a token.
    language
        ``"cuda"`` or ``"c++"``.
    flags
        All flags, FlashInfer's first, with tokens.
    sha256
        Of the source file.
    """

    name: str
    source: str
    language: str
    flags: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class ModulePlan:
    """One FlashInfer module: what is compiled and what it must export.

    Parameters
    ----------
    name, family
        FlashInfer's name, and the group in reports.
    architectures
        The targets that it is compiled for.
    images
        The targets of its machine code: the same, unless it is lowered.
    units
        Its translation units.
    functions
        What it must export, no more and no less.
    selected
        Whether its units are a part of FlashInfer's: the link then checks that none is missing and
        none too many.
    """

    name: str
    family: str
    architectures: tuple[str, ...]
    images: tuple[str, ...]
    units: tuple[Unit, ...]
    functions: tuple[catalog.Function, ...]
    selected: bool = False

    @property
    def targets(self) -> str:
        """Its targets, for people: ``"10.0a 12.0f"``, or ``"9.0a (lowered from 12.0f)"``."""
        shown = " ".join(self.images)
        if self.images == self.architectures:
            return shown
        return f"{shown} (lowered from {' '.join(self.architectures)})"


@dataclass(frozen=True)
class Versions:
    """Versions of everything that goes into a library."""

    flashinfer: str
    tvm_ffi: str
    cuda: str
    cuda_compiler: str
    torch_target: str
    torch_headers: str


@dataclass(frozen=True)
class BuildPlan:
    """Everything CMake needs to build the library of one wheel.

    Parameters
    ----------
    preset
        Name of the preset.
    versions
        Of everything that goes in.
    modules
        FlashInfer's modules.
    tvm_ffi_sources
        The part of the TVM-FFI runtime that is compiled along.
    added_host_flags
        Flags of ours for the host compiler.
    lowering
        Hash of the sources of `aot.lowering` where machine code is made for Hopper, else empty.
    machine
        What the library runs on: ``"x86_64"`` or ``"aarch64"``.
    """

    preset: str
    versions: Versions
    modules: tuple[ModulePlan, ...]
    tvm_ffi_sources: tuple[str, ...]
    added_host_flags: tuple[str, ...]
    lowering: str = ""
    machine: str = "x86_64"

    @property
    def hash(self) -> str:
        """SHA-256 over the plan: equal for equal inputs, on any machine and path."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def compiler(self) -> str:
        """What makes machine code, by version; for Hopper it is another one."""
        return self.versions.cuda_compiler + (" lowered" if self.lowering else "")

    @property
    def units(self) -> tuple[Unit, ...]:
        """All translation units of all modules."""
        return tuple(unit for module in self.modules for unit in module.units)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """Every target of any module, in order."""
        names = {name for module in self.modules for name in module.architectures}
        return tuple(sorted(Architecture.parse(name) for name in names))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with its hash."""
        return {"hash": self.hash, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BuildPlan:
        """Read what `to_json` wrote.

        Raises
        ------
        PlanError
            When it is not a plan, or the hash does not belong to the rest.
        """
        try:
            plan = cls._from_data(data)
            written = data["hash"]
        except (KeyError, TypeError) as cause:
            raise PlanError(f"this is not a build plan ({cause!r}); make it anew") from cause
        if plan.hash != written:
            raise PlanError(
                f"the plan's hash is {written[:12]}… and its content gives {plan.hash[:12]}…; "
                "it was edited or cut off: make it anew"
            )
        return plan

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> BuildPlan:
        modules = tuple(
            ModulePlan(
                name=item["name"],
                family=item["family"],
                architectures=tuple(item["architectures"]),
                images=tuple(item["images"]),
                units=tuple(
                    Unit(**{**unit, "flags": tuple(unit["flags"])}) for unit in item["units"]
                ),
                functions=tuple(
                    catalog.Function(**{**function, "arguments": tuple(function["arguments"])})
                    for function in item["functions"]
                ),
                selected=item["selected"],
            )
            for item in data["modules"]
        )
        return cls(
            data["preset"],
            Versions(**data["versions"]),
            modules,
            tuple(data["tvm_ffi_sources"]),
            tuple(data["added_host_flags"]),
            data["lowering"],
            data["machine"],
        )


def preset_named(name: str) -> Preset:
    """Look a preset up.

    Raises
    ------
    PlanError
        When there is none of that name, with the names there are.
    """
    try:
        return presets.PRESETS[name]
    except KeyError:
        known = "\n".join(f"  {p.name}: {p.description}" for p in presets.PRESETS.values())
        raise PlanError(f"there is no preset {name!r}; choose one of:\n{known}") from None


def narrowed(preset: Preset, architectures: Sequence[str]) -> Preset:
    """Leave only some of a preset's targets, and the modules that still have one.

    Parameters
    ----------
    preset
        The preset.
    architectures
        Targets such as ``"12.0f"``; none for all.

    Raises
    ------
    ArchitectureError
        When one is malformed.
    PlanError
        When the preset has none of that name, with those that it has.
    """
    if not architectures:
        return preset
    wanted = {str(Architecture.parse(name)) for name in architectures}
    if unknown := sorted(wanted - preset.targets):
        known = ", ".join(map(str, sorted(map(Architecture.parse, preset.targets))))
        raise PlanError(
            f"the preset {preset.name} has no {', '.join(unknown)}; its architectures are {known}"
        )
    return replace(preset, modules=presets.for_architectures(preset.modules, wanted))


def make_plan(
    preset: Preset,
    specifications: SpecificationSet,
    environment: FlashInferEnvironment,
    toolkit: Toolkit,
    machine: str = "x86_64",
) -> tuple[BuildPlan, Roots]:
    """Turn FlashInfer's specifications into a plan.

    Parameters
    ----------
    preset
        Which modules.
    specifications
        What FlashInfer says of them, in the same order.
    environment
        Where FlashInfer, TVM-FFI and torch's headers are.
    toolkit
        The CUDA toolkit.
    machine
        What the library is to run on.

    Returns
    -------
    tuple[BuildPlan, Roots]
        The plan, and where its tokens point on this machine.

    Raises
    ------
    ToolchainError, ArchitectureError
        When the toolkit cannot build FP4 for a target.
    PlanError
        When the specifications are of another FlashInfer than the environment's, or a target of a
        lowered preset cannot be lowered.
    """
    check_targets(preset.modules, toolkit)
    if specifications.flashinfer_version != str(environment.version):
        raise PlanError(
            f"the specifications come from FlashInfer {specifications.flashinfer_version} and the "
            f"environment is pinned to {environment.version}; delete the build folder's "
            "environments and start again"
        )
    roots = Roots(
        flashinfer=environment.flashinfer_data,
        tvm_ffi=environment.tvm_ffi_root,
        torch=environment.torch_include.parent,
        cuda=toolkit.root,
        python_include=specifications.python_include,
        workspace=specifications.workspace,
    )
    modules = tuple(
        ModulePlan(
            module.name,
            module.family,
            module.architectures,
            _images(module) if preset.lowered else module.architectures,
            _units(specification.units, roots),
            module.functions,
            module.selection is not None,
        )
        for module, specification in zip(preset.modules, specifications.specifications, strict=True)
    )
    versions = Versions(
        flashinfer=specifications.flashinfer_version,
        tvm_ffi=installed_version(environment, "apache-tvm-ffi"),
        cuda=str(toolkit.version),
        cuda_compiler=str(toolkit.compiler_version),
        torch_target=catalog.TORCH_TARGET,
        torch_headers=installed_version(environment, "torch"),
    )
    plan = BuildPlan(
        preset.name,
        versions,
        modules,
        TVM_FFI_SOURCES,
        ADDED_HOST_FLAGS,
        digest() if preset.lowered else "",
        machine,
    )
    return plan, roots


def _images(module: Module) -> tuple[str, ...]:
    """Say which targets machine code has after lowering."""
    try:
        lowered = [lowered_target(f"sm_{Architecture.parse(n).sm}") for n in module.architectures]
    except LoweringError as reason:
        raise PlanError(f"{module.name}: {reason}") from reason
    if len(set(lowered)) != len(lowered):
        raise PlanError(
            f"{module.name}: several of {', '.join(module.architectures)} are lowered to the same "
            "target; a lowered preset has one of them"
        )
    return tuple(str(Architecture.from_sm(name)) for name in lowered)


def installed_version(environment: FlashInferEnvironment, distribution: str) -> str:
    """Version of a package in the pinned environment, without the label of a local build."""
    for found in metadata.distributions(name=distribution, path=[str(environment.site_packages)]):
        return Version(found.version).public
    raise PlanError(f"{distribution} is not in {environment.site_packages}; delete that folder")


def check_targets(modules: Iterable[Module], toolkit: Toolkit) -> None:
    """Refuse a target that the toolkit cannot build, before anything is compiled."""
    rows = list(modules)
    if not rows:
        raise PlanError("nothing to build: the preset has no module")
    fp4 = {name for row in rows if row.needs_fp4_instructions for name in row.architectures}
    if fp4:
        check_fp4_buildable(sorted(Architecture.parse(name) for name in fp4), toolkit.version)
    every = {name for row in rows for name in row.architectures}
    toolkit.require_targets(sorted(Architecture.parse(name) for name in every))


def _units(units: Sequence[SourceUnit], roots: Roots) -> tuple[Unit, ...]:
    result = []
    for unit in units:
        # FlashInfer names objects by folder and stem too: stems alone recur within a module.
        added = [*ADDED_DEFINES]
        added += (
            [f"-Xcompiler={flag}" for flag in ADDED_HOST_FLAGS]
            if unit.is_cuda
            else [*ADDED_HOST_FLAGS]
        )
        result.append(
            Unit(
                name=f"{unit.source.parent.name}_{unit.source.stem}",
                source=roots.tokenize(str(unit.source)),
                language="cuda" if unit.is_cuda else "c++",
                flags=tuple(roots.tokenize(flag) for flag in (*unit.flags, *added)),
                sha256=hashlib.sha256(unit.source.read_bytes()).hexdigest(),
            )
        )
    names = [unit.name for unit in result]
    if len(set(names)) != len(names):
        raise PlanError(f"two translation units of a module share a name: {sorted(names)}")
    return tuple(result)
