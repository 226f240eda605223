"""What a benchmark run has measured, as plain data and back."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Measurement:
    """One contender of one group, over many samples.

    Parameters
    ----------
    group
        What is compared: all its contenders do the same work on the same input.
    contender
        One way to do it, as it reads in a table.
    family
        ``"fp4aot"``, ``"flashinfer"`` or ``"torch"``.
    unit
        ``"µs"`` or ``"ms"``.
    median, q1, q3
        Median and quartiles of the samples.
    samples
        How many there were.
    """

    group: str
    contender: str
    family: str
    unit: str
    median: float
    q1: float
    q3: float
    samples: int


@dataclass(frozen=True)
class Failure:
    """A contender that did not run, and why. Missing numbers are never left out silently."""

    group: str
    contender: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that one run says.

    Parameters
    ----------
    date
        When, in UTC.
    wheel, flashinfer
        What was measured: versions, hashes, whether the wheel is lowered; None without FlashInfer.
    machine
        Device, driver and versions.
    settings
        How it was measured.
    measurements, failures
        The numbers, and what has none.
    kernels
        Kernels that the GPU ran for one call, by group and family.
    """

    date: str
    wheel: dict[str, Any]
    flashinfer: dict[str, Any] | None
    machine: dict[str, Any]
    settings: dict[str, Any]
    measurements: tuple[Measurement, ...]
    failures: tuple[Failure, ...] = ()
    kernels: tuple[dict[str, Any], ...] = field(default=())

    @property
    def is_lowered(self) -> bool:
        """Whether the kernels are Blackwell's on a Hopper: their own speed says nothing."""
        return bool(self.wheel["lowered"])

    def find(self, group: str, contender: str) -> Measurement | None:
        """Look up one measurement."""
        for one in self.measurements:
            if (one.group, one.contender) == (group, contender):
                return one
        return None

    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of measuring."""
        names = [*(one.group for one in self.measurements), *(one.group for one in self.failures)]
        return tuple(dict.fromkeys(names))


def summarize(
    group: str, contender: str, family: str, unit: str, samples: Sequence[float]
) -> Measurement:
    """Reduce samples to median and quartiles."""
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return Measurement(group, contender, family, unit, median, q1, q3, len(samples))


def to_json(report: Report, targets: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Plain data; `targets` is what the run has reached, for readers of the file."""
    return {"schema": SCHEMA, **asdict(report), "targets": list(targets)}


def from_json(data: dict[str, Any]) -> Report:
    """Read what `to_json` wrote; the targets are derived from the numbers anew.

    Raises
    ------
    ValueError
        When the data has another schema.
    """
    if data.get("schema") != SCHEMA:
        raise ValueError(f"the report has schema {data.get('schema')}, expected {SCHEMA}")
    return Report(
        date=data["date"],
        wheel=data["wheel"],
        flashinfer=data["flashinfer"],
        machine=data["machine"],
        settings=data["settings"],
        measurements=tuple(Measurement(**one) for one in data["measurements"]),
        failures=tuple(Failure(**one) for one in data["failures"]),
        kernels=tuple(data["kernels"]),
    )


def read(path: Path) -> Report:
    """Read a report from its file."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))
