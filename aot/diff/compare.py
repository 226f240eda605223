"""Compare two wheels, section by section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from aot.diff.wheel import PROVENANCE, SBOM, Provenance, WheelContent

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class Change:
    """One thing that is not the same.

    Parameters
    ----------
    section
        One of `SECTIONS`.
    what
        The thing.
    kind
        ``"added"``, ``"removed"`` or ``"changed"``.
    before, after
        In the first and in the second wheel; empty where it is not in it.
    """

    section: str
    what: str
    kind: Kind
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """The result.

    Parameters
    ----------
    before, after
        The wheels, as they were given.
    identical
        Whether the files are the same byte for byte.
    changes
        What is not the same inside, section by section.
    not_compared
        What could not be compared, and why.
    """

    before: str
    after: str
    identical: bool
    changes: tuple[Change, ...]
    not_compared: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the files in the wheels are the same, if not the archives."""
        return self.identical or not self.changes

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.identical:
            return "The wheels are the same, byte for byte."
        if self.is_equal:
            return "The wheels hold the same files; only the archives around them differ."
        counts = Counter(change.section for change in self.changes)
        parts = ", ".join(f"{name} {counts[name]}" for name in SECTIONS if counts[name])
        return f"The wheels differ: {parts}."

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "equal": self.is_equal, "verdict": self.verdict}


def compare(before: WheelContent, after: WheelContent) -> Difference:
    """Say what changed from one wheel to another."""
    identical = before.sha256 == after.sha256
    changes = tuple(change for section in SECTIONS for change in _section(section, before, after))
    missing = () if identical else tuple(_not_compared(before, after))
    return Difference(before.name, after.name, identical, changes, missing)


def _section(section: str, before: WheelContent, after: WheelContent) -> Iterator[Change]:
    if section == "units":
        if before.provenance is not None and after.provenance is not None:
            yield from _unit_changes(before.provenance, after.provenance)
        return
    one, other = SECTIONS[section](before), SECTIONS[section](after)
    if one is None or other is None:
        return
    # What a module has is listed where both wheels have the module.
    if section in ("targets", "functions"):
        shared = _modules(before).keys() & _modules(after).keys()
        one, other = (
            {what: value for what, value in rows.items() if what.split(": ")[0] in shared}
            for rows in (one, other)
        )
    yield from _changes(section, one, other)


def _changes(section: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in sorted({*before, *after}):
        if what not in before:
            yield Change(section, what, "added", "", after[what])
        elif what not in after:
            yield Change(section, what, "removed", before[what], "")
        elif before[what] != after[what]:
            yield Change(section, what, "changed", before[what], after[what])


def _unit_changes(before: Provenance, after: Provenance) -> Iterator[Change]:
    sources = [
        {name: source for name, (source, _) in wheel.units.items()} for wheel in (before, after)
    ]
    for change in _changes("units", *sources):
        what = f"{change.what}: source" if change.kind == "changed" else change.what
        yield replace(change, what=what)
    for name in sorted(before.units.keys() & after.units.keys()):
        one, other = before.units[name][1], after.units[name][1]
        if one != other:
            gone, new = Counter(one) - Counter(other), Counter(other) - Counter(one)
            yield Change(
                "units",
                f"{name}: flags",
                "changed",
                " ".join(gone.elements() if gone or new else one),
                " ".join(new.elements() if gone or new else other),
            )


def _not_compared(before: WheelContent, after: WheelContent) -> Iterator[str]:
    for wheel in (before, after):
        if wheel.provenance is None:
            yield (
                f"compilers, units, flags and operator sources: {wheel.name} carries no "
                f"{PROVENANCE}, as wheels of older versions"
            )
        if wheel.components is None:
            yield f"components: {wheel.name} carries no bill of materials (*{SBOM})"


# Each section: what a wheel says, by name; None where it does not say.
Rows: TypeAlias = Mapping[str, str] | None


def _wheel(wheel: WheelContent) -> Rows:
    manifest = wheel.manifest
    return {
        "version": manifest["version"],
        "preset": manifest["preset"],
        "plan": manifest["plan_hash"],
        "lowering": manifest.get("lowering") or "none",
        "machine": manifest.get("machine") or "none",
    }


def _versions(wheel: WheelContent) -> Rows:
    return {name: str(value) for name, value in wheel.manifest["versions"].items()}


def _modules(wheel: WheelContent) -> Mapping[str, str]:
    return {module["name"]: str(module["family"]) for module in wheel.manifest["modules"]}


def _targets(wheel: WheelContent) -> Rows:
    rows = {}
    for module in wheel.manifest["modules"]:
        images, compiled_for = module["architectures"], module.get("compiled_for")
        rows[module["name"]] = " ".join(images)
        if compiled_for not in (None, images):
            rows[module["name"]] += f" (lowered from {' '.join(compiled_for)})"
    return rows


def _functions(wheel: WheelContent) -> Rows:
    return {
        f"{module['name']}: {function}": str(operator)
        for module in wheel.manifest["modules"]
        for function, operator in module["functions"].items()
    }


def _library(wheel: WheelContent) -> Rows:
    library = wheel.manifest["library"]
    return {
        f"{library['name']}: size": f"{library['size']} bytes",
        f"{library['name']}: sha256": library["sha256"],
    }


def _of_provenance(
    rows: Callable[[Provenance], Mapping[str, str]],
) -> Callable[[WheelContent], Rows]:
    return lambda wheel: None if wheel.provenance is None else rows(wheel.provenance)


def _compilers(provenance: Provenance) -> Mapping[str, str]:
    return provenance.compilers


def _own_flags(provenance: Provenance) -> Mapping[str, str]:
    return {
        "TVM-FFI sources": " ".join(provenance.runtime_sources),
        "host compiler flags": " ".join(provenance.host_flags),
    }


def _operator_sources(provenance: Provenance) -> Mapping[str, str]:
    return provenance.operator_sources


def _components(wheel: WheelContent) -> Rows:
    return wheel.components


def _files(wheel: WheelContent) -> Rows:
    return {name: f"{size} bytes, sha256 {digest}" for name, (size, digest) in wheel.files.items()}


SECTIONS: Final[Mapping[str, Callable[[WheelContent], Rows]]] = {
    "wheel": _wheel,
    "versions": _versions,
    "compilers": _of_provenance(_compilers),
    "modules": _modules,
    "targets": _targets,
    "functions": _functions,
    "units": lambda _: None,
    "own flags": _of_provenance(_own_flags),
    "operator sources": _of_provenance(_operator_sources),
    "library": _library,
    "components": _components,
    "files": _files,
}
"""What is compared, in the order of the report."""
