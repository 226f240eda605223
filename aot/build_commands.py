"""``python -m aot plan``, ``build`` and ``link``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from aot import costs, files, pipeline, wheel_maker
from aot.audit import print_report
from aot.build import compile_objects, stop_object_cache
from aot.command_line import (
    DEFAULT_BUILD_ROOT,
    ERR,
    OUT,
    Architectures,
    AsJson,
    BuildRoot,
    Cuda,
    FlashInfer,
    Jobs,
    MemoryLimit,
    Platform,
    Preset,
    megabytes,
    prepare,
    print_json,
    report_step,
)
from aot.compile import display, shards
from aot.compile.admission import make_limits, seconds_together
from aot.compile.events import Listener, json_lines
from aot.compile.job import Job
from aot.compile.shards import Shard
from aot.errors import ShardError
from aot.manifest import compilers_of
from aot.pipeline import Prepared
from aot.progress import clock

Out = Annotated[Path, typer.Option(help="Folder for what is finished.")]
Report = Annotated[Path | None, typer.Option(help="Also write the report here, as JSON.")]


def plan(
    preset: Preset = "quick",
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    architectures: Architectures = "",
    platform: Platform = "",
    memory_limit: MemoryLimit = "",
    jobs: Jobs = 0,
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    units: Annotated[bool, typer.Option("--units", help="List every translation unit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would be compiled, with estimates, without compiling it; flags with --json."""
    limits = make_limits(megabytes(memory_limit), jobs or None)
    prepared = prepare(preset, build_root, cuda, flashinfer, architectures, platform)
    if as_json:
        print_json(prepared.plan.to_json())
        return
    every = pipeline.write(prepared, prepared.folders.planned)
    OUT.print(_plan_table(prepared, every, every_unit=units))
    versions = prepared.plan.versions
    OUT.print(
        f"CUDA {versions.cuda_compiler}, FlashInfer {versions.flashinfer}, {len(every)} objects, "
        f"{limits.workers} compilers at once in {limits.megabytes} MB, about "
        f"{clock(seconds_together(every, limits))} min; plan {prepared.plan.hash[:16]}",
        highlight=False,
    )


def _plan_table(prepared: Prepared, jobs: tuple[Job, ...], *, every_unit: bool) -> Table:
    """One row a module, and below it one for each of its units if `every_unit`."""
    table = Table(title=f"preset {prepared.plan.preset}")
    for name in ("module", "architectures"):
        table.add_column(name, overflow="fold")
    for name in ("units", "largest, MB", "time, min"):
        table.add_column(name, justify="right")
    targets = {module.name: module.targets for module in prepared.plan.modules}
    for name in (*targets, "tvm_ffi", "operators"):
        group = [job for job in jobs if job.module == name]
        largest = max((job.megabytes for job in group), default=0)
        seconds = clock(sum(job.seconds for job in group))
        table.add_row(name, targets.get(name, ""), str(len(group)), str(largest), seconds)
        for job in group if every_unit else ():
            table.add_row(f"  {job.unit}", "", "", str(job.megabytes), clock(job.seconds))
    return table


@contextmanager
def _listening(*, as_json: bool) -> Iterator[Listener]:
    """Tell the events of a build: to a machine, a line of JSON each, or to a person."""
    if as_json:
        yield json_lines(sys.stdout)
        return
    with display.shown(ERR) as listen:
        yield listen


def build(
    preset: Preset = "quick",
    out: Out = Path("dist"),
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    architectures: Architectures = "",
    platform: Platform = "",
    memory_limit: MemoryLimit = "",
    jobs: Jobs = 0,
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    shard: Annotated[
        str, typer.Option(help="Compile one part, such as 2/8, into an archive for `link`.")
    ] = "",
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Build a wheel, audit it and put it into a folder; one that fails the audit is not kept.

    With --json every event is a line of JSON, and the last line is the report.
    """
    limits = make_limits(megabytes(memory_limit), jobs or None)
    part = Shard.parse(shard) if shard else None
    prepared = prepare(preset, build_root, cuda, flashinfer, architectures, platform)
    try:
        with _listening(as_json=as_json) as listen:
            if part is None:
                finished = wheel_maker.build_wheel(prepared, out, limits, ERR, listen)
            else:
                wanted = shards.part_of(prepared.plan, part)
                compile_objects(prepared, limits, listen, lambda job: job.name in wanted)
    finally:
        stop_object_cache(prepared)
    if part is None:
        _tell(finished, report, as_json=as_json)
        return
    archive = _pack(prepared, part, wanted, out)
    size = archive.stat().st_size
    data = {"shard": str(archive), "size": size, "units": len(wanted)}
    if report is not None:
        files.write_json(report, data)
    if as_json:
        print(json.dumps({"event": "shard", **data}))
    else:
        OUT.print(f"{archive}: {len(wanted)} units, {size / 1e6:.2f} MB", highlight=False)


def _pack(prepared: Prepared, part: Shard, wanted: frozenset[str], out: Path) -> Path:
    every = pipeline.jobs_of(prepared, prepared.folders.generated)
    return shards.write_shard(
        prepared.plan,
        part,
        _host_compiler(prepared),
        [job for job in every if job.name in wanted],
        pipeline.job_list(prepared, every).store,
        out,
        costs.read_costs(prepared.folders.costs),
    )


def link(
    archives: Annotated[list[Path], typer.Argument(help="All shards of one build.")],
    out: Out = Path("dist"),
    memory_limit: MemoryLimit = "",
    jobs: Jobs = 0,
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Join the shards of a build into its wheel: the same as an unsharded build makes."""
    limits = make_limits(megabytes(memory_limit), jobs or None)
    manifests = [shards.read_manifest(path) for path in archives]
    wanted = shards.check_complete(manifests)
    prepared = pipeline.prepare(
        wanted.preset,
        build_root,
        cuda=wanted.versions.cuda,
        flashinfer=wanted.versions.flashinfer,
        architectures=[str(one) for one in wanted.architectures],
        machine=wanted.machine,
        report=report_step,
    )
    if prepared.plan.hash != wanted.hash:
        raise ShardError(
            f"the shards are of plan {wanted.hash[:16]} and this checkout makes plan "
            f"{prepared.plan.hash[:16]}; link with the checkout that the shards were compiled from"
        )
    every = pipeline.write(prepared, prepared.folders.generated)
    store = pipeline.job_list(prepared, every).store
    shards.import_shards(manifests, every, _host_compiler(prepared), store)
    costs.add_costs(prepared.folders.costs, shards.measured(manifests))
    try:
        with _listening(as_json=as_json) as listen:
            finished = wheel_maker.build_wheel(prepared, out, limits, ERR, listen)
    finally:
        stop_object_cache(prepared)
    _tell(finished, report, as_json=as_json)


def _host_compiler(prepared: Prepared) -> str:
    return compilers_of(prepared.plan, prepared.host_compiler.path).host


def _tell(finished: wheel_maker.FinishedWheel, report: Path | None, *, as_json: bool) -> None:
    data: dict[str, Any] = finished.to_json()
    if report is not None:
        files.write_json(report, data)
    if as_json:
        print(json.dumps({"event": "wheel", **data}, default=str))
        return
    print_report(finished.audit, OUT)
    OUT.print(finished.module_table())
    OUT.print(finished.table())
