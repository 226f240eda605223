"""What an operator does with a call, in a form in which two implementations can be compared."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch

from host.host_library import DEVICES, NAMESPACE

# Operators that FlashInfer has no kernel for have no C++ but their schema.
WITHOUT_CPP = ("e2m1_and_ufp8sf_scale_to_float", "mxfp4_dequantize")


class Outcome(NamedTuple):
    """Either what was said when the call was refused, or the layouts of what it returned."""

    refusal: str | None
    results: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]], ...] | None


def overload(namespace: str, name: str) -> Any:
    operator, _, kind = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), kind or "default")


def python_outcome(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Outcome:
    """Call the Python implementation."""
    return _outcome("fp4aot", name, arguments, keywords)


def cpp_outcome(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Outcome:
    """Call the C++."""
    workspace = keywords.get("workspace_buffer")
    is_ours = isinstance(workspace, torch.Tensor) and workspace.device.type == "cpu"
    if is_ours and workspace.is_contiguous():
        keywords = keywords | {"workspace_buffer": _as_a_gpu_would_place_it(workspace)}
    return _outcome(NAMESPACE, name, arguments, keywords)


def _as_a_gpu_would_place_it(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same layout whose memory is aligned as CUDA's is, to 256 bytes."""
    size = tensor.numel() * tensor.dtype.itemsize
    memory = torch.empty(size + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 256
    return memory[start : start + size].view(tensor.dtype).reshape(tensor.shape)


def _outcome(
    namespace: str, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Outcome:
    try:
        results = overload(namespace, name)(*arguments, **keywords)
    except RuntimeError as error:
        if not str(error).startswith("fp4aot::"):
            raise
        return Outcome(_without_large_products(_without_devices(str(error).splitlines()[0])), None)
    if results is None:
        results = ()
    elif isinstance(results, torch.Tensor):
        results = (results,)
    return Outcome(None, tuple((r.dtype, tuple(r.shape), _strides(r)) for r in results))


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that say something: of sizes above 1, in a tensor that has elements."""
    if tensor.numel() == 0:
        return ()
    layout = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in layout)


def _without_devices(text: str) -> str:
    """Give devices one name: a GPU's tensors are the CPU's here, and those elsewhere are meta."""
    text = text.replace("a device that is neither cpu nor cuda", "meta")
    for number in DEVICES.values():
        text = text.replace(f"cuda:{number}", "cpu")
    return text


def _without_large_products(text: str) -> str:
    """Give products of sizes that int64 cannot hold one value: in C++ they stop at the largest."""
    return re.sub(r"\d{19,}", lambda number: str(min(int(number[0]), 2**63 - 1)), text)
