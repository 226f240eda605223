"""``python -m fp4aot tune``: measures every tactic on the device present and writes a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TextIO, TypeVar

from fp4aot._gpus import Gpu
from fp4aot._tactics import active, file, measure_moe, shapes
from fp4aot._tactics.bench import Bench
from fp4aot._tactics.buckets import bucket_of, buckets_up_to
from fp4aot._tactics.entries import OUT_DTYPES
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.machine import Machine, choose, this_machine
from fp4aot._tactics.measure import Case, measure
from fp4aot._tactics.measure_moe import MoeCase
from fp4aot._tactics.progress import Progress
from fp4aot._tactics.report import Report, misfit, render, skipped
from fp4aot._tactics.shapes import MoeShape, Shape, Wanted
from fp4aot._tactics.table import Section, Table, merge
from fp4aot._tactics.trials import CaseError, DeviceLostError

DEFAULT_FILE = "fp4aot-tactics.json"
LARGEST_M = 8192
INPUTS = ("float", "packed")
FINALIZES = ("fused", "separate")


def add_parser(commands: Any) -> None:
    """Add the command to the program's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune", help="measure the tactics of FP4 products on this device and write a table"
    )
    parser.add_argument(
        "--shapes",
        required=True,
        help='what to tune: a JSON list of [N, K] or {"n": N, "k": K}, and for a mixture of '
        'experts {"hidden_size": H, "intermediate_size": I, "experts": E, "top_k": k}; lines '
        '"N K" or "NxK"; or a model\'s config.json (Hugging Face)',
    )
    parser.add_argument(
        "--tp", type=_positive, default=1, help="tensor-parallel size of the model (default: 1)"
    )
    parser.add_argument(
        "--ep",
        type=_positive,
        default=1,
        help="over how many devices the model's experts are divided; what is left of --tp divides "
        "their size (default: 1)",
    )
    parser.add_argument(
        "--m",
        type=_positive,
        nargs="+",
        help="values of M, or numbers of tokens; each stands for its bucket (default: all buckets "
        f"up to {LARGEST_M})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(DEFAULT_FILE),
        help=f"the table's file; one that exists is added to (default: {DEFAULT_FILE})",
    )
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    for option, text in (
        ("--exclude", "tactics of mm_fp4 to leave out, such as one that crashed the device"),
        ("--exclude-gemm1", "tactics to leave out of product 1 of a mixture of experts"),
        ("--exclude-gemm2", "tactics to leave out of product 2 of a mixture of experts"),
    ):
        parser.add_argument(option, type=int, nargs="+", default=[], metavar="TACTIC", help=text)
    for option, choices, default, text in (
        ("--dtype", OUT_DTYPES, OUT_DTYPES[:1], "output dtypes (default: bfloat16)"),
        (
            "--moe-input",
            INPUTS,
            INPUTS,
            "whether the input of a mixture of experts is of the output dtype, or packed with its "
            "scales (default: both)",
        ),
        (
            "--moe-finalize",
            FINALIZES,
            FINALIZES[:1],
            "use_fused_finalize of a mixture of experts (default: fused)",
        ),
    ):
        parser.add_argument(option, nargs="+", choices=choices, default=default, help=text)
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
    wanted = shapes.read(options.shapes, options.tp, options.ep)
    before = _existing(options.out, machine, errors)
    report = Report(gpu, options.out)
    jobs = _jobs(report, options, wanted, machine)
    for shape, why in report.skipped:
        print(f"skipped {skipped(shape, why)}", file=errors)
    if not jobs:
        raise TacticsError(
            f"fp4aot.tactics: {options.shapes}: no shape is left to tune; "
            + "; ".join(dict.fromkeys(why for _, why in report.skipped))
        )
    # With a table in force, tactic -1 would be its choice, and not FlashInfer's default.
    active.clear(machine.set_tables)
    print(f"{len(jobs)} cases on {gpu}", file=errors)
    _run_all(
        report,
        jobs,
        machine.make_bench(gpu),
        Progress(len(jobs), errors),
        lambda: file.write(merge([before, Table((_section(report, machine),))]), options.out),
    )
    print(json.dumps(report.to_json(), indent=2) if options.json else render(report))
    return 0 if report.ok else 1


