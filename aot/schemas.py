"""Checks that the compiled functions take the arguments that our operators pass.

FlashInfer's C++ signatures change between releases. A call through TVM-FFI would fail only at run
time, on the user's machine; so each function's own type schema is compared at build time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.catalog import Function
from aot.errors import BuildError
from aot.plan import BuildPlan, ModulePlan
from aot.process import run


@dataclass(frozen=True)
class CompiledSchema:
    """What one compiled function says of itself."""

    module: str
    function: str
    arguments: tuple[str, ...]
    result: str


def run_probe(probe: Path, emulation: Sequence[str] = ()) -> tuple[CompiledSchema, ...]:
    """Run the schema probe.

    Parameters
    ----------
    probe
        The program.
    emulation
        Command that runs it, where it is for another machine.

    Raises
    ------
    BuildError
        When it does not run: a module that was not checked is not linked.
    """
    done = run(
        [*emulation, probe], purpose="read the type schemas of the modules", error=BuildError
    )
    return parse_probe(done.stdout)


def parse_probe(output: str) -> tuple[CompiledSchema, ...]:
    """Read the lines that the schema probe prints."""
    found = []
    for line in output.splitlines():
        if not line.strip():
            continue
        entry = json.loads(line)
        name = f"{entry['module']}.{entry['function']}"
        # The schema is JSON within JSON: {"named_args": {"return": [type], "params": [type, ...]}}.
        try:
            signature = json.loads(entry["metadata"]["type_schema"])["named_args"]
            (result,) = [type_name(item) for item in signature["return"]]
            arguments = [type_name(item) for item in signature["params"]]
        except (KeyError, ValueError, TypeError) as cause:
            raise BuildError(
                f"the type schema of {name} is not of the form that this build reads: "
                f"{entry['metadata']}; TVM-FFI has changed: adapt aot/schemas.py"
            ) from cause
        found.append(CompiledSchema(entry["module"], entry["function"], tuple(arguments), result))
    return tuple(found)


def type_name(schema: Any) -> str:
    """Spell one type of a TVM-FFI schema as the catalogue does: ``Optional<DLTensor*>``."""
    name = str(schema["type"]).removeprefix("ffi.")
    inner = schema.get("args") or ()
    return f"{name}<{', '.join(type_name(item) for item in inner)}>" if inner else name


def check_schemas(plan: BuildPlan, compiled: Iterable[CompiledSchema]) -> None:
    """Compare every compiled function with the catalogue.

    Raises
    ------
    BuildError
        With each function whose signature differs: what the module has and what is expected.
    """
    by_name = {(schema.module, schema.function): schema for schema in compiled}
    problems = [
        problem
        for module in plan.modules
        for function in module.functions
        if (problem := _difference(module, function, by_name))
    ]
    if problems:
        raise BuildError(
            f"FlashInfer {plan.versions.flashinfer} has other signatures than the operators were "
            "written for:\n" + "\n".join(problems) + "\nadapt the operator in wheels/fp4aot/csrc "
            "and the row in aot/catalog.py"
        )


def _difference(
    module: ModulePlan, function: Function, by_name: dict[tuple[str, str], CompiledSchema]
) -> str | None:
    schema = by_name.get((module.name, function.name))
    if schema is None:
        return f"  {module.name}.{function.name}: the module has no schema for it"
    if (schema.arguments, schema.result) == (function.arguments, function.result):
        return None
    return (
        f"  {module.name}.{function.name} (operator {function.operator or 'none'}):\n"
        f"    compiled: ({', '.join(schema.arguments)}) -> {schema.result}\n"
        f"    expected: ({', '.join(function.arguments)}) -> {function.result}"
    )
