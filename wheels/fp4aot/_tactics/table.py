"""A table of tactics as data: entries in sections, and how tables are merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fp4aot._tactics.entries import Choice, Entry, MoeChoice, MoeEntry

FORMAT = "fp4aot mm_fp4 tactics"
"""As in files from before there were others: what a file holds is its schema's to say."""
SCHEMA = 2
READABLE_SCHEMAS = (1, 2)
"""1 has no `moe_entries`."""


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
    entries, moe_entries
        The entries of `mm_fp4` and of `cutlass_fused_moe`.
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
    moe_entries: tuple[MoeEntry, ...] = ()

    @property
    def all_entries(self) -> tuple[Entry | MoeEntry, ...]:
        """The entries of both operators."""
        return (*self.entries, *self.moe_entries)

    def to_json(self) -> dict[str, Any]:
        """Plain data, the entries last; those of `cutlass_fused_moe` only where there are any."""
        data: dict[str, Any] = {
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
        if self.moe_entries:
            data["moe_entries"] = [entry.to_json() for entry in self.moe_entries]
        return data


@dataclass(frozen=True)
class Table:
    """Sections, for one device or for a fleet."""

    sections: tuple[Section, ...] = ()

    def __len__(self) -> int:
        return sum(len(section.all_entries) for section in self.sections)

    def choices(self) -> list[Choice]:
        """List what `mm_fp4` would use, sorted; conflicts are settled as `merge` does."""
        return sorted(
            Choice(*section.capability, entry.out_dtype, entry.n, entry.k, entry.m, entry.tactic)
            for section in merge((self,)).sections
            for entry in section.entries
        )

    def moe_choices(self) -> list[MoeChoice]:
        """List what `cutlass_fused_moe` would use, likewise."""
        return sorted(
            MoeChoice(
                *section.capability,
                entry.output_dtype,
                entry.quantized_input,
                entry.use_fused_finalize,
                entry.hidden_size,
                entry.intermediate_size,
                entry.experts,
                entry.top_k,
                entry.tokens,
                entry.gemm1_tactic,
                entry.gemm2_tactic,
            )
            for section in merge((self,)).sections
            for entry in section.moe_entries
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
    """Put tables together so that each capability and each key of an entry has one entry.

    Of several, what was measured wins over what was imported, and that over a gap; of equals the
    newer section wins, and of equally old ones the later argument. Times are not compared: those of
    another run, driver or board say nothing about this one. What lost is taken out of its section,
    so that every section stays the record of one run; a section with nothing left is dropped.
    """
    sections = [section for table in tables for section in table.sections]
    best: dict[tuple[Any, ...], tuple[int, str, int]] = {}
    for index, section in enumerate(sections):
        for entry in section.all_entries:
            rank = (entry.evidence, section.written, index)
            key = _key(section, entry)
            best[key] = max(best.get(key, rank), rank)

    def won(section: Section, entry: Entry | MoeEntry, index: int) -> bool:
        return best[_key(section, entry)][2] == index

    merged = []
    for index, section in enumerate(sections):
        entries = [entry for entry in section.entries if won(section, entry, index)]
        moe_entries = [entry for entry in section.moe_entries if won(section, entry, index)]
        if entries or moe_entries:
            entries.sort(key=lambda entry: entry.key)
            moe_entries.sort(key=lambda entry: entry.key)
            kept = replace(section, entries=tuple(entries), moe_entries=tuple(moe_entries))
            merged.append(kept)
    return Table(tuple(merged))


def shape_of(section: Section, entry: Entry | MoeEntry) -> tuple[Any, ...]:
    """Return what an entry is for, but for the number of tokens."""
    return _key(section, entry)[:-1]


def _key(section: Section, entry: Entry | MoeEntry) -> tuple[Any, ...]:
    # The keys of the two operators differ in their lengths.
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
