"""Whether the wheel can serve a function of FlashInfer's on this machine."""

from __future__ import annotations

from fp4aot import _manifest
from fp4aot.integrations.devices import Capability
from fp4aot.operators import DEVICE_OPERATORS


def why_not(
    manifest: _manifest.Manifest,
    operators: tuple[str, ...],
    lowest: Capability,
    capabilities: tuple[Capability, ...] | None,
) -> str:
    """Say why the wheel cannot serve a function; empty when it can.

    Parameters
    ----------
    manifest
        What the wheel holds.
    operators
        What the function calls.
    lowest
        Compute capability from which FlashInfer offers the function. A GPU below does not count:
        neither runs there.
    capabilities
        Of the GPUs; None when there is one and nobody can tell which. Without any, everything can
        be served, by the reference.
    """
    if capabilities == ():
        return ""
    absent = [operator for operator in operators if not _is_held(manifest, operator)]
    if absent:
        return "not in this wheel"
    compiled = [name for name in operators if name in DEVICE_OPERATORS]
    if not compiled or capabilities is None:
        return ""
    covered = {
        capability
        for capability in capabilities
        if all(_runs(manifest, name, capability) for name in compiled)
    }
    missing = sorted({c for c in capabilities if c >= lowest} - covered)
    # Where no GPU counts there must still be one that it is for.
    missing = missing if missing or covered else sorted(set(capabilities))
    if not missing:
        return ""
    return f"not in this wheel for compute capability {', '.join(map(_dotted, missing))}"


def _is_held(manifest: _manifest.Manifest, operator: str) -> bool:
    if operator in DEVICE_OPERATORS:
        return bool(manifest.targets_of(operator))
    return any(operator in dict(module.functions).values() for module in manifest.modules)


def _runs(manifest: _manifest.Manifest, operator: str, capability: Capability) -> bool:
    return any(target.runs_on(capability) for target in manifest.targets_of(operator))


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
