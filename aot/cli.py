"""``python -m aot``: the pipeline's commands. Every one has ``--json`` for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from aot import catalog, files, pipeline, progress, toolchain, wheel_maker
from aot.audit import as_json as as_data
from aot.audit import audit_wheel, declared_build, print_report, require_passed
from aot.build import stop_object_cache
from aot.command_line import (
    DEFAULT_BUILD_ROOT,
    ERR,
    OUT,
    AsJson,
    BuildRoot,
    Cuda,
    FlashInfer,
    MemoryLimit,
    Preset,
    megabytes,
    report_step,
    run,
)
from aot.diff import compare, print_difference, read_wheel
from aot.index import write_site
from aot.memory import available_megabytes, make_schedule
from aot.plan import BuildPlan
from aot.progress import clock

app = typer.Typer(
    help="FlashInfer's FP4 kernels, compiled ahead of time into a wheel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the presets."""
    if as_json:
        _print_json(
            {
                name: {module.name: module.architectures for module in preset.modules}
                for name, preset in catalog.PRESETS.items()
            }
        )
        return
    table = Table("preset", "modules", "what it is")
    for name, preset in catalog.PRESETS.items():
        table.add_row(name, str(len(preset.modules)), preset.description)
    OUT.print(table)


@app.command("toolchain")
def show_toolchain(
    install: Annotated[str, typer.Option(help="Install this CUDA version from packages.")] = "",
    cuda: Cuda = "",
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    as_json: AsJson = False,
) -> None:
    """List the CUDA toolkits of this machine and what each can target, or install one."""
    folders = pipeline.Folders(build_root.resolve())
    if install:
        toolchain.install(install, folders.toolchain)
    wanted = install or cuda or catalog.DEFAULT_CUDA
    found = toolchain.candidates(wanted, folders.toolchain)
    if as_json:
        _print_json(
            [
                {
                    "source": candidate.source,
                    "place": candidate.place,
                    "accepted": candidate.toolkit is not None,
                    "rejection": candidate.rejection,
                    "compiler_version": candidate.toolkit
                    and str(candidate.toolkit.compiler_version),
                    "targets": [str(t) for t in candidate.toolkit.targets]
                    if candidate.toolkit
                    else [],
                }
                for candidate in found
            ]
        )
        return
    table = Table("source", "place", f"CUDA {wanted}", "targets", title="CUDA toolkits")
    for candidate in found:
        kit = candidate.toolkit
        table.add_row(
            candidate.source,
            candidate.place,
            f"accepted: {kit.compiler_version}" if kit else f"rejected: {candidate.rejection}",
            " ".join(str(target) for target in kit.targets) if kit else "",
        )
    OUT.print(table)


@app.command()
def plan(
    preset: Preset = "quick",
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    memory_limit: MemoryLimit = "",
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    units: Annotated[bool, typer.Option("--units", help="List every translation unit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would be compiled, with estimates, without compiling it; flags with --json."""
    limit = megabytes(memory_limit)
    prepared = pipeline.prepare(
        preset, build_root, cuda=cuda or None, flashinfer=flashinfer or None, report=report_step
    )
    if as_json:
        _print_json(prepared.plan.to_json())
        return
    OUT.print(_plan_table(prepared.plan, every_unit=units))
    count = len(prepared.plan.units)
    jobs = make_schedule(prepared.plan.units, limit or available_megabytes()).jobs
    seconds = sum(unit.seconds for unit in prepared.plan.units)
    versions = prepared.plan.versions
    OUT.print(
        f"CUDA {versions.cuda_compiler}, FlashInfer {versions.flashinfer}, {count} units, "
        f"{jobs} compilers at once, about {seconds / 60 / jobs:.0f} min; "
        f"plan {prepared.plan.hash[:16]}",
        highlight=False,
    )


def _plan_table(plan: BuildPlan, *, every_unit: bool = False) -> Table:
    """One row a module, and below it one for each of its units if `every_unit`."""
    table = Table(title=f"preset {plan.preset}")
    for name in ("module", "architectures"):
        table.add_column(name, overflow="fold")
    for name in ("units", "largest, MB", "time, min"):
        table.add_column(name, justify="right")
    for module in plan.modules:
        table.add_row(
            module.name,
            module.targets,
            str(len(module.units)),
            str(max(unit.memory_megabytes for unit in module.units)),
            clock(sum(unit.seconds for unit in module.units)),
        )
        for unit in module.units if every_unit else ():
            table.add_row(f"  {unit.name}", "", "", str(unit.memory_megabytes), clock(unit.seconds))
    return table


@app.command()
def build(
    preset: Preset = "quick",
    out: Annotated[Path, typer.Option(help="Folder for the wheel.")] = Path("dist"),
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    memory_limit: MemoryLimit = "",
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    report: Annotated[Path | None, typer.Option(help="Also write the report here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Build a wheel, audit it and put it into a folder; one that fails the audit is not kept."""
    limit = megabytes(memory_limit)
    prepared = pipeline.prepare(
        preset, build_root, cuda=cuda or None, flashinfer=flashinfer or None, report=report_step
    )
    try:
        finished = wheel_maker.build_wheel(prepared, out, ERR, limit)
    finally:
        stop_object_cache(prepared)
    if report is not None:
        files.write_json(report, finished.to_json())
    if as_json:
        _print_json(finished.to_json())
    else:
        print_report(finished.audit, OUT)
        OUT.print(finished.module_table())
        OUT.print(finished.table())


@app.command()
def audit(
    wheel: Annotated[Path, typer.Argument(help="The wheel.")],
    preset: Annotated[str, typer.Option(help="Another preset than the wheel names.")] = "",
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    build_root: BuildRoot = DEFAULT_BUILD_ROOT,
    as_json: AsJson = False,
) -> None:
    """Compare what is really in a wheel with the plan of the preset that it says it is of."""
    declared = declared_build(wheel)
    prepared = pipeline.prepare(
        preset or declared.preset,
        build_root,
        cuda=cuda or declared.cuda,
        flashinfer=flashinfer or declared.flashinfer,
        report=report_step,
    )
    with progress.reading(ERR) as reading:
        report = audit_wheel(wheel, wheel_maker.expectation(prepared), prepared.toolkit, reading)
    if as_json:
        _print_json(as_data(report))
    else:
        print_report(report, OUT)
    require_passed(report)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A wheel.")],
    after: Annotated[Path, typer.Argument(help="The wheel to compare it with.")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if they differ, as `git diff` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what changed between two wheels: versions, modules, units, sources, files."""
    difference = compare(read_wheel(before), read_wheel(after))
    if as_json:
        _print_json(difference.to_json())
    else:
        print_difference(difference, OUT)
    if exit_code and not difference.is_equal:
        raise typer.Exit(1)


@app.command()
def index(
    wheels: Annotated[Path, typer.Argument(help="Folder of finished wheels; those below it too.")],
    site: Annotated[Path, typer.Argument(help="Folder to write; an earlier site is replaced.")],
    base_url: Annotated[
        str, typer.Option(help="Where it will be served; the page's commands name it.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a static package index: one per CUDA version for pip and uv, and a page for people."""
    written = write_site(wheels, site, base_url)
    if as_json:
        _print_json(written.to_json())
        return
    for line in written.lines():
        OUT.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run one command."""
    run(app)
