"""What a wheel holds, as its manifest says: the part of it that an index shows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from aot.architectures import Architecture, Capability
from aot.errors import AotError, AuditError

MANIFEST: Final = "fp4aot/_manifest.json"
_CUDA = re.compile(r"[1-9][0-9]*\.[0-9]+")
_DRIVER = re.compile(r"([1-9][0-9]*(\.[0-9]+)*)?")


@dataclass(frozen=True)
class IndexedModule:
    """One compiled module.

    Parameters
    ----------
    name
        FlashInfer's name.
    targets
        The device images it holds.
    operators
        The operators that run them; not those that are host code or not for users.
    """

    name: str
    targets: tuple[Architecture, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """What a wheel is built from and holds.

    Parameters
    ----------
    version, preset, plan_hash
        As in its manifest.
    cuda
        Version of the CUDA toolkit and of the runtime inside the library: ``"13.0"``.
    flashinfer
        Version of the kernels.
    modules
        What is compiled in.
    lowered
        Whether its machine code is Blackwell's, lowered to Hopper: never to be published.
    library, library_sha256
        Name inside the wheel and hash of its shared library.
    minimum_driver
        The oldest NVIDIA driver that runs it: ``"580"``; empty when its manifest does not say.
    """

    version: str
    preset: str
    plan_hash: str
    cuda: str
    flashinfer: str
    modules: tuple[IndexedModule, ...]
    lowered: bool
    library: str
    library_sha256: str
    minimum_driver: str

    @property
    def targets(self) -> tuple[Architecture, ...]:
        """Every target for which some module has an image, in order."""
        return tuple(sorted({target for module in self.modules for target in module.targets}))

    def operators_on(self, capability: Capability) -> frozenset[str]:
        """Name the operators with an image that runs on a device."""
        return frozenset(
            operator
            for module in self.modules
            if any(target.runs_on(capability) for target in module.targets)
            for operator in module.operators
        )


def parse_manifest(data: bytes) -> Contents:
    """Read a manifest.

    Raises
    ------
    AuditError
        When it is not one.
    """
    try:
        manifest = json.loads(data)
        modules = manifest["modules"]
        contents = Contents(
            version=manifest["version"],
            preset=manifest["preset"],
            plan_hash=manifest["plan_hash"],
            cuda=manifest["versions"]["cuda"],
            flashinfer=manifest["versions"]["flashinfer"],
            modules=tuple(
                IndexedModule(
                    module["name"],
                    tuple(map(Architecture.parse, module["architectures"])),
                    tuple(sorted(filter(_on_device, module["functions"].values()))),
                )
                for module in modules
            ),
            # Two witnesses: a wheel that is not for use must not pass because one of them is lost.
            lowered=bool(manifest["lowering"])
            or any(module["architectures"] != module["compiled_for"] for module in modules),
            library=f"fp4aot/{manifest['library']['name']}",
            library_sha256=manifest["library"]["sha256"],
            # The manifests of older wheels have none.
            minimum_driver=manifest["versions"].get("minimum_driver", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, AotError) as cause:
        raise AuditError(
            f"its manifest cannot be read ({type(cause).__name__}: {cause})"
        ) from cause
    if not _CUDA.fullmatch(contents.cuda):
        raise AuditError(f"its manifest says CUDA {contents.cuda!r}; expected e.g. '13.0'")
    if not _DRIVER.fullmatch(contents.minimum_driver):
        raise AuditError(
            f"its manifest says driver {contents.minimum_driver!r}; expected e.g. '580.65.06'"
        )
    return contents


def _on_device(operator: str) -> bool:
    return not operator.startswith("_") and not operator.endswith("_host")
