"""What this wheel holds, as its build wrote it into ``_manifest.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

PACKAGE = Path(__file__).parent

SHARED_KERNELS = MappingProxyType(
    {"scaled_fp4_grouped_quantize": "silu_and_mul_scaled_nvfp4_experts_quantize"}
)
"""Operators that call the compiled function of another one."""


@dataclass(frozen=True, order=True)
class Target:
    """One GPU target of the compiler, such as ``12.0f``.

    Parameters
    ----------
    major, minor
        Compute capability.
    suffix
        ``"a"``: this capability only. ``"f"``: this and later ones of the same major. ``""``: as f.
    """

    major: int
    minor: int
    suffix: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read the dotted form."""
        suffix = text[-1] if text[-1].isalpha() else ""
        major, minor = text.removesuffix(suffix).split(".")
        return cls(int(major), int(minor), suffix)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Tell whether machine code for this target runs on a device."""
        if self.suffix == "a":
            return capability == (self.major, self.minor)
        return capability[0] == self.major and capability[1] >= self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"


@dataclass(frozen=True)
class Module:
    """One compiled FlashInfer module.

    Parameters
    ----------
    name, family
        FlashInfer's name, and the group in reports.
    targets
        The device images it holds.
    compiled_for
        The targets it was compiled for: the same, unless it is lowered.
    functions
        FlashInfer's function and the operator that calls it.
    """

    name: str
    family: str
    targets: tuple[Target, ...]
    compiled_for: tuple[Target, ...]
    functions: tuple[tuple[str, str], ...]

    @property
    def targets_text(self) -> str:
        """``"10.0a 12.0f"``, or ``"9.0a (lowered from 12.0f)"``."""
        shown = " ".join(map(str, self.targets))
        if self.targets == self.compiled_for:
            return shown
        return f"{shown} (lowered from {' '.join(map(str, self.compiled_for))})"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Tell whether it has an image for a device."""
        return any(target.runs_on(capability) for target in self.targets)


@dataclass(frozen=True)
class Manifest:
    """The content of ``_manifest.json``.

    Parameters
    ----------
    version, preset, plan_hash, versions
        Of the wheel, what it was built from, and of everything that went in.
    lowering
        Hash of the sources that lowered its machine code to Hopper; empty for a wheel to use.
    modules
        What is compiled in.
    library_name, library_size, library_sha256
        Of its shared library.
    """

    version: str
    preset: str
    plan_hash: str
    versions: tuple[tuple[str, str], ...]
    lowering: str
    modules: tuple[Module, ...]
    library_name: str
    library_size: int
    library_sha256: str

    @property
    def is_lowered(self) -> bool:
        """Whether the machine code is Blackwell's, lowered to Hopper: a test instrument."""
        return bool(self.lowering)

    @property
    def label(self) -> str:
        """Name a wheel that is not for use; empty for one that is."""
        return (
            "LOWERED: Blackwell's kernels on a Hopper, to test them; not for use, and nothing it "
            "shows is Blackwell's speed"
            if self.is_lowered
            else ""
        )

    @property
    def cuda_version(self) -> str:
        """Version of the CUDA toolkit and of the runtime inside the library."""
        return dict(self.versions)["cuda"]

    def targets_of(self, operator: str) -> tuple[Target, ...]:
        """List the device images that serve one operator."""
        operator = SHARED_KERNELS.get(operator, operator)
        return tuple(
            target
            for module in self.modules
            if operator in dict(module.functions).values()
            for target in module.targets
        )


def read(folder: Path = PACKAGE) -> Manifest:
    """Read the manifest of an installed wheel.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError
        When it is missing, cut off or something else.
    """
    data = json.loads((folder / "_manifest.json").read_text(encoding="utf-8"))
    return Manifest(
        version=data["version"],
        preset=data["preset"],
        plan_hash=data["plan_hash"],
        versions=tuple(sorted(data["versions"].items())),
        lowering=data["lowering"],
        modules=tuple(
            Module(
                item["name"],
                item["family"],
                tuple(Target.parse(text) for text in item["architectures"]),
                tuple(Target.parse(text) for text in item["compiled_for"]),
                tuple(sorted(item["functions"].items())),
            )
            for item in data["modules"]
        ),
        library_name=data["library"]["name"],
        library_size=data["library"]["size"],
        library_sha256=data["library"]["sha256"],
    )
