"""What `python -m fp4aot tune` says when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp4aot._gpus import Gpu
from fp4aot._tactics import shapes
from fp4aot._tactics.buckets import start_of
from fp4aot._tactics.entries import DEFAULT_TACTIC
from fp4aot._tactics.measure import Measurement
from fp4aot._tactics.measure_moe import MoeMeasurement
from fp4aot._tactics.shapes import MoeShape, Shape
from fp4aot._tactics.text import columns
from fp4aot._tactics.trials import Times


@dataclass
class Report:
    """What a run measured.

    Parameters
    ----------
    gpu
        On which device.
    out
        The table's file.
    measurements, moe_measurements
        One for each case of `mm_fp4` and of `cutlass_fused_moe`.
    skipped
        Shapes that are not measured, and why.
    failed
        Cases that could not be measured, and why.
    stopped
        Why the run ended before its time, if it did.
    """

    gpu: Gpu
    out: Path
    measurements: list[Measurement] = field(default_factory=list)
    moe_measurements: list[MoeMeasurement] = field(default_factory=list)
    skipped: list[tuple[Shape | MoeShape, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for has been measured."""
        return not self.failed and self.stopped is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been measured."""
        return not (self.measurements or self.moe_measurements)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": self.ok,
            "device": self.gpu.name,
            "compute_capability": "{}.{}".format(*self.gpu.capability),
            "out": None if self.is_empty else str(self.out),
            "measurements": [
                {
                    **found.entry().to_json(),
                    "layers": found.case.shape.name,
                    **_times(found),
                }
                for found in self.measurements
            ],
            "moe_measurements": [
                {
                    **found.entry().to_json(),
                    "ep_size": found.case.shape.ep_size,
                    "layers": found.case.shape.name,
                    "gemm1": _times(found.first),
                    "gemm2": _times(found.second),
                }
                for found in self.moe_measurements
            ],
            "skipped": [
                {"shape": str(shape), "layers": shape.name, "why": why}
                for shape, why in self.skipped
            ],
            "failed": self.failed,
            "stopped": self.stopped,
        }


def render(report: Report) -> str:
    """Write a report for a person."""
    lines = [*_dense(report.measurements), *_moe(report.moe_measurements)]
    lines += _excluded("tactic", [(str(m.case), m) for m in report.measurements])
    for product in (1, 2):
        lines += _excluded(
            f"tactic of product {product}",
            [(str(m.case), (m.first, m.second)[product - 1]) for m in report.moe_measurements],
        )
    lines += [f"skipped:  {skipped(shape, why)}" for shape, why in report.skipped]
    lines += [f"FAILED:   {case}: {why}" for case, why in report.failed.items()]
    if report.stopped:
        lines.append(f"STOPPED:  {report.stopped}")
    if report.is_empty:
        return "\n".join([*lines, "", "Nothing was measured, and no table was written."])
    found = [*report.measurements, *report.moe_measurements]
    faster = sum(m.tactic != DEFAULT_TACTIC for m in report.measurements)
    faster += sum(set(m.tactics) != {DEFAULT_TACTIC} for m in report.moe_measurements)
    lines += [
        "",
        f"{report.out}: {len(found)} entries for {report.gpu}; another tactic than the default is "
        f"faster in {faster}.",
        f"Use it: FP4AOT_TACTICS={report.out}, or fp4aot.tactics.load({str(report.out)!r}).",
    ]
    return "\n".join(lines)


def skipped(shape: Shape | MoeShape, why: str) -> str:
    """Say which shape is not measured, and why."""
    layers = f" ({shape.name})" if shape.name else ""
    return f"{shape}{layers}: {why}"


def misfit(shape: Shape | MoeShape) -> str:
    """Say why the kernels cannot take a shape."""
    what = "N and K" if isinstance(shape, Shape) else "the hidden and the intermediate size"
    return f"{what} must be divisible by {shapes.MULTIPLE}"


def _dense(measurements: Sequence[Measurement]) -> list[str]:
    rows = [
        (
            str(found.case.shape),
            _range(found.case.bucket),
            found.case.out_dtype,
            *_compared(found.default, found.best),
            _tactic(found.tactic),
            found.case.shape.name,
        )
        for found in measurements
    ]
    head = ("NxK", "M", "dtype", "default us", "best us", "ratio", "tactic", "layers")
    return columns(head, rows, right=range(3, 7)) if rows else []


def _moe(measurements: Sequence[MoeMeasurement]) -> list[str]:
    rows = [
        (
            str(found.case.shape),
            _range(found.case.bucket),
            found.case.output_dtype,
            "packed" if found.case.quantized_input else "float",
            "fused" if found.case.use_fused_finalize else "separate",
            *_compared(found.default, found.best),
            *map(_tactic, found.tactics),
            found.case.shape.name,
        )
        for found in measurements
    ]
    head = (
        *("experts, HxI", "tokens", "dtype", "input", "finalize", "default us", "best us", "ratio"),
        *("gemm1", "gemm2", "layers"),
    )
    return columns(head, rows, right=range(5, 10)) if rows else []


def _compared(default: float, best: float) -> tuple[str, str, str]:
    return f"{default:.1f}", f"{best:.1f}", f"{default / best:.2f}"


def _tactic(tactic: int) -> str:
    return "default" if tactic == DEFAULT_TACTIC else str(tactic)


def _times(times: Times) -> dict[str, Any]:
    return {
        "excluded": {str(tactic): why for tactic, why in times.excluded.items()},
        "all_microseconds": {
            str(tactic): round(time, 3) for tactic, time in times.microseconds.items()
        },
    }


def _excluded(what: str, found: Sequence[tuple[str, Times]]) -> list[str]:
    """Say which tactics were left out: a line each, with the first of the reasons."""
    excluded: dict[int, list[str]] = {}
    for case, times in found:
        for tactic, why in times.excluded.items():
            excluded.setdefault(tactic, []).append(f"{case}: {why}")
    return [
        f"excluded: {what} {tactic} in {len(reasons)} of {len(found)} cases, {reasons[0]}"
        for tactic, reasons in sorted(excluded.items())
    ]


def _range(bucket: int) -> str:
    return f"{start_of(bucket)}-{bucket}" if start_of(bucket) < bucket else str(bucket)
