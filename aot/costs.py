"""What each compiler run has cost: measured in a build, kept in the build folder.

It corrects the estimates of the next build, and lets the report of a build from the cache say what
its units cost when they were compiled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aot import files
from aot.compile.job import Job
from aot.compile.record import JobRecord, Origin

_MARGIN: Final = 1.1
"""A peak is looked for ten times a second, and differs a little from run to run."""
_SMALLEST_MEGABYTES: Final = 100


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
class Measured:
    """One compiler run that was measured: the name of its job, and what it took."""

    name: str
    cost: Cost


@dataclass(frozen=True)
class UnitCost:
    """One unit of a build.

    Parameters
    ----------
    module, unit
        Its names.
    origin
        Where its object is from; None for one that was not made.
    seconds
        Wall time in this build.
    cost
        What compiling it took, in this build or earlier; None where nobody has measured it.
    """

    module: str
    unit: str
    origin: Origin | None
    seconds: float
    cost: Cost | None


def read_costs(path: Path) -> dict[str, Measured]:
    """Read what earlier builds have measured, by key of the job.

    It is a record for estimates and reports: a damaged file counts as none.
    """
    try:
        data = json.loads(path.read_text())
        return {
            key: Measured(one["name"], Cost(float(one["seconds"]), _integer(one["megabytes"])))
            for key, one in data.items()
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def record_costs(
    path: Path, known: Mapping[str, Measured], jobs: Iterable[Job], records: Iterable[JobRecord]
) -> dict[str, Measured]:
    """Add what a build has compiled to the file, and return all that is known then."""
    result = dict(known)
    for job, record in zip(jobs, records, strict=True):
        if record.origin == "compiled" and record.seconds is not None:
            result.pop(job.key, None)  # the latest is the last
            cost = Cost(round(record.seconds, 1), record.peak_megabytes)
            result[job.key] = Measured(job.name, cost)
    _write(path, result)
    return result


def add_costs(path: Path, measured: Mapping[str, Measured]) -> None:
    """Add what another machine has measured to the file; what is there stays, and the latest."""
    known = read_costs(path)
    _write(path, {**{key: one for key, one in measured.items() if key not in known}, **known})


def _write(path: Path, known: Mapping[str, Measured]) -> None:
    if known:
        data = {key: {"name": one.name, **asdict(one.cost)} for key, one in known.items()}
        # In the order of measuring: `expect` takes the last of a name.
        files.write_text(path, json.dumps(data, indent=1) + "\n")


def expect(
    known: Mapping[str, Measured], key: str, name: str, estimate: tuple[int, int]
) -> tuple[int, float]:
    """Say what a job will take: megabytes at its peak, and seconds.

    Parameters
    ----------
    known
        What was measured.
    key, name
        Of the job. A job of the same name whose source or compiler has changed is a better guess
        than an estimate.
    estimate
        Megabytes and seconds, from `aot.estimates`.
    """
    found = known.get(key)
    if found is None:
        found = next((one for one in reversed([*known.values()]) if one.name == name), None)
    megabytes, seconds = estimate
    if found is None:
        return megabytes, seconds
    peak = found.cost.megabytes
    if peak is not None:
        megabytes = max(_SMALLEST_MEGABYTES, math.ceil(peak * _MARGIN))
    return megabytes, found.cost.seconds


def unit_costs(
    jobs: Iterable[Job], records: Iterable[JobRecord], known: Mapping[str, Measured]
) -> tuple[UnitCost, ...]:
    """Put together what the units of FlashInfer's modules have cost.

    Parameters
    ----------
    jobs, records
        Of the build.
    known
        What has been measured, in this build too.
    """
    return tuple(
        UnitCost(
            *(job.module, job.unit, record.origin, round(record.seconds or 0.0, 1)),
            known[job.key].cost if job.key in known else None,
        )
        for job, record in zip(jobs, records, strict=True)
        if job.group == "unit"
    )
