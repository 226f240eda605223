"""``python -m aot``: the pipeline's commands. Every one has ``--json`` for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from aot import build_commands, catalog, pipeline, progress, toolchain, wheel_maker
from aot.audit import as_json as as_data
from aot.audit import audit_wheel, declared_build, print_report, require_passed
from aot.command_line import (
    DEFAULT_BUILD_ROOT,
    ERR,
    OUT,
    AsJson,
    BuildRoot,
    Cuda,
    FlashInfer,
    print_json,
    report_step,
    run,
)
from aot.diff import compare, print_difference, read_wheel
from aot.index import write_site
from aot.matrix_report import matrix_command
from aot.presets import PRESETS

app = typer.Typer(
    help="FlashInfer's FP4 kernels, compiled ahead of time into a wheel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the presets."""
    if as_json:
        print_json(
            {
                name: {module.name: module.architectures for module in preset.modules}
                for name, preset in PRESETS.items()
            }
        )
        return
    table = Table("preset", "modules", "what it is")
    for name, preset in PRESETS.items():
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
        print_json(
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
        architectures=() if preset else declared.architectures,
        machine=declared.machine,
        report=report_step,
    )
    with progress.reading(ERR) as reading:
        report = audit_wheel(wheel, wheel_maker.expectation(prepared), prepared.toolkit, reading)
    if as_json:
        print_json(as_data(report))
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
        print_json(difference.to_json())
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
        print_json(written.to_json())
        return
    for line in written.lines():
        OUT.print(line, markup=False, highlight=False, soft_wrap=True)


app.command()(build_commands.plan)
app.command()(build_commands.build)
app.command()(build_commands.link)
app.command("matrix")(matrix_command)


def main() -> None:
    """Run one command."""
    run(app)
