"""GPU targets such as ``10.0a`` and ``12.0f``: parsing, order, and which one serves which device.

A suffix is part of the target's identity and is never dropped: ``12.0`` without one cannot assemble
the e2m1 conversions, ``12.0a`` runs on 12.0 only, and ``12.0f`` on the whole family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from packaging.version import InvalidVersion, Version

from aot.errors import ArchitectureError, ToolchainError

Capability = tuple[int, int]

OLDEST_FP4_TOOLKIT: Final = Version("12.8")
"""Older compilers build FP4 out without a word."""

FIRST_TOOLKIT: Final[Mapping[str, Version]] = MappingProxyType(
    {
        "10.0a": Version("12.8"),
        "10.0f": Version("12.9"),
        "10.3a": Version("12.9"),
        "10.3f": Version("12.9"),
        "11.0a": Version("13.0"),
        "11.0f": Version("13.0"),
        "12.0a": Version("12.8"),
        "12.0f": Version("12.9"),
        "12.1a": Version("12.9"),
        "12.1f": Version("12.9"),
    }
)
"""The first toolkit that assembles FP4 for a target. What is missing here has no FP4."""

_DOTTED = re.compile(r"(?P<major>[1-9][0-9]?)\.(?P<minor>[0-9])(?P<suffix>[af]?)")
# nvcc writes the two numbers together; the minor version is always the last digit.
_SM = re.compile(r"(?:sm_|compute_)?(?P<major>[1-9][0-9]?)(?P<minor>[0-9])(?P<suffix>[af]?)")


@dataclass(frozen=True, order=True)
class Architecture:
    """One target of the CUDA compiler.

    Parameters
    ----------
    major, minor
        Compute capability.
    suffix
        ``""``, ``"a"`` (this capability only, from 9.0) or ``"f"`` (the family, from 10.0).

    Raises
    ------
    ArchitectureError
        When such a target cannot exist.
    """

    major: int
    minor: int
    suffix: str = ""

    def __post_init__(self) -> None:
        """Refuse what no compiler knows, such as ``8.0a`` or ``9.0f``."""
        first_major = {"": 1, "a": 9, "f": 10}.get(self.suffix)
        if first_major is None:
            raise ArchitectureError(
                f"the suffix {self.suffix!r} of {self} is unknown; expected none, 'a' or 'f'"
            )
        if self.major < first_major or not 0 <= self.minor <= 9:
            raise ArchitectureError(
                f"{self} is no target: 'a' exists from 9.0, 'f' from 10.0, "
                "and the minor version is one digit"
            )

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read the dotted form: ``"12.0f"``, ``"9.0a"``, ``"8.0"``."""
        return cls._from_match(_DOTTED.fullmatch(text.strip()), text, "10.0a, 12.0f or 8.0")

    @classmethod
    def from_sm(cls, text: str) -> Architecture:
        """Read the compiler's form: ``"sm_120f"``, ``"compute_90a"``, ``"103a"``."""
        return cls._from_match(_SM.fullmatch(text.strip()), text, "sm_100a, compute_120f or 80")

    @classmethod
    def _from_match(cls, match: re.Match[str] | None, text: str, examples: str) -> Architecture:
        if match is None:
            raise ArchitectureError(f"cannot read the architecture {text!r}; write {examples}")
        return cls(int(match["major"]), int(match["minor"]), match["suffix"])

    @property
    def capability(self) -> Capability:
        """Major and minor version, without the suffix."""
        return (self.major, self.minor)

    @property
    def sm(self) -> str:
        """The number and suffix as nvcc and FlashInfer's module names write them: ``"120f"``."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def compute(self) -> str:
        """Name of the virtual target: ``"compute_120f"``."""
        return f"compute_{self.sm}"

    @property
    def gencode(self) -> str:
        """The compiler flag for machine code without PTX."""
        return f"-gencode=arch={self.compute},code=sm_{self.sm}"

    def runs_on(self, capability: Capability) -> bool:
        """Tell whether machine code for this target runs on a device such as ``(12, 1)``."""
        if self.suffix == "a":
            return self.capability == capability
        major, minor = capability
        return major == self.major and minor >= self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"


def parse_list(text: str) -> tuple[Architecture, ...]:
    """Read targets separated by blanks, commas or semicolons; sorted, each once.

    Raises
    ------
    ArchitectureError
        When one is malformed, or when there is none.
    """
    found = {Architecture.parse(word) for word in re.split(r"[\s,;]+", text) if word}
    if not found:
        raise ArchitectureError(
            f"nothing to build: the architecture list {text!r} is empty; write e.g. '10.0a 12.0f'"
        )
    return tuple(sorted(found))


def target_for(
    capability: Capability, cuda_version: Version | str, *, own_target: bool = False
) -> Architecture:
    """Choose the target that FlashInfer's rules give a device.

    Parameters
    ----------
    capability
        The device's compute capability.
    cuda_version
        The version of the compiler (not of torch).
    own_target
        For 12.1, build ``12.1a`` instead of the family target ``12.0f`` that also runs on it.

    Raises
    ------
    ArchitectureError
        When the device is unknown, or this compiler has no target for it.
    ToolchainError
        When `cuda_version` is not a version.
    """
    version = _toolkit_version(cuda_version)
    major, minor = capability
    if major < 9:
        return Architecture(major, minor)
    if capability in {(12, 0), (12, 1)}:
        return _target_for_family_12(capability, version, own_target=own_target)
    if capability == (9, 0):
        return Architecture(9, 0, "a")
    if capability not in {(10, 0), (10, 3), (11, 0)}:
        raise ArchitectureError(
            f"no FP4 target is known for a device of capability {major}.{minor}; "
            "known are 10.0, 10.3, 11.0, 12.0 and 12.1"
        )
    return _require(Architecture(major, minor, "a"), version)


def _target_for_family_12(
    capability: Capability, version: Version, *, own_target: bool
) -> Architecture:
    """Family code where the compiler has it; 12.1 never gets 12.0a, which does not run on it."""
    if capability == (12, 1):
        return _require(
            Architecture(12, 1, "a") if own_target else Architecture(12, 0, "f"), version
        )
    family = Architecture(12, 0, "f")
    if version >= FIRST_TOOLKIT[str(family)]:
        return family
    return _require(Architecture(12, 0, "a"), version)


def _require(architecture: Architecture, version: Version) -> Architecture:
    """Return the target if the compiler knows it."""
    first = FIRST_TOOLKIT[str(architecture)]
    if version < first:
        raise ArchitectureError(
            f"the compiler is CUDA {version}, and {architecture} needs CUDA {first} or newer; "
            f"install a newer toolkit"
        )
    return architecture


def fp4_rejection(architecture: Architecture, cuda_version: Version | str) -> str | None:
    """Say why a compiler of this version cannot build FP4 tensor kernels for one target.

    Returns
    -------
    str or None
        The reason, and what to write instead; None where it can.
    """
    version = _toolkit_version(cuda_version)
    if architecture.capability < (10, 0):
        return (
            "has no FP4 tensor instructions: FlashInfer compiles the kernel bodies out and the "
            "results would be garbage; the first target with FP4 is 10.0a"
        )
    same = [
        name
        for name in FIRST_TOOLKIT
        if Architecture.parse(name).capability == architecture.capability
    ]
    if not same:
        return f"is not among the FP4 targets {', '.join(FIRST_TOOLKIT)}"
    if str(architecture) not in same:
        return f"cannot assemble the e2m1 conversions without a suffix; write {' or '.join(same)}"
    first = FIRST_TOOLKIT[str(architecture)]
    if version < first:
        return f"needs CUDA {first} or newer, and the compiler is CUDA {version}"
    return None


def check_fp4_buildable(architectures: Iterable[Architecture], cuda_version: Version | str) -> None:
    """Refuse up front what would build without FP4 or not at all.

    Kernels that need no FP4 instruction (KV dequantization) are not for this check.

    Raises
    ------
    ToolchainError
        When the compiler is too old for FP4 on any target.
    ArchitectureError
        When a candidate is rejected, with the whole list of verdicts; or when there is none.
    """
    version = _toolkit_version(cuda_version)
    if version < OLDEST_FP4_TOOLKIT:
        raise ToolchainError(
            f"the CUDA compiler is version {version}, which builds FP4 out; "
            f"FP4 needs {OLDEST_FP4_TOOLKIT} or newer. Install a newer toolkit and point "
            "CUDA_HOME at it, or let the build install one"
        )
    rejections = {one: fp4_rejection(one, version) for one in architectures}
    if not rejections:
        raise ArchitectureError("nothing to build: no architecture given; name e.g. 10.0a 12.0f")
    if any(rejections.values()):
        trace = "\n".join(f"  {one}: {why or 'accepted'}" for one, why in rejections.items())
        raise ArchitectureError(
            f"FP4 cannot be built for all of these with CUDA {version}:\n{trace}"
        )


def _toolkit_version(cuda_version: Version | str) -> Version:
    if isinstance(cuda_version, Version):
        return cuda_version
    try:
        return Version(cuda_version)
    except InvalidVersion:
        raise ToolchainError(
            f"{cuda_version!r} is not a CUDA version; expected e.g. '13.0'"
        ) from None
