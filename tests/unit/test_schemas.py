"""Type schemas of compiled functions against the catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plans import module_of, plan_of
from typer.testing import CliRunner

from aot import steps
from aot.catalog import Function
from aot.errors import BuildError
from aot.presets import PRESETS
from aot.schemas import CompiledSchema, check_schemas, parse_probe, type_name

# As the probe of real builds prints them: FlashInfer 0.7.2.
REAL_LINE = (
    '{"module": "fp4_kv_dequant", "function": "nvfp4_kv_dequant", "metadata": {"type_schema":'
    '"{\\"type\\":\\"ffi.Function\\",\\"named_args\\":{\\"return\\":[{\\"type\\":\\"None\\"}],'
    '\\"params\\":[{\\"type\\":\\"DLTensor*\\"},{\\"type\\":\\"DLTensor*\\"},'
    '{\\"type\\":\\"DLTensor*\\"},{\\"type\\":\\"DLTensor*\\"}]}}"}}'
)
REAL_OUTPUT = (
    r'{"module": "fp4_quantization_120f", "function": "nvfp4_quant_and_per_token_scale",'
    r' "metadata": {"type_schema":"{\"type\":\"ffi.Function\",'
    r"\"named_args\":{\"return\":[{\"type\":\"None\"}],\"params\":[{\"type\":\"DLTensor*\"},"
    r"{\"type\":\"float\"},{\"type\":\"DLTensor*\"},{\"type\":\"DLTensor*\"},"
    r"{\"type\":\"DLTensor*\"},{\"type\":\"Optional\",\"args\":[{\"type\":\"DLTensor*\"}]},"
    r'{\"type\":\"int\"},{\"type\":\"int\"}]}}"}}'
    "\n"
    r'{"module": "fp4_gemm_cutlass_sm120", "function": "fp4_gemm",'
    r' "metadata": {"type_schema":"{\"type\":\"ffi.Function\",'
    r"\"named_args\":{\"return\":[{\"type\":\"None\"}],\"params\":[{\"type\":\"DLTensor*\"},"
    r"{\"type\":\"DLTensor*\"},{\"type\":\"DLTensor*\"},{\"type\":\"DLTensor*\"},"
    r"{\"type\":\"DLTensor*\"},{\"type\":\"DLTensor*\"},{\"type\":\"DLTensor*\"},"
    r'{\"type\":\"int\"}]}}"}}'
    "\n"
    r'{"module": "fp4_gemm_cutlass_sm120", "function": "fp4_gemm_tactic_num",'
    r' "metadata": {"type_schema":"{\"type\":\"ffi.Function\",'
    r'\"named_args\":{\"return\":[{\"type\":\"int\"}],\"params\":[]}}"}}'
    "\n"
)
ROWS = PRESETS["dense-12.0f"].modules
PLAN = plan_of(*map(module_of, ROWS), preset="quick")


def schema_of(name: str) -> dict[str, Any]:
    """Undo the catalogue's spelling of a type."""
    if name.startswith("Optional<"):
        return {"type": "Optional", "args": [schema_of(name[len("Optional<") : -1])]}
    return {"type": name}


def probe_line(module: str, function: str, arguments: tuple[str, ...], result: str = "None") -> str:
    signature = {
        "type": "ffi.Function",
        "named_args": {
            "return": [schema_of(result)],
            "params": [schema_of(name) for name in arguments],
        },
    }
    metadata = {"type_schema": json.dumps(signature)}
    return json.dumps({"module": module, "function": function, "metadata": metadata})


def probe_output(changes: dict[str, tuple[tuple[str, ...], str]] | None = None) -> str:
    """The output for the catalogue's own rows, with some functions changed."""
    lines = []
    for row in ROWS:
        for function in row.functions:
            own = (function.arguments, function.result)
            arguments, result = (changes or {}).get(function.name, own)
            lines.append(probe_line(row.name, function.name, arguments, result))
    return "\n".join(lines) + "\n"


def named(name: str) -> Function:
    return next(f for row in ROWS for f in row.functions if f.name == name)


def test_a_real_line_is_read() -> None:
    assert parse_probe(f"\n{REAL_LINE}\n\n") == (
        CompiledSchema("fp4_kv_dequant", "nvfp4_kv_dequant", ("DLTensor*",) * 4, "None"),
    )


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "int"}, "int"),
        ({"type": "ffi.Tensor"}, "Tensor"),
        ({"type": "Optional", "args": [{"type": "DLTensor*"}]}, "Optional<DLTensor*>"),
        (
            {
                "type": "Map",
                "args": [{"type": "str"}, {"type": "Array", "args": [{"type": "int"}]}],
            },
            "Map<str, Array<int>>",
        ),
        ({"type": "None", "args": []}, "None"),
    ],
)
def test_types_are_spelled_as_in_the_catalogue(schema: dict[str, Any], name: str) -> None:
    assert type_name(schema) == name


def test_the_catalogues_signatures_pass() -> None:
    compiled = parse_probe(probe_output())
    assert len(compiled) == sum(len(row.functions) for row in ROWS)
    check_schemas(PLAN, compiled)


QUANTIZE = named("fp4_quantize").arguments


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ((*QUANTIZE, "int"), "None"),
        (QUANTIZE[:-1], "None"),
        (("DLTensor*", "DLTensor*", *QUANTIZE[2:]), "None"),
        ((*QUANTIZE[:4], "float", *QUANTIZE[5:]), "None"),
        (QUANTIZE, "int"),
        ((), "None"),
    ],
)
def test_a_changed_signature_is_refused_with_both(arguments: tuple[str, ...], result: str) -> None:
    compiled = parse_probe(probe_output({"fp4_quantize": (arguments, result)}))
    with pytest.raises(BuildError) as caught:
        check_schemas(PLAN, compiled)
    message = str(caught.value)
    assert "FlashInfer 0.7.2" in message
    assert "fp4_quantization_120f.fp4_quantize (operator fp4_quantize)" in message
    assert f"compiled: ({', '.join(arguments)}) -> {result}" in message
    assert f"expected: ({', '.join(QUANTIZE)}) -> None" in message
    assert message.count("compiled:") == 1


