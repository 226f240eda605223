"""Results of `mm_fp4`."""

from __future__ import annotations

import torch

from fp4aot import _checks


def mm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tactic: int = -1,
) -> torch.Tensor:
    """Return contiguous `[..., M, N]` of the output dtype."""
    _checks.mm_fp4(a, b, a_descale, b_descale, alpha, tactic, out_dtype)
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype)


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
    """Validate only."""
    _checks.mm_fp4_out(a, b, a_descale, b_descale, alpha, tactic, out)