def now() -> str:
    """Return the time as tables have it."""
    return datetime.now(timezone.utc).strftime(file.TIME_FORMAT)


@dataclass(frozen=True)
class _Job:
    """One case, how to measure it, and the report's list to which that is added."""

    name: str
    measure: Callable[[Bench], Any]
    found: list[Any]


def _run_all(
    report: Report,
    jobs: Sequence[_Job],
    bench: Bench,
    progress: Progress,
    save: Callable[[], None],
) -> None:
    """Measure case by case; whatever ends the run, what has been measured is in the file."""
    try:
        for job in jobs:
            try:
                job.found.append(job.measure(bench))
            except CaseError as error:
                report.failed[job.name] = str(error)
            else:
                save()
            progress.step(job.name)
    except DeviceLostError as error:
        report.stopped = str(error)
    except KeyboardInterrupt:
        report.stopped = "interrupted; what was measured before is kept"
    finally:
        progress.close()


def _jobs(
    report: Report, options: argparse.Namespace, wanted: Wanted, machine: Machine
) -> list[_Job]:
    """List what can be measured; the report gets what cannot."""
    buckets = sorted({bucket_of(m) for m in options.m}) if options.m else buckets_up_to(LARGEST_M)
    gpu = report.gpu
    tactics = range(machine.wheel.tactic_count(*gpu.capability))
    has_moe = machine.wheel.has_moe(*gpu.capability)
    dense = _taken(report, wanted.dense, "FP4 GEMM", gpu, has_kernels=bool(tactics))
    moe = _taken(report, wanted.moe, "mixture of experts", gpu, has_kernels=has_moe)
    tried = [tactic for tactic in tactics if tactic not in options.exclude]
    jobs = [
        _Job(str(case), partial(measure, case, tried), report.measurements)
        for case in _cases(dense, buckets, options.dtype)
    ]
    excluded = (options.exclude_gemm1, options.exclude_gemm2)
    for case in _moe_cases(moe, buckets, options):
        # Asked of the device once a case; the runner that answers stays.
        counts = machine.moe_counts(gpu.capability, case.use_fused_finalize)
        if counts is not None:
            run = partial(measure_moe.measure, case, counts, excluded=excluded)
            jobs.append(_Job(str(case), run, report.moe_measurements))
    return jobs


_AnyShape = TypeVar("_AnyShape", Shape, MoeShape)


def _taken(
    report: Report, wanted: Sequence[_AnyShape], kernels: str, gpu: Gpu, *, has_kernels: bool
) -> list[_AnyShape]:
    """Return the shapes to measure; the report gets the others."""
    taken = []
    for shape in wanted:
        if not has_kernels:
            why = f"this wheel has no {kernels} for {gpu} (python -m fp4aot doctor says more)"
            report.skipped.append((shape, why))
        elif not shape.fits:
            report.skipped.append((shape, misfit(shape)))
        else:
            taken.append(shape)
    return taken


def _cases(
    wanted: Sequence[Shape], buckets: Sequence[int], dtypes: Sequence[str]
) -> Iterator[Case]:
    for shape in wanted:
        for dtype in dict.fromkeys(dtypes):
            for bucket in buckets:
                yield Case(shape, dtype, bucket)


def _moe_cases(
    wanted: Sequence[MoeShape], buckets: Sequence[int], options: argparse.Namespace
) -> Iterator[MoeCase]:
    flags = product(
        dict.fromkeys(options.dtype),
        dict.fromkeys(options.moe_input),
        dict.fromkeys(options.moe_finalize),
    )
    for shape, (dtype, form, finalize) in product(wanted, list(flags)):
        for bucket in buckets:
            yield MoeCase(shape, dtype, form == "packed", finalize == "fused", bucket)


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
        moe_entries=tuple(found.entry() for found in report.moe_measurements),
    )


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return value
