"""Which table of tactics is in force, as ``python -m fp4aot doctor`` shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fp4aot._tactics import active
from fp4aot._tactics.table import describe, shape_of

_NONE = (
    "no table is loaded, and no server has left a cache of FlashInfer's autotuner here: calls use "
    "FlashInfer's default tactics until a server tunes as it starts (SGLang and vLLM do, unless "
    "they are told not to) or FP4AOT_TACTICS names a table of python -m fp4aot tune"
)


@dataclass(frozen=True)
class InForce:
    """What the operators of this process choose by.

    Parameters
    ----------
    sections
        Where the rows come from, for which device, and for how many shapes: one sentence each.
    caches
        Files in which servers keep what FlashInfer's autotuner found on this machine. They read
        them as they start.
    """

    sections: tuple[str, ...]
    caches: tuple[str, ...]

    def lines(self) -> list[str]:
        """Write it for a person."""
        lines = [f"  in force here: {section}" for section in self.sections]
        lines += [f"  kept by a server: {cache}" for cache in self.caches]
        return lines or [f"  {_NONE}"]


def read(environment: Mapping[str, str] = os.environ) -> InForce:
    """Describe the tables of this process, and find the caches of SGLang and vLLM."""
    sections = []
    for section in active.table().sections:
        shapes = len({shape_of(section, entry) for entry in section.all_entries})
        sections.append(
            f"{len(section.all_entries)} rows for {shapes} shapes on {describe(section)}, from "
            f"{section.origin}, {section.written}"
        )
    home = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sglang = Path(environment.get("SGLANG_CACHE_DIR") or home / "sglang")
    vllm = Path(environment.get("VLLM_CACHE_ROOT") or home / "vllm")
    found = [
        *(sglang / "flashinfer" / "autotune").glob("*/*/*/*.json"),
        *(vllm / "flashinfer_autotune_cache").glob("**/autotune_configs.json"),
    ]
    return InForce(tuple(sections), tuple(sorted(map(str, found))))
