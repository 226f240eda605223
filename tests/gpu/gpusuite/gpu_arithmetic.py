"""The reference, with the GPU's own approximations in place of correctly rounded steps.

The package's reference takes reciprocals correctly rounded; the kernels take them with
`rcp.approx.ftz.f32`, and the fused SiLU uses `ex2.approx.ftz.f32` and `div.approx.ftz.f32`. With
these instructions, called here through Triton, not one code of the reference may differ from the
kernels'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

from fp4aot.operators import batched
from fp4aot.operators.arithmetic import scales
from gpusuite.wheel import did_not_run

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None

LOG2_OF_E = batched._LOG2_OF_E
_BLOCK = 1024

if triton is not None:

    @triton.jit
    def _approximation(source, target, count, ASM: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < count
        result = tl.inline_asm_elementwise(
            asm=ASM,
            constraints="=f,f",
            args=[tl.load(source + offsets, mask=inside)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        tl.store(target + offsets, result, mask=inside)

    @triton.jit
    def _quotient(left, right, target, count, BLOCK: tl.constexpr):
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < count
        result = tl.inline_asm_elementwise(
            asm="div.approx.ftz.f32 $0, $1, $2;",
            constraints="=f,f,f",
            args=[tl.load(left + offsets, mask=inside), tl.load(right + offsets, mask=inside)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        tl.store(target + offsets, result, mask=inside)


def _apply(kernel, *sources: torch.Tensor, **constants: str) -> torch.Tensor:
    if triton is None:
        did_not_run("Triton is not installed, through which the GPU's rcp.approx is called")
    sources = tuple(source.contiguous() for source in sources)
    target = torch.empty_like(sources[0])
    count = target.numel()
    if count:
        kernel[(triton.cdiv(count, _BLOCK),)](*sources, target, count, BLOCK=_BLOCK, **constants)
    return target


def reciprocal(values: torch.Tensor) -> torch.Tensor:
    """Return the GPU's approximate reciprocal, float32, subnormals flushed."""
    return _apply(_approximation, values, ASM="rcp.approx.ftz.f32 $0, $1;")


def _silu_and_mul(a: torch.Tensor) -> torch.Tensor:
    gate, up = (scales.flush_subnormals(half) for half in a.to(torch.float32).chunk(2, dim=-1))
    exponent = scales.multiply(-gate, LOG2_OF_E)
    exponential = _apply(_approximation, exponent, ASM="ex2.approx.ftz.f32 $0, $1;")
    silu = _apply(_quotient, gate, 1.0 + exponential)
    return scales.multiply(silu, up).to(a.dtype)


class TrueDivision(TorchFunctionMode):
    """Let the reference divide by numbers on a GPU as it does on the CPU.

    PyTorch divides a CUDA tensor by a number by multiplying it with a rounded reciprocal.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("__truediv__", "div", "true_divide"):
            left, right = args
            if isinstance(right, (int, float)):
                args = (left, torch.full((), right, dtype=left.dtype, device=left.device))
        return func(*args, **(kwargs or {}))


@contextmanager
def gpu_arithmetic() -> Iterator[None]:
    """Let the reference compute with the GPU's approximations inside the `with` block."""
    saved = scales.reciprocal, batched._silu_and_mul
    scales.reciprocal, batched._silu_and_mul = reciprocal, _silu_and_mul
    try:
        with TrueDivision():
            yield
    finally:
        scales.reciprocal, batched._silu_and_mul = saved