def test_functions_without_an_operator_are_compared_too() -> None:
    name = "e2m1_and_ufp8sf_scale_to_float_sm100"
    compiled = parse_probe(probe_output({name: (("Tensor",), "None")}))
    with pytest.raises(BuildError, match=rf"{name} \(operator none\)"):
        check_schemas(PLAN, compiled)


# What a real build prints, with one signature altered


def real_output(function: str = "", **changes: list[dict[str, Any]]) -> str:
    """The real lines, with one signature changed, and the catalogue's for the rest."""
    lines = []
    for line in REAL_OUTPUT.splitlines():
        entry = json.loads(line)
        schema = json.loads(entry["metadata"]["type_schema"])
        if entry["function"] == function:
            schema["named_args"] |= changes
            entry["metadata"]["type_schema"] = json.dumps(schema)
        lines.append(json.dumps(entry))
    names = {json.loads(line)["function"] for line in lines}
    rest = [
        line for line in probe_output().splitlines() if json.loads(line)["function"] not in names
    ]
    return "\n".join([*lines, *rest]) + "\n"


def test_the_real_signatures_of_gemm_and_quantization_pass() -> None:
    compiled = parse_probe(real_output())
    check_schemas(PLAN, compiled)
    found = {schema.function: (schema.arguments, schema.result) for schema in compiled}
    assert found["fp4_gemm"] == (("DLTensor*",) * 7 + ("int",), "None")
    assert found["fp4_gemm_tactic_num"] == ((), "int")


TENSORS = [{"type": "DLTensor*"}] * 7
PER_TOKEN = "DLTensor*, DLTensor*, DLTensor*, Optional<DLTensor*>, int, int"


@pytest.mark.parametrize(
    ("module", "function", "operator", "changes", "compiled", "expected"),
    [
        (
            *("fp4_gemm_cutlass_sm120", "fp4_gemm", "mm_fp4"),
            {"params": [*TENSORS, {"type": "Optional", "args": [{"type": "int"}]}]},
            f"({'DLTensor*, ' * 7}Optional<int>) -> None",
            f"({'DLTensor*, ' * 7}int) -> None",
        ),
        (
            *("fp4_gemm_cutlass_sm120", "fp4_gemm_tactic_num", "_mm_fp4_tactic_count"),
            {"params": [{"type": "bool"}]},
            "(bool) -> int",
            "() -> int",
        ),
        (
            *("fp4_gemm_cutlass_sm120", "fp4_gemm_tactic_num", "_mm_fp4_tactic_count"),
            {"return": [{"type": "None"}]},
            "() -> None",
            "() -> int",
        ),
        (
            "fp4_quantization_120f",
            "nvfp4_quant_and_per_token_scale",
            "nvfp4_quantize_per_token",
            {"params": [*TENSORS[:5], schema_of("Optional<DLTensor*>"), *[{"type": "int"}] * 2]},
            f"(DLTensor*, DLTensor*, {PER_TOKEN}) -> None",
            f"(DLTensor*, float, {PER_TOKEN}) -> None",
        ),
    ],
    ids=["tactic-is-optional", "more-arguments", "another-result", "scale-is-a-tensor"],
)
def test_an_altered_real_signature_stops_the_build(
    tmp_path: Path,
    module: str,
    function: str,
    operator: str,
    changes: dict[str, list[dict[str, Any]]],
    compiled: str,
    expected: str,
) -> None:
    # As CMake runs it: the plan and the probe are files, and the stamp lets the build go on.
    plan, probe, stamp = (tmp_path / name for name in ("plan.json", "probe", "stamp"))
    plan.write_text(json.dumps(PLAN.to_json()))
    probe.write_text(f"#!/bin/sh\ncat {tmp_path / 'output'}\n")
    probe.chmod(0o755)
    command = ["check-schemas", str(plan), str(probe), str(stamp)]

    (tmp_path / "output").write_text(real_output(function, **changes))
    result = CliRunner().invoke(steps.steps, command)
    assert isinstance(result.exception, BuildError)
    assert str(result.exception) == (
        "FlashInfer 0.7.2 has other signatures than the operators were written for:\n"
        f"  {module}.{function} (operator {operator}):\n"
        f"    compiled: {compiled}\n"
        f"    expected: {expected}\n"
        "adapt the operator in wheels/fp4aot/csrc and the row in aot/catalog.py"
    )
    assert not stamp.exists()

    (tmp_path / "output").write_text(real_output())
    assert CliRunner().invoke(steps.steps, command).exit_code == 0
    assert stamp.exists()


def test_every_difference_is_listed() -> None:
    changes = {"fp4_quantize": (("int",), "None"), "nvfp4_kv_dequant": (("int",), "None")}
    with pytest.raises(BuildError) as caught:
        check_schemas(PLAN, parse_probe(probe_output(changes)))
    assert str(caught.value).count("compiled:") == 2


def test_the_same_function_of_another_module_does_not_count() -> None:
    (_, *others) = parse_probe(probe_output())
    elsewhere = CompiledSchema("fp4_quantization_100", "fp4_quantize", QUANTIZE, "None")
    with pytest.raises(
        BuildError, match=r"fp4_quantization_120f\.fp4_quantize: the module has no schema for it"
    ):
        check_schemas(PLAN, [elsewhere, *others])
