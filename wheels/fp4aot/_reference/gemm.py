"""FP4 matrix multiplication in plain PyTorch.

The CUTLASS kernels multiply e2m1 values with their E4M3 scales exactly, add up in float32 in an
order of their own, multiply the sum by alpha in float32, and round once to the output dtype. Here
the sum is exact instead, so that it depends neither on an order nor on how many rows there are: in
float64 every product is a multiple of 2^-20 and below 2^23, so up to K = 1024 no sum can round, and
beyond it the relative error is K * 2^-53 at most, of the sum of magnitudes. A kernel's float32 sum
may be off by K * 2^-24 of that.
"""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import e2m1, scales
from fp4aot._reference.dequantize import scale_blocks

_BLOCK = 16


def mm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tactic: int = -1,
) -> torch.Tensor:
    """Multiply `[..., M, K / 2]` by `[..., K / 2, N]`. The tactic changes nothing."""
    _checks.mm_fp4(a, b, a_descale, b_descale, alpha, tactic, out_dtype)
    return _product(a, b, a_descale, b_descale, alpha).to(out_dtype)


def mm_fp4_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    tactic: int = -1,
    *,
    out: torch.Tensor,
) -> None:
    """Multiply into the caller's buffer, whose dtype is the output dtype."""
    _checks.mm_fp4_out(a, b, a_descale, b_descale, alpha, tactic, out)
    out.copy_(_product(a, b, a_descale, b_descale, alpha))


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """Return alpha * (a @ b) in float32."""
    assert alpha is not None  # noqa: S101 (the check has refused None)
    if not b_descale.is_contiguous():
        b_descale = b_descale.transpose(-2, -1)
    weight = _dequantize(b.transpose(-2, -1), b_descale)
    total = torch.matmul(_dequantize(a, a_descale), weight.transpose(-2, -1)).to(torch.float32)
    return scales.multiply(total, scales.flush_subnormals(alpha.reshape(())))


def _dequantize(packed: torch.Tensor, block_scales: torch.Tensor) -> torch.Tensor:
    """Return the values of `[..., rows, K / 2]` as float64."""
    *batch, rows, half_columns = packed.shape
    columns = half_columns * 2 // _BLOCK
    layout = _layouts.SfLayout.layout_128x4
    buffer = block_scales.view(torch.uint8).reshape(
        *batch, *_layouts.scale_shape(rows, columns, layout)
    )
    codes = _layouts.unswizzle(buffer, layout)[..., :rows, :columns]
    values = e2m1.decode(e2m1.unpack(packed.view(torch.uint8)))
    # Exact: an E2M1 value times an E4M3 scale has at most six significant bits.
    return scale_blocks(values, scales.decode_e4m3(codes)).to(torch.float64)
