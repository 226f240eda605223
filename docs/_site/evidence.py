"""What is verified where, by operator: from the catalogue and the reports of runs on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tomllib

from _site.page import Page
from _site.source import ROOT, code, table
from aot.architectures import Architecture
from aot.operator_sources import defined_operators
from aot.presets import PRESETS

FACTS = "docs/evidence.toml"
_OPERATORS = "wheels/fp4aot/csrc/operators"


@dataclass(frozen=True)
class Facts:
    """What no report says: see the file.

    Parameters
    ----------
    built_presets
        Presets that were compiled and audited to the end.
    gpu_reports
        The reports of the tests on a GPU, relative to the repository.
    unlowered
        Operators whose kernels ran on that GPU as they are.
    plain_torch
        Operators that are plain PyTorch on every device: nothing is compiled.
    host
        Operators that run on the CPU alone.
    """

    built_presets: tuple[str, ...]
    gpu_reports: tuple[str, ...]
    unlowered: tuple[str, ...]
    plain_torch: tuple[str, ...]
    host: tuple[str, ...]


def facts() -> Facts:
    """Read the file."""
    data = tomllib.loads((ROOT / FACTS).read_text(encoding="utf-8"))
    return Facts(**{name: tuple(names) for name, names in data.items()})


def operators() -> tuple[str, ...]:
    """Name the operators of the library for users."""
    defined = defined_operators(ROOT / _OPERATORS)
    return tuple(sorted(name for name in defined if not name.startswith("_")))


def compiled_for(operator: str, presets: Sequence[str]) -> tuple[str, ...]:
    """List the targets that an operator was compiled for in some presets."""
    shared = {"scaled_fp4_grouped_quantize": "silu_and_mul_scaled_nvfp4_experts_quantize"}
    operator = shared.get(operator, operator)
    found = {
        target
        for preset in presets
        for module in PRESETS[preset].modules
        if any(function.operator == operator for function in module.functions)
        for target in module.architectures
    }
    return tuple(sorted(found, key=Architecture.parse))


def passed_on_gpu(reports: Sequence[str]) -> dict[str, int]:
    """Return how many tests of each operator passed; one that failed would be an error here.

    Parameters
    ----------
    reports
        The first in which an operator has passed counts.
    """
    found: dict[str, int] = {}
    for report in reports:
        data = json.loads((ROOT / report).read_text(encoding="utf-8"))
        for one in data["subjects"]:
            if one["passed"] and not one["failed"]:
                found.setdefault(one["subject"], one["passed"])
    return found


def markdown(_: Sequence[str]) -> Page:
    """Write the table."""
    found = facts()
    passed = passed_on_gpu(found.gpu_reports)
    head = ("operator", "CPU reference", "compiled and audited for", "H200", "Blackwell")
    rows = [tuple(_row(name, found, passed)) for name in operators()]
    sources = (FACTS, *found.gpu_reports, _OPERATORS, "aot/catalog.py", "aot/presets.py")
    return Page(table(head, rows), sources)


def _row(name: str, found: Facts, passed: dict[str, int]) -> Iterator[str]:
    yield code(name)
    yield "FlashInfer's host code" if name in found.host else "yes"
    if name in found.plain_torch:
        yield "plain PyTorch"
    elif name in found.host:
        yield "the CPU"
    else:
        yield ", ".join(compiled_for(name, found.built_presets)) or "not yet"
    count = passed.get(name, 0)
    if name in found.host:
        yield "—"
    elif not count:
        yield "not yet"
    else:
        how = "as it is" if name in (*found.unlowered, *found.plain_torch) else "lowered"
        yield f"{how}: {count} tests passed"
    yield "—" if name in found.host else "not yet"
