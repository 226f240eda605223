"""The commands that CMake runs between compiling and linking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aot import files
from aot.errors import BuildError
from aot.link_module import link_module
from aot.manifest import make_manifest, read_plan, write_notices
from aot.plan import BuildPlan
from aot.process import run
from aot.schemas import check_schemas, parse_probe

steps = typer.Typer()


def _plan(path: Path) -> BuildPlan:
    return BuildPlan.from_json(json.loads(path.read_text()))


@steps.command("link-module", hidden=True)
def link_module_step(plan: Path, module: str, out: Path, objects: list[Path]) -> None:
    """Merge the objects of one module."""
    row = next(item for item in _plan(plan).modules if item.name == module)
    link_module(module, objects, [function.name for function in row.functions], out)


@steps.command("check-schemas", hidden=True)
def check_schemas_step(plan: Path, probe: Path, stamp: Path) -> None:
    """Compare the type schemas that the probe prints with the catalogue."""
    done = run([probe], purpose="read the type schemas of the modules", error=BuildError)
    compiled = parse_probe(done.stdout)
    check_schemas(_plan(plan), compiled)
    # Time stamps decide what ninja does next, so this one is always written.
    stamp.unlink(missing_ok=True)
    files.write_json(stamp, [vars(schema) for schema in compiled])


@steps.command("manifest", hidden=True)
def manifest_step(
    plan_folder: Path,
    library: Path,
    out: Path,
    notices: Annotated[Path, typer.Option()],
    version: Annotated[str, typer.Option()],
) -> None:
    """Write the manifest and collect the licence notices."""
    plan, roots = read_plan(plan_folder)
    write_notices(roots, notices)
    out.unlink(missing_ok=True)
    files.write_json(out, make_manifest(plan, library, version))
