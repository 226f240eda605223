"""Results of the grouped GEMMs."""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._checks.group_gemm import Factors


def group_gemm_nvfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
) -> torch.Tensor:
    """Return contiguous `[M, N]` of the output dtype."""
    factors = Factors(a, b, a_scale, b_scale, m_indptr)
    _checks.group_gemm_nvfp4_nt_groupwise(factors, alpha, (tile_m, tile_n, tile_k), out_dtype)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


def group_gemm_nvfp4_nt_groupwise_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    *,
    out: torch.Tensor,
) -> None:
    """Validate only."""
    factors = Factors(a, b, a_scale, b_scale, m_indptr)
    _checks.group_gemm_nvfp4_nt_groupwise_out(factors, alpha, (tile_m, tile_n, tile_k), out)


def group_gemm_mxfp8_mxfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    out_dtype: torch.dtype,
    mma_sm: int = 1,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
) -> torch.Tensor:
    """Return contiguous `[M, N]` of the output dtype."""
    factors, tiles = Factors(a, b, a_scale, b_scale, m_indptr), (tile_m, tile_n, tile_k)
    _checks.group_gemm_mxfp8_mxfp4_nt_groupwise(factors, mma_sm, tiles, out_dtype)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


def group_gemm_mxfp8_mxfp4_nt_groupwise_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    mma_sm: int = 1,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    *,
    out: torch.Tensor,
) -> None:
    """Validate only."""
    factors, tiles = Factors(a, b, a_scale, b_scale, m_indptr), (tile_m, tile_n, tile_k)
    _checks.group_gemm_mxfp8_mxfp4_nt_groupwise_out(factors, mma_sm, tiles, out)
