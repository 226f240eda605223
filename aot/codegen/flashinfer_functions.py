"""A C++ type for each function of FlashInfer's that an operator calls, of the whole catalogue.

The operators are the same sources in every build, so their calls are checked against every module,
whichever of them are built.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from aot.catalog import Function, Module
from aot.errors import PlanError

_HEADER: Final = """\
// Generated from aot/catalog.py; do not edit.
#pragma once
#include "flashinfer/function.h"

namespace fp4aot::flashinfer {
"""
_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DLTensor*": "DLTensor",
        "Optional<DLTensor*>": "OptionalTensor",
        "Tensor": "OwningTensor",
        "int": "int64_t",
        "float": "double",
        "bool": "bool",
        "None": "void",
    }
)


def flashinfer_functions(modules: Iterable[Module]) -> str:
    """Return the header; a function that modules export with different types has all of them.

    Raises
    ------
    PlanError
        When a row has a type that the operators cannot pass.
    """
    signatures: dict[str, list[str]] = {}
    for module in modules:
        for function in module.functions:
            if function.operator:
                signatures.setdefault(function.name, []).append(_signature(function))
    structs = (_struct(name, dict.fromkeys(signatures[name])) for name in sorted(signatures))
    return f"{_HEADER}{''.join(structs)}}}  // namespace fp4aot::flashinfer\n"


def _signature(function: Function) -> str:
    used = (function.result, *function.arguments)
    if unknown := [name for name in used if name not in _TYPES]:
        raise PlanError(
            f"the row of {function.name} in aot/catalog.py has the type {unknown[0]}; expected one "
            f"of {', '.join(_TYPES)}: correct it, or teach flashinfer/function.h to pass it"
        )
    result, *arguments = (_TYPES[name] for name in used)
    return f"{result}({', '.join(arguments)})"


def _struct(name: str, signatures: Iterable[str]) -> str:
    head = f"struct {name} : Function<{', '.join(signatures)}> {{"
    lines = textwrap.wrap(head, 99, subsequent_indent="    ", break_long_words=False)
    return "\n".join([*lines, f'  static constexpr const char* kName = "{name}";', "};", "", ""])
