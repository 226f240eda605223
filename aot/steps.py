"""``python -m aot.steps``: the commands that CMake runs.

Apart from the commands for people, because they run wherever `pip wheel .` does: nothing here may
import more than the build requirements in pyproject.toml.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from aot import command_line, files, pipeline
from aot.codegen.lowered_device import lowered_symbols
from aot.command_line import (
    ERR,
    Architectures,
    BuildRoot,
    Cuda,
    FlashInfer,
    MemoryLimit,
    Platform,
    Preset,
    megabytes,
    prepare,
)
from aot.compile import display
from aot.compile.admission import make_limits
from aot.compile.job_list import JobList
from aot.host_compiler import NATIVE_BINUTILS
from aot.link_module import link_module
from aot.manifest import (
    compilers_of,
    hash_operator_sources,
    make_manifest,
    make_provenance,
    read_plan,
    write_notices,
)
from aot.plan import BuildPlan
from aot.platforms import check_wheel_platform
from aot.schemas import check_schemas, run_probe

steps = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _plan(path: Path) -> BuildPlan:
    return BuildPlan.from_json(json.loads(path.read_text()))


@steps.command("plan")
def plan_step(
    preset: Preset,
    write: Annotated[Path, typer.Option(help="Folder for what CMake needs.")],
    build_root: BuildRoot,
    cuda: Cuda = "",
    flashinfer: FlashInfer = "",
    architectures: Architectures = "",
    platform: Platform = "",
) -> None:
    """Plan a build and write it down."""
    prepared = prepare(preset, build_root, cuda, flashinfer, architectures, platform)
    check_wheel_platform(prepared.plan.machine)
    pipeline.write(prepared, write)


@steps.command("compile")
def compile_step(jobs: Path, memory_limit: MemoryLimit = "") -> None:
    """Make every object that is missing."""
    listed = JobList.from_json(json.loads(jobs.read_text()))
    limits = make_limits(megabytes(memory_limit))
    with display.shown(ERR) as listen:
        listed.run(limits, listen)


@steps.command("link-module")
def link_module_step(
    plan: Path,
    module: str,
    out: Path,
    objects: list[Path],
    ld: Annotated[Path, typer.Option()] = NATIVE_BINUTILS.ld,
    objcopy: Annotated[Path, typer.Option()] = NATIVE_BINUTILS.objcopy,
) -> None:
    """Merge the objects of one module."""
    row = next(item for item in _plan(plan).modules if item.name == module)
    link_module(
        *(module, objects, [function.name for function in row.functions], out),
        selected=row.selected,
        replaced_symbols=lowered_symbols(row),
        binutils=replace(NATIVE_BINUTILS, ld=ld, objcopy=objcopy),
    )


@steps.command("check-schemas")
def check_schemas_step(
    plan: Path,
    probe: Path,
    stamp: Path,
    emulation: Annotated[
        list[str] | None, typer.Option(help="A word of the command that runs the probe.")
    ] = None,
) -> None:
    """Compare the type schemas that the probe prints with the catalogue."""
    compiled = run_probe(probe, emulation or ())
    check_schemas(_plan(plan), compiled)
    # Time stamps decide what ninja does next, so this one is always written.
    stamp.unlink(missing_ok=True)
    files.write_json(stamp, [vars(schema) for schema in compiled])


@steps.command("manifest")
def manifest_step(
    plan_folder: Path,
    library: Path,
    out: Path,
    notices: Annotated[Path, typer.Option()],
    provenance: Annotated[Path, typer.Option()],
    sbom: Annotated[Path, typer.Option()],
    operators: Annotated[Path, typer.Option(help="Folder of the operators' sources.")],
    host_compiler: Annotated[Path, typer.Option()],
    cuda_runtime: Annotated[Path, typer.Option(help="The libcudart_static.a that is linked in.")],
    version: Annotated[str, typer.Option()],
) -> None:
    """Write manifest, provenance and bill of materials, and collect the licence notices."""
    # Takes longer to import than the other steps take to run.
    from aot.sbom import make_sbom  # noqa: PLC0415

    plan, roots = read_plan(plan_folder)
    write_notices(roots, notices)
    compilers = compilers_of(plan, host_compiler)
    sources = hash_operator_sources(operators)
    files.write_json(provenance, make_provenance(plan, compilers, sources))
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    bill = make_sbom(plan, roots, library, version, compilers, cuda_runtime, epoch)
    files.write_text(sbom, bill)
    # Last: its time stamp tells ninja that all of them are there.
    out.unlink(missing_ok=True)
    files.write_json(out, make_manifest(plan, library, version))


if __name__ == "__main__":
    command_line.run(steps)
