"""Factors of FP4 products: every code, and scales whose padding is as bad as it may be."""

from __future__ import annotations

import torch

from fp4aot import _layouts

Factors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

_LAYOUT = _layouts.SfLayout.layout_128x4
_NAN = 0x7F


def draw(
    m: int, n: int, k: int, batch: tuple[int, ...] = (), seed: int = 0, alpha: float = 0.0
) -> Factors:
    """Draw a, b, their scales and alpha, as `mm_fp4` takes them.

    Every e2m1 code occurs, and E4M3 scales of both signs of their exponent. The scales' padding
    rows are NaN and their padding columns finite garbage: neither may reach a result.
    """
    generator = torch.Generator("cuda").manual_seed(seed + 31 * m + 17 * n + k)
    a, a_scales = _operand(m, k, batch, generator)
    b, b_scales = _operand(n, k, batch, generator)
    # Values about 3 times scales about 1 to 8, K times: keeps float16 in its range.
    factor = torch.full((1,), alpha or 0.731 / (k**0.5 * 20), device="cuda")
    return a, b.transpose(-2, -1), a_scales, b_scales, factor


def _operand(
    rows: int, k: int, batch: tuple[int, ...], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        drawn = torch.randint(low, high, (*batch, *shape), generator=generator, device="cuda")
        return drawn.to(torch.uint8)

    packed = integers(0, 256, rows, k // 2)
    padded_rows, padded_columns = _layouts.scale_shape(rows, k // 16, _LAYOUT)
    # 2^-4 to 2^1, mantissa and all.
    scales = integers(0x18, 0x48, padded_rows, padded_columns)
    scales[..., rows:, :] = _NAN
    return packed, _layouts.swizzle(scales, _LAYOUT)
