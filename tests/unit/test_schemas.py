"""Type schemas of compiled functions against the catalogue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aot.catalog import Function, kv_dequantization, quantization
from aot.errors import BuildError
from aot.plan import BuildPlan, ModulePlan, Versions
from aot.schemas import CompiledSchema, check_schemas, parse_probe, type_name

# As the probe of a real build prints it.
REAL_LINE = (
    '{"module": "fp4_kv_dequant", "function": "nvfp4_kv_dequant", "metadata": {"type_schema":'
    '"{\\"type\\":\\"ffi.Function\\",\\"named_args\\":{\\"return\\":[{\\"type\\":\\"None\\"}],'
    '\\"params\\":[{\\"type\\":\\"DLTensor*\\"},{\\"type\\":\\"DLTensor*\\"},'
    '{\\"type\\":\\"DLTensor*\\"},{\\"type\\":\\"DLTensor*\\"}]}}"}}'
)
ROWS = (quantization("12.0f"), kv_dequantization("9.0a", "12.0f"))
PLAN = BuildPlan(
    preset="quick",
    versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
    modules=tuple(
        ModulePlan(row.name, row.family, row.architectures, (), row.functions) for row in ROWS
    ),
    tvm_ffi_sources=(),
    added_host_flags=(),
)


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
            arguments, result = (changes or {}).get(function.name, (function.arguments, "None"))
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
    compiled = parse_probe(probe_output({"fp4_batched_quantize": (("Tensor",), "None")}))
    with pytest.raises(BuildError, match=r"fp4_batched_quantize \(operator none\)"):
        check_schemas(PLAN, compiled)


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
