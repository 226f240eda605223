"""What the C++ passes to FlashInfer's functions is what FlashInfer's own Python passes to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from host.host_library import public_functions
from host.user_calls import CALLS, Make, Memory, expected


@pytest.fixture(scope="module")
def package(library):
    with public_functions() as functions:
        yield SimpleNamespace(**functions)


@pytest.mark.parametrize("call", CALLS, ids=[call.id for call in CALLS])
def test_flashinfer_gets_what_its_own_python_passes(library, package, recordings, call):
    library.reset(call.capability)
    arguments, keywords = call.build(Make("cpu", package))
    result = getattr(package, call.name)(*arguments, **keywords)
    memory = Memory(arguments, keywords, result)
    ours = [
        {
            "function": recorded["function"],
            "arguments": [_form(argument, memory) for argument in recorded["arguments"]],
        }
        for recorded in library.calls
    ]
    assert ours == expected(call, recordings[call.id])


def _form(argument: dict[str, Any], memory: Memory) -> dict[str, Any]:
    if "tensor" not in argument:
        return argument
    has_elements = 0 not in argument["tensor"]["shape"]
    owner = memory.owner(argument["address"] if has_elements else None)
    return {"tensor": argument["tensor"], **owner}
