"""What the tables are made of: a refused call, and ways to build its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Accepted = tuple[str, Callable[[str], Arguments]]
"""An operator, with `.out` for that overload, and what makes arguments for a device."""


@dataclass(frozen=True)
class BadInput:
    """One refused call.

    Attributes
    ----------
    case
        Name of the test.
    operator
        Operator, with `.out` for that overload.
    build
        Makes the arguments for a device.
    fragments
        Regular expressions that the error text must contain, beside the operator's name.
    """

    case: str
    operator: str
    build: Callable[[str], Arguments]
    fragments: tuple[str, ...]


def other_device(device: str) -> str:
    """Return a device that a tensor can be on without being on `device`."""
    return "cpu" if device.startswith("cuda") else "meta"


def scale(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (1,), dtype=dtype, device=device)


def empty(
    device: str, *shape: int, dtype: torch.dtype = torch.uint8, stretch: int = 1
) -> torch.Tensor:
    """Make a tensor; with `stretch`, its first dimension repeats one row that many times."""
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    return tensor if stretch == 1 else tensor.expand(stretch, *shape[1:])


def call(*positional: Any, **keywords: Any) -> Callable[[str], Arguments]:
    """Build a call from values and functions of the device."""

    def build(device: str) -> Arguments:
        def resolve(value: Any) -> Any:
            return value(device) if callable(value) else value

        return (
            tuple(resolve(value) for value in positional),
            {name: resolve(value) for name, value in keywords.items()},
        )

    return build


def uint8(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    return lambda device: empty(device, *shape, **options)


def every_other(*shape: int) -> Callable[[str], torch.Tensor]:
    """Make a tensor whose last dimension has stride 2."""
    *batch, last = shape
    # A view by as_strided: indexing a fake CUDA tensor needs a torch that is built for CUDA.
    return lambda device: empty(device, *batch, 2 * last).as_strided(
        shape, [2 * step for step in torch.empty(shape, device="meta").stride()]
    )


def elsewhere(make: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
    return lambda device: make(other_device(device))


HALF = torch.float16


def column_major(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    """Make the transpose of a contiguous tensor; `shape` is the transpose's."""
    *batch, rows, columns = shape
    return lambda device: empty(device, *batch, columns, rows, **options).transpose(-2, -1)


def viewed(dtype: torch.dtype, *shape: int) -> Callable[[str], torch.Tensor]:
    """Make bytes that another dtype names."""
    return lambda device: empty(device, *shape).view(dtype)
