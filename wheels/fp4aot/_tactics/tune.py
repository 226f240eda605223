"""``python -m fp4aot tune``: measures every tactic on the device present and writes a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from fp4aot._tactics import active, file, shapes
from fp4aot._tactics.buckets import bucket_of, buckets_up_to, start_of
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.machine import Gpu, Machine, choose, this_machine
from fp4aot._tactics.measure import (
    Bench,
    Case,
    CaseError,
    DeviceLostError,
    Measurement,
    measure,
)
from fp4aot._tactics.progress import Progress
from fp4aot._tactics.shapes import Shape
from fp4aot._tactics.table import DEFAULT_TACTIC, OUT_DTYPES, Section, Table, merge
from fp4aot._tactics.text import columns

DEFAULT_FILE = "fp4aot-tactics.json"
LARGEST_M = 8192


@dataclass
class Report:
    """What a run measured.

    Parameters
    ----------
    gpu
        On which device.
    out
        The table's file.
    measurements
        One for each case.
    skipped
        Shapes that the kernels cannot take.
    failed
        Cases that could not be measured, and why.
    stopped
        Why the run ended before its time, if it did.
    """

    gpu: Gpu
    out: Path
    measurements: list[Measurement] = field(default_factory=list)
    skipped: list[Shape] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for has been measured."""
        return not self.failed and self.stopped is None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": self.ok,
            "device": self.gpu.name,
            "compute_capability": "{}.{}".format(*self.gpu.capability),
            "out": str(self.out) if self.measurements else None,
            "measurements": [
                {
                    **found.entry().to_json(),
                    "layers": found.case.shape.name,
                    "excluded": {str(tactic): why for tactic, why in found.excluded.items()},
                    "all_microseconds": {
                        str(tactic): round(time, 3) for tactic, time in found.microseconds.items()
                    },
                }
                for found in self.measurements
            ],
            "skipped": [{"n": s.n, "k": s.k, "layers": s.name} for s in self.skipped],
            "failed": self.failed,
            "stopped": self.stopped,
        }


