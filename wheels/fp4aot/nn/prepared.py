"""Modules that hold a checkpoint's tensors, and beside them what kernels read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Prepared(torch.nn.Module):
    """A module of buffers, some of which are made of the others once they are loaded.

    Moving it between devices never changes the buffers' dtypes.
    """

    @torch.no_grad()
    def prepare(self) -> None:
        """Make what the kernels read of what checkpoints hold.

        Writes into the tensors that are there, so that a captured CUDA graph stays valid when a
        module is loaded again.
        """
        for name, tensor in self._prepared().items():
            buffer = getattr(self, name)
            if buffer.device == tensor.device:
                buffer.copy_(tensor)
            else:
                setattr(self, name, tensor)

    def _prepared(self) -> dict[str, torch.Tensor]:
        """Return the tensors that `prepare` writes, by the buffers' names."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        def keep_dtype(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]
