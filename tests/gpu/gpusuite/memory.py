"""Memory that shows what was not written, and what was written outside of a buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# NaN as E4M3, UE8M0, bfloat16, float16 and float32.
POISON = 0xFF
_GUARD = 0xA5
# More than fifteen rows of the widest block scales here.
_GUARD_BYTES = 32 << 10

_MIB = 1 << 20
# The allocator serves requests up to this size from segments of their own kind.
_SMALL = _MIB


def poison(large: int = 64 * _MIB) -> None:
    """Fill with NaN everything that the caching allocator may hand out next on this stream.

    Parameters
    ----------
    large
        Bytes of a block that is made, so that there is one even when nothing is cached.
    """
    sizes = [large, *[_SMALL // 2] * 8, *_free_blocks()]
    blocks = [torch.full((size,), POISON, dtype=torch.uint8, device="cuda") for size in sizes]
    del blocks


def _free_blocks() -> list[int]:
    """List the sizes of what is cached and free, the largest first: requests that it will serve."""
    stream = torch.cuda.current_stream().cuda_stream
    device = torch.cuda.current_device()
    found = []
    for segment in torch.cuda.memory_snapshot():
        shared = tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        if not shared or segment["stream"] != stream or segment["device"] != device:
            continue
        for block in segment["blocks"]:
            size = block["size"] if block["state"] == "inactive" else 0
            if segment["segment_type"] == "small":
                found += [_SMALL] * (size // _SMALL) + [size % _SMALL] * (size % _SMALL > 0)
            elif size > _SMALL:
                found.append(size)
    return sorted(found, reverse=True)


@dataclass(frozen=True)
class Guarded:
    """A poisoned buffer between two zones that nothing may write to.

    Attributes
    ----------
    tensor
        The buffer, of the shape and strides of another tensor.
    memory
        Zone, buffer and zone, as bytes.
    """

    tensor: torch.Tensor
    memory: torch.Tensor

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Guarded:
        """Make a buffer with the layout of a tensor that has no gaps."""
        size = tensor.numel() * tensor.element_size()
        memory = torch.full(
            (size + 2 * _GUARD_BYTES,), _GUARD, dtype=torch.uint8, device=tensor.device
        )
        inner = memory[_GUARD_BYTES : _GUARD_BYTES + size]
        inner.fill_(POISON)
        buffer = inner.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return cls(buffer, memory)

    def check(self) -> None:
        """Fail where a zone has been written to."""
        for zone in (self.memory[:_GUARD_BYTES], self.memory[-_GUARD_BYTES:]):
            touched = int((zone != _GUARD).sum())
            assert touched == 0, f"{touched} bytes beside the buffer were written"


def poisoned_like(tensor: torch.Tensor, byte: int = POISON) -> torch.Tensor:
    """Return a buffer with the layout of a tensor without gaps, full of one byte."""
    size = tensor.numel() * tensor.element_size()
    memory = torch.full((size,), byte, dtype=torch.uint8, device=tensor.device)
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def fill(tensor: torch.Tensor, byte: int) -> None:
    """Fill a tensor without gaps with one byte."""
    tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).fill_(byte)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's elements as integers, so that NaN equals itself and -0 differs from 0."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def churn(rounds: int = 3) -> None:
    """Allocate, fill with NaN and free blocks of many sizes, and give memory back to the driver."""
    for round_ in range(rounds):
        blocks = [
            torch.full((size + 512 * round_,), POISON, dtype=torch.uint8, device="cuda")
            for size in (512, 4096, 70_000, 500_000, 1 << 20, 3 << 20, 40 << 20)
            for _ in range(4)
        ]
        del blocks[::2]
        blocks.append(torch.full((13 << 20,), POISON, dtype=torch.uint8, device="cuda"))
        del blocks
        if round_ % 2 == 0:
            torch.cuda.empty_cache()