def add_parser(commands: Any) -> None:
    """Add the command to the program's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune", help="measure the tactics of mm_fp4 on this device and write a table"
    )
    parser.add_argument(
        "--shapes",
        required=True,
        help='what to tune: a JSON list of [N, K] or {"n": N, "k": K}, lines "N K" or "NxK", or a '
        "model's config.json (Hugging Face)",
    )
    parser.add_argument(
        "--tp", type=_positive, default=1, help="tensor-parallel size of the model (default: 1)"
    )
    parser.add_argument(
        "--m",
        type=_positive,
        nargs="+",
        help=f"values of M; each stands for its bucket (default: all buckets up to {LARGEST_M})",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=OUT_DTYPES,
        default=["bfloat16"],
        help="output dtypes (default: bfloat16)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(DEFAULT_FILE),
        help=f"the table's file; one that exists is added to (default: {DEFAULT_FILE})",
    )
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument(
        "--exclude",
        type=int,
        nargs="+",
        default=[],
        metavar="TACTIC",
        help="tactics to leave out, such as one that crashed the device",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(
    options: argparse.Namespace,
    make_machine: Callable[[], Machine] = this_machine,
    errors: TextIO | None = None,
) -> int:
    """Run the command and return its exit status: 0 when all was measured.

    Parameters
    ----------
    options
        The parsed arguments.
    make_machine
        Looks at the machine.
    errors
        Where progress goes; standard error.
    """
    errors = errors or sys.stderr
    machine = make_machine()
    gpu = choose(machine, options.device)
    wanted = shapes.read(options.shapes, options.tp)
    before = _existing(options.out, machine, errors)
    report = Report(gpu, options.out, skipped=[shape for shape in wanted if not shape.fits])
    for shape in report.skipped:
        print(f"skipped {_skipped(shape)}", file=errors)
    cases = list(_cases([shape for shape in wanted if shape.fits], options.m, options.dtype))
    if not cases:
        raise TacticsError(
            f"fp4aot.tactics: {options.shapes}: no shape is left to tune; N and K must be "
            f"divisible by {shapes.MULTIPLE}"
        )
    # With a table in force, tactic -1 would be its choice, and not FlashInfer's default.
    active.clear(machine.set_table)
    tactics = range(machine.wheel.tactic_count(*gpu.capability))
    print(f"{len(cases)} cases of {len(tactics) + 1} tactics on {gpu}", file=errors)
    _run_all(
        report,
        cases,
        [tactic for tactic in tactics if tactic not in options.exclude],
        machine.make_bench(gpu),
        Progress(len(cases), errors),
        lambda: file.write(merge([before, Table((_section(report, machine),))]), options.out),
    )
    print(json.dumps(report.to_json(), indent=2) if options.json else render(report))
    return 0 if report.ok else 1


def render(report: Report) -> str:
    """Write a report for a person."""
    rows = [
        (
            str(found.case.shape),
            _range(found.case.bucket),
            found.case.out_dtype,
            f"{found.default:.1f}",
            f"{found.best:.1f}",
            f"{found.default / found.best:.2f}",
            "default" if found.tactic == DEFAULT_TACTIC else str(found.tactic),
            found.case.shape.name,
        )
        for found in report.measurements
    ]
    head = ("NxK", "M", "dtype", "default us", "best us", "ratio", "tactic", "layers")
    lines = columns(head, rows, right=range(3, 7)) if rows else []
    lines += _excluded(report.measurements)
    lines += [f"skipped:  {_skipped(shape)}" for shape in report.skipped]
    lines += [f"FAILED:   {case}: {why}" for case, why in report.failed.items()]
    if report.stopped:
        lines.append(f"STOPPED:  {report.stopped}")
    if report.measurements:
        faster = sum(found.tactic != DEFAULT_TACTIC for found in report.measurements)
        lines += [
            "",
            f"{report.out}: {len(report.measurements)} entries for {report.gpu}; another tactic "
            f"than the default is faster in {faster}.",
            f"Use it: FP4AOT_TACTICS={report.out}, or fp4aot.tactics.load({str(report.out)!r}).",
        ]
    else:
        lines += ["", "Nothing was measured, and no table was written."]
    return "\n".join(lines)


def now() -> str:
    """Return the time as tables have it."""
    return datetime.now(timezone.utc).strftime(file.TIME_FORMAT)


def _run_all(
    report: Report,
    cases: Sequence[Case],
    tactics: Sequence[int],
    bench: Bench,
    progress: Progress,
    save: Callable[[], None],
) -> None:
    """Measure case by case; whatever ends the run, what has been measured is in the file."""
    try:
        for case in cases:
            try:
                report.measurements.append(measure(case, tactics, bench))
            except CaseError as error:
                report.failed[str(case)] = str(error)
            else:
                save()
            progress.step(str(case))
    except DeviceLostError as error:
        report.stopped = str(error)
    except KeyboardInterrupt:
        report.stopped = "interrupted; what was measured before is kept"
    finally:
        progress.close()


def _cases(
    wanted: Sequence[Shape], rows: Sequence[int] | None, dtypes: Sequence[str]
) -> Iterator[Case]:
    buckets = sorted({bucket_of(m) for m in rows}) if rows else buckets_up_to(LARGEST_M)
    for shape in wanted:
        for dtype in dict.fromkeys(dtypes):
            for bucket in buckets:
                yield Case(shape, dtype, bucket)


def _existing(path: Path, machine: Machine, errors: TextIO) -> Table:
    """Read the table to add to, before anything is measured: it may not fit."""
    if not path.exists():
        # So may the folder.
        if not path.resolve().parent.is_dir():
            raise TacticsError(
                f"fp4aot.tactics: --out: {path}: there is no such folder; create it first"
            )
        return Table()
    try:
        table, notes = file.read(path, machine.wheel)
    except TacticsError as error:
        raise TacticsError(f"{error}. To start anew, choose another --out") from error
    for note in notes:
        print(f"note: {note}", file=errors)
    return table


def _section(report: Report, machine: Machine) -> Section:
    wheel = machine.wheel
    return Section(
        device=report.gpu.name,
        capability=report.gpu.capability,
        plan_hash=wheel.plan_hash,
        version=wheel.version,
        flashinfer=wheel.flashinfer,
        driver=wheel.driver,
        cuda_runtime=wheel.cuda_runtime,
        written=now(),
        origin="tune",
        entries=tuple(found.entry() for found in report.measurements),
    )


def _excluded(measurements: Sequence[Measurement]) -> list[str]:
    """Say which tactics were left out: a line each, with the first of the reasons."""
    found: dict[int, list[str]] = {}
    for measurement in measurements:
        for tactic, why in measurement.excluded.items():
            found.setdefault(tactic, []).append(f"{measurement.case}: {why}")
    return [
        f"excluded: tactic {tactic} in {len(reasons)} of {len(measurements)} cases, {reasons[0]}"
        for tactic, reasons in sorted(found.items())
    ]


def _range(bucket: int) -> str:
    return f"{start_of(bucket)}-{bucket}" if start_of(bucket) < bucket else str(bucket)


def _skipped(shape: Shape) -> str:
    layers = f" ({shape.name})" if shape.name else ""
    return f"{shape}{layers}: N and K must be divisible by {shapes.MULTIPLE}"


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return value
