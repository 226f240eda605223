"""The operators in a namespace of a test's own, defined without the built library.

The schemas are read from the C++ that declares them (`csrc/operators/operator.h` says how), so a
schema and a Python signature that drift apart fail in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fp4aot.operators import register
from fp4aot.operators.dequantize import mxfp4_dequantize_host
from fp4aot.operators.structured import OPERATORS, Overload

SOURCES = Path(__file__).parents[1] / "wheels/fp4aot/csrc/operators"
_DECLARATION = re.compile(r"^FP4AOT_(\w+)\((.*?)\);$", re.MULTILINE | re.DOTALL)
_ARGUMENT = re.compile(r'((?:"[^"]*"\s*)+|[^",]+)(?:,\s*|$)')


def schemas() -> list[str]:
    """Return the schemas of the operators, without those of internal functions."""
    found = []
    for path in sorted(SOURCES.glob("*.cpp")):
        source = re.sub(r"^\s*//.*\n", "", path.read_text(), flags=re.MULTILINE)
        for kind, text in _DECLARATION.findall(source):
            name, *rest = (_value(argument) for argument in _ARGUMENT.findall(text))
            if kind == "IN_PLACE_OPERATOR":
                found.append(f"{name}({rest[-1]}) -> ()")
            elif kind != "FUNCTION":
                # Of a declaration without C++, the two functions are missing.
                found += _forms(name, *rest[0 if kind == "REFERENCE_OPERATOR" else 2 :])
    return found


def _value(argument: str) -> str:
    """Join the literals that a string is written with; leave other tokens as they are."""
    literals = re.findall(r'"([^"]*)"', argument)
    return "".join(literals) if literals else argument.strip()


def _forms(name: str, arguments: str, buffers: str, *not_of_out: str) -> Iterator[str]:
    """Yield what `define_forms` of the C++ defines."""
    results = len(re.findall(r"Tensor\(\w!\) ", buffers))
    returns = "Tensor" if results == 1 else f"({', '.join(results * ['Tensor'])})"
    yield f"{name}({arguments}) -> {returns}"
    kept = (a for a in arguments.split(", ") if a.split()[-1].split("=")[0] not in not_of_out)
    yield f"{name}.out({', '.join(kept)}, *, {buffers}) -> ()"


def form(name: str) -> Overload:
    """Return the Python implementation of an overload, e.g. `fp4_quantize.out`."""
    operator, _, kind = name.partition(".")
    found: Overload = getattr(OPERATORS[operator], kind or "default")
    return found


@contextmanager
def operators(namespace: str) -> Iterator[Any]:
    """Define and register all operators in a namespace; yield what torch.ops has of it."""
    library = torch.library.Library(namespace, "DEF")
    for schema in schemas():
        library.define(schema)
    # In the package this is FlashInfer's host code.
    library.impl("mxfp4_dequantize_host", mxfp4_dequantize_host, "CPU")
    register(namespace)
    yield getattr(torch.ops, namespace)
    library._destroy()
