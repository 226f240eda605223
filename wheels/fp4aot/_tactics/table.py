"""A table of tactics as data: entries in sections, and how tables are merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

FORMAT = "fp4aot mm_fp4 tactics"
SCHEMA = 1

OUT_DTYPES = ("bfloat16", "float16")
"""The output dtypes of `mm_fp4`; the position is the number that the operator knows it by."""

DEFAULT_TACTIC = -1
"""FlashInfer's own choice, which it makes without a table."""


class Choice(NamedTuple):
    """One row of what the operator looks up.

    Attributes
    ----------
    major, minor
        Compute capability.
    out_dtype
        ``"bfloat16"`` or ``"float16"``.
    n, k
        Sizes of the weight.
    m
        Smallest M of the bucket; it ends where the next one starts.
    tactic
        Position in the list of the wheel's GEMM for this capability; -1 for FlashInfer's default.
    """

    major: int
    minor: int
    out_dtype: str
    n: int
    k: int
    m: int
    tactic: int


@dataclass(frozen=True)
class Entry:
    """The tactic of one weight shape, output dtype and bucket of M.

    Parameters
    ----------
    n, k, out_dtype, m, tactic
        As in `Choice`.
    measured_m
        The M that was measured, or None where nothing was: an imported entry, or a gap.
    microseconds, default_microseconds
        Median times of this tactic and of the default there.
    """

    n: int
    k: int
    out_dtype: str
    m: int
    tactic: int
    measured_m: int | None = None
    microseconds: float | None = None
    default_microseconds: float | None = None

    @property
    def key(self) -> tuple[int, int, str, int]:
        """What one section has at most one entry for."""
        return self.n, self.k, self.out_dtype, self.m

    @property
    def evidence(self) -> int:
        """Return 2 for a measured entry, 1 for an imported tactic, 0 for a gap in a cache."""
        if self.microseconds is not None:
            return 2
        return 0 if self.tactic == DEFAULT_TACTIC else 1

    def to_json(self) -> dict[str, Any]:
        """Plain data; what is None is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Section:
    """What one run of `tune`, or one import, found for one device.

    Parameters
    ----------
    device, capability
        Name and compute capability of the GPU.
    plan_hash, version, flashinfer
        The wheel that the tactic numbers are of: its build plan's hash, its version, FlashInfer's.
    driver
        Version of the NVIDIA driver, or None where it is not known.
    cuda_runtime
        CUDA version of the runtime in the wheel.
    written
        When, in UTC: ``2026-01-31T12:00:00Z``.
    origin
        ``"tune"``, or what was imported.
    entries
        The entries.
    """

    device: str
    capability: tuple[int, int]
    plan_hash: str
    version: str
    flashinfer: str
    driver: str | None
    cuda_runtime: str
    written: str
    origin: str
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, the entries last."""
        return {
            "device": self.device,
            "compute_capability": "{}.{}".format(*self.capability),
            "wheel": {
                "plan_hash": self.plan_hash,
                "version": self.version,
                "flashinfer": self.flashinfer,
            },
            "driver": self.driver,
            "cuda_runtime": self.cuda_runtime,
            "written": self.written,
            "origin": self.origin,
            "entries": [entry.to_json() for entry in self.entries],
        }


@dataclass(frozen=True)
class Table:
    """Sections, for one device or for a fleet."""

    sections: tuple[Section, ...] = ()

    def __len__(self) -> int:
        return sum(len(section.entries) for section in self.sections)

    def choices(self) -> list[Choice]:
        """List what the operator would use, sorted; conflicts are settled as `merge` does."""
        return sorted(
            Choice(*section.capability, entry.out_dtype, entry.n, entry.k, entry.m, entry.tactic)
            for section in merge((self,)).sections
            for entry in section.entries
        )

    def devices(self) -> list[str]:
        """List the devices: ``NVIDIA B200 (10.0)``."""
        return sorted({describe(section) for section in self.sections})

    def to_json(self) -> dict[str, Any]:
        """Plain data, as in a file."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "sections": [section.to_json() for section in self.sections],
        }


def describe(section: Section) -> str:
    """Name a section's device with its capability."""
    return "{} ({}.{})".format(section.device, *section.capability)


def merge(tables: Iterable[Table]) -> Table:
    """Put tables together so that each capability, dtype, N, K and M has one entry.

    Of several, what was measured wins over what was imported, and that over a gap; of equals the
    newer section wins, and of equally old ones the later argument. Times are not compared: those of
    another run, driver or board say nothing about this one. What lost is taken out of its section,
    so that every section stays the record of one run; a section with nothing left is dropped.
    """
    sections = [section for table in tables for section in table.sections]
    best: dict[tuple[Any, ...], tuple[int, str, int]] = {}
    for index, section in enumerate(sections):
        for entry in section.entries:
            rank = (entry.evidence, section.written, index)
            key = _key(section, entry)
            best[key] = max(best.get(key, rank), rank)
    merged = []
    for index, section in enumerate(sections):
        kept = [entry for entry in section.entries if best[_key(section, entry)][2] == index]
        if kept:
            kept.sort(key=lambda entry: entry.key)
            merged.append(replace(section, entries=tuple(kept)))
    return Table(tuple(merged))


def _key(section: Section, entry: Entry) -> tuple[Any, ...]:
    return (section.capability, *entry.key)


def shared_capabilities(table: Table) -> list[str]:
    """List capabilities that sections of differently named devices share: the operator cannot tell.

    Returns
    -------
    list of str
        One sentence each.
    """
    names: dict[tuple[int, int], set[str]] = {}
    for section in table.sections:
        names.setdefault(section.capability, set()).add(section.device)
    return [
        "compute capability {}.{} has sections of {}: the operator tells devices by their "
        "capability, and where both have an entry it uses the newer measurement; keep one file for "
        "each device where that matters".format(*capability, " and ".join(sorted(devices)))
        for capability, devices in sorted(names.items())
        if len(devices) > 1
    ]
