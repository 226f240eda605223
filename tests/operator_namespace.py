"""The operators in a namespace of a test's own, defined without the built library.

The schemas are read from the C++ source that defines them, so a schema and a Python signature that
drift apart fail in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import fp4aot._registration as registration
from fp4aot._reference import dequantize

OPERATORS_CPP = Path(__file__).parents[1] / "wheels/fp4aot/csrc/operators.cpp"


def schemas() -> list[str]:
    """Read the operators' schemas, joining the string literals and macros they are written with."""
    source = OPERATORS_CPP.read_text()
    macros = {
        name: "".join(re.findall(r'"([^"]*)"', body))
        for name, body in re.findall(r"#define (\w+)((?:.*\\\n)*.*)", source)
    }
    found = []
    for call in re.findall(r"library\.def\(((?:\s*(?:\"[^\"]*\"|[A-Z0-9_]+))+)\s*\)", source):
        parts = re.findall(r'"([^"]*)"|([A-Z0-9_]+)', call)
        found.append("".join(macros[macro] if macro else text for text, macro in parts))
    return [schema for schema in found if not schema.startswith("_")]


@contextmanager
def operators(namespace: str) -> Iterator[Any]:
    """Define and register all operators in a namespace; yield what torch.ops has of it."""
    library = torch.library.Library(namespace, "DEF")
    for schema in schemas():
        library.define(schema)
    # In the package this is FlashInfer's host code.
    library.impl("mxfp4_dequantize_host", dequantize.mxfp4_dequantize_host, "CPU")
    registration.register(namespace)
    yield getattr(torch.ops, namespace)
    library._destroy()
