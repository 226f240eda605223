"""Ways to make the arguments of the calls on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HALF = torch.float16


def other_device(device: str) -> str:
    """Return a device that a tensor can be on without being on `device`."""
    return "cpu" if device.startswith("cuda") else "meta"


def scale(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[str], torch.Tensor]:
    """Make a tensor of ones, of one element without a shape."""
    return lambda device: torch.ones(shape or (1,), dtype=dtype, device=device)


def empty(
    device: str, *shape: int, dtype: torch.dtype = torch.uint8, stretch: int = 1
) -> torch.Tensor:
    """Make a tensor; with `stretch`, its first dimension repeats one row that many times."""
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    return tensor if stretch == 1 else tensor.expand(stretch, *shape[1:])


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


def column_major(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    """Make the transpose of a contiguous tensor; `shape` is the transpose's."""
    *batch, rows, columns = shape
    return lambda device: empty(device, *batch, columns, rows, **options).transpose(-2, -1)


def viewed(dtype: torch.dtype, *shape: int) -> Callable[[str], torch.Tensor]:
    """Make bytes that another dtype names."""
    return lambda device: empty(device, *shape).view(dtype)
