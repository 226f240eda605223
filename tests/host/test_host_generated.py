"""Generated calls: the C++ and the Python checks refuse the same ones in the same words.

Each is an accepted or a refused call of the tables in `bad_inputs`, changed in some places. The
Python side sees tensors of the meta device, so that nothing is computed. FP4AOT_GENERATED_CALLS
says how many there are.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host.compare import WITHOUT_CPP, cpp_outcome, overload, python_outcome

CALLS = int(os.environ.get("FP4AOT_GENERATED_CALLS", "3000"))
# What only a device can tell, or memory: the Python checks accept it.
ONLY_CPP = (
    "on compute capability",
    "that is not aligned to",
    "memory that starts within 128 bytes",
)
DTYPES = (
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
)
INTEGERS = (
    *(-(2**63), -(2**31), -1, 0, 1, 2, 3, 4, 8, 9, 16, 31, 32, 64, 100, 128, 192, 256),
    *(2**31 - 1, 2**31, 2**61, 2**62 + 1, 2**63 - 1),
)
FLOATS = (0.0, -1.0, 1e-45, 1e300, float("inf"), float("nan"))
# With tensors that are not all on one device torch chooses which implementation is called.
ROWS = tuple(
    (operator, build)
    for operator, build in (*ACCEPTED, *((c.operator, c.build) for c in (*EVERY_DEVICE, *HOST)))
    if operator.removesuffix(".out") not in WITHOUT_CPP
)


def named_arguments(operator: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the arguments by name, and the schema's types of all of them."""
    schema = overload("fp4aot", operator)._schema
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    return given, {argument.name: str(argument.type) for argument in schema.arguments}


def laid_out_like(tensor: torch.Tensor, **changes: Any) -> torch.Tensor:
    """Make a tensor of the same layout, or of a changed one. What it holds does not matter."""
    shape = changes.get("shape", tensor.shape)
    dtype = changes.get("dtype", tensor.dtype)
    if "shape" in changes:
        return torch.empty(shape, dtype=dtype)
    return torch.empty_strided(shape, tensor.stride(), dtype=dtype)


@st.composite
def tensors(draw: Any, tensor: torch.Tensor | None) -> torch.Tensor:
    """Change a tensor in one way."""
    if tensor is None or tensor.device.type != "cpu" or tensor.numel() > 2**20:
        tensor = torch.empty(draw(st.sampled_from([(1,), (4,), (2, 4), (4, 64)])))
    kind = draw(st.sampled_from(["dtype", "size", "rank", "strides", "offset"]))
    if kind == "dtype":
        return laid_out_like(tensor, dtype=draw(st.sampled_from(DTYPES)))
    shape = list(tensor.shape)
    if kind == "size" and shape:
        at = draw(st.integers(0, len(shape) - 1))
        sizes = (0, 1, 2, 3, shape[at] - 1, shape[at] + 1, 2 * shape[at], 16, 32, 96, 128)
        shape[at] = max(0, draw(st.sampled_from(sizes)))
        return laid_out_like(tensor, shape=shape)
    if kind == "rank":
        return laid_out_like(
            tensor, shape=draw(st.sampled_from([[1, *shape], shape[1:], [*shape, 2]]))
        )
    if kind == "offset":
        return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].reshape(shape)
    if len(shape) >= 2:
        wider = [*shape[:-1], 2 * shape[-1]]
        return draw(
            st.sampled_from(
                [
                    laid_out_like(tensor, shape=shape).transpose(-2, -1),
                    laid_out_like(tensor, shape=[*shape[:-2], shape[-1], shape[-2]]).transpose(
                        -2, -1
                    ),
                    laid_out_like(tensor, shape=wider)[..., : shape[-1]],
                ]
            )
        )
    return tensor


@st.composite
def calls(draw: Any) -> tuple[str, dict[str, Any]]:
    operator, build = draw(st.sampled_from(ROWS))
    given_arguments, types = named_arguments(operator, *build("cpu"))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(types)))
        value = given_arguments.get(name)
        kind = types[name]
        if "Tensor" in kind:
            changed = draw(tensors(value))
            if kind.startswith("Optional") and draw(st.booleans()):
                changed = None
            given_arguments[name] = changed
        elif isinstance(value, torch.dtype):
            given_arguments[name] = draw(st.sampled_from(DTYPES))
        elif "bool" in kind:
            given_arguments[name] = draw(st.booleans())
        elif "float" in kind:
            given_arguments[name] = draw(st.sampled_from(FLOATS))
        elif kind == "int" and value is not torch.dtype:
            given_arguments[name] = draw(st.sampled_from(INTEGERS))
    return operator, given_arguments


def on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


@pytest.mark.usefixtures("library")
@settings(
    max_examples=CALLS, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(call=calls())
def test_generated_calls_have_one_outcome(library, call):
    operator, keywords = call
    if any(isinstance(v, torch.Tensor) and v.device.type == "meta" for v in keywords.values()):
        return
    library.reset((12, 0))
    found = cpp_outcome(operator, (), keywords)
    if found.refusal is not None and any(words in found.refusal for words in ONLY_CPP):
        return
    expected = python_outcome(operator, (), {k: on_meta(v) for k, v in keywords.items()})
    expected = expected._replace(
        refusal=expected.refusal and expected.refusal.replace("meta", "cpu")
    )
    assert found == expected
