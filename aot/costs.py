"""What each translation unit has cost: measured in a build, kept beside the object cache.

A build from the cache compiles nothing. What its units cost when they were compiled is looked up by
a hash over what they were compiled from, so that its report can still say it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aot import files
from aot.plan import BuildPlan, Unit

Origin = Literal["compiled", "cache", "kept"]

_NINJA_FIELDS: Final = 5  # start and end in milliseconds, time stamp, output, hash of the command


@dataclass(frozen=True)
class Cost:
    """What compiling one unit took.

    Parameters
    ----------
    seconds
        Wall time, beside as many other compilers as there were.
    megabytes
        Peak memory of its largest compiler process; None where none was seen.
    """

    seconds: float
    megabytes: int | None


@dataclass(frozen=True)
class UnitCost:
    """One unit of a build.

    Parameters
    ----------
    module, unit
        Its names.
    origin
        ``"compiled"`` in this build, taken from the object ``"cache"``, or ``"kept"`` in the build
        folder from an earlier build.
    seconds
        Wall time in this build.
    cost
        What compiling it took, in this build or earlier; None where nobody has measured it.
    """

    module: str
    unit: str
    origin: Origin
    seconds: float
    cost: Cost | None


def unit_key(unit: Unit, compiler: str) -> str:
    """Identify what is compiled, on any machine: source, flags, and version of the compiler."""
    text = json.dumps([compiler, unit.source, unit.sha256, unit.flags])
    return hashlib.sha256(text.encode()).hexdigest()


def read_costs(path: Path) -> dict[str, Cost]:
    """Read what earlier builds have measured, by `unit_key`.

    It is a record for reports, and nothing is built from it: a damaged file counts as none.
    """
    return {key: Cost(float(one["seconds"]), one["megabytes"]) for key, one in _read(path).items()}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        data: dict[str, dict[str, Any]] = json.loads(path.read_text())
        usable = all({"unit", "seconds", "megabytes"} <= one.keys() for one in data.values())
    except (OSError, ValueError, AttributeError):
        return {}
    return data if usable else {}


def record_costs(path: Path, plan: BuildPlan, units: Iterable[UnitCost]) -> None:
    """Add what a build has measured to the file, with the names of the units for a reader."""
    costs = {f"{one.module}/{one.unit}": one.cost for one in units}
    known = _read(path)
    for module in plan.modules:
        for unit in module.units:
            name = f"{module.name}/{unit.name}"
            cost = costs.get(name)
            if cost is not None:
                known[unit_key(unit, plan.compiler)] = {"unit": name, **vars(cost)}
    if known:
        files.write_json(path, known)


def ninja_seconds(log: Path) -> dict[str, float]:
    """Read how long each output took when ninja last made it, by its path as ninja has it."""
    seconds = {}
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == _NINJA_FIELDS and fields[0].isdecimal() and fields[1].isdecimal():
            seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return seconds


def unit_costs(
    plan: BuildPlan,
    *,
    steps: set[str],
    seconds: Mapping[str, float],
    peaks: Mapping[str, int],
    compiled: Collection[str] | None,
    known: Mapping[str, Cost],
) -> tuple[UnitCost, ...]:
    """Put together what a build has cost.

    Parameters
    ----------
    plan
        What was built.
    steps
        The units that ninja made in this build, as ``module/unit``.
    seconds
        How long ninja took for each output, as `ninja_seconds` returns them.
    peaks
        Peak memory of the units that programs were seen to work on.
    compiled
        The units whose compiler was seen at work; None where there is no object cache: there,
        whatever ninja made was compiled.
    known
        What earlier builds have measured.
    """
    result = []
    for module in plan.modules:
        for unit in module.units:
            name = f"{module.name}/{unit.name}"
            took = seconds.get(f"units/{name}.o") if name in steps else None
            if name not in steps:
                origin: Origin = "kept"
            elif compiled is None or name in compiled:
                origin = "compiled"
            else:
                origin = "cache"
            cost = known.get(unit_key(unit, plan.compiler))
            if origin == "compiled":
                # Ninja logs no time for one that failed.
                cost = None if took is None else Cost(took, peaks.get(name))
            result.append(UnitCost(module.name, unit.name, origin, took or 0.0, cost))
    return tuple(result)
