"""The part of a FlashInfer module that is built, where a wheel needs only its FP4 kernels.

A module of FlashInfer's may hold hundreds of files of which NVFP4 needs eighteen, and its binding
names every dtype. What is taken is said by rules over the list that FlashInfer's own generator
yields, and the link checks the outcome (`aot.link_module`): a rule that fits nothing, a file that
nothing needs and a symbol that no file has each fail the build, so that a FlashInfer whose files
changed is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from aot.errors import PlanError

OWN_SOURCES = Path(__file__).resolve().parents[1] / "wheels" / "fp4aot" / "csrc" / "modules"
"""Sources of ours that are compiled within a FlashInfer module, with its flags."""


@dataclass(frozen=True)
class Selection:
    """Which sources of a module are compiled.

    Parameters
    ----------
    sources
        Patterns of the file names that are taken.
    containing
        Of the files whose names fit a pattern, only those are taken whose text has this in it:
        generated launchers are named by tile shape, and name their dtypes inside.
    replaced
        FlashInfer's file, and the file in `OWN_SOURCES` that is compiled instead.
    dropped_linker_flags
        Flags that FlashInfer links the whole module with and that this part has no use for.
    """

    sources: tuple[str, ...]
    containing: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    replaced: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    dropped_linker_flags: tuple[str, ...] = ()

    def choose(self, module: str, sources: list[Path]) -> dict[Path, Path]:
        """Choose among a module's sources.

        Parameters
        ----------
        module
            Its name, for messages.
        sources
            What FlashInfer's generator lists.

        Returns
        -------
        dict[Path, Path]
            By source that is compiled, the source whose flags it gets: itself, unless it replaces
            another.

        Raises
        ------
        PlanError
            Naming the rule that fits no source.
        """
        chosen = {source: source for source in sources if self._takes(source)}
        rules = (*self.sources, *self.containing)
        self._require(module, rules, [source.name for source in chosen])
        by_name = {source.name: source for source in sources}
        self._require(module, self.replaced, list(by_name))
        for theirs, ours in self.replaced.items():
            chosen[OWN_SOURCES / ours] = by_name[theirs]
        return chosen

    def _takes(self, source: Path) -> bool:
        if any(fnmatchcase(source.name, pattern) for pattern in self.sources):
            return True
        return any(
            text in source.read_text()
            for pattern, text in self.containing.items()
            if fnmatchcase(source.name, pattern)
        )

    @staticmethod
    def _require(module: str, rules: tuple[str, ...] | Mapping[str, str], names: list[str]) -> None:
        for rule in rules:
            if not any(fnmatchcase(name, rule) for name in names):
                raise PlanError(
                    f"{module}: no source of FlashInfer's fits '{rule}' any more; FlashInfer has "
                    "changed: correct the selection in aot/catalog.py"
                )
