"""Replacements of FlashInfer's FP4 matrix multiplications of groups."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import group_gemm
from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)


def group_gemm_nvfp4_nt_groupwise(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.gemm.group_gemm_nvfp4_nt_groupwise`."""
    forward = forwarder(original)

    def routed(
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        m_indptr: torch.Tensor,
        alpha: torch.Tensor | None = None,
        tile_m: int = 128,
        tile_n: int = 128,
        tile_k: int = 128,
        swap_ab: bool = True,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                a=a,
                b=b,
                a_scale=a_scale,
                b_scale=b_scale,
                m_indptr=m_indptr,
                alpha=alpha,
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=tile_k,
                swap_ab=swap_ab,
                out=out,
                out_dtype=out_dtype,
            )
        return group_gemm.group_gemm_nvfp4_nt_groupwise(
            a,
            b,
            a_scale,
            b_scale,
            m_indptr,
            alpha,
            tile_m,
            tile_n,
            tile_k,
            swap_ab,
            out,
            out_dtype,
        )

    if "swap_ab" in original.names:
        return routed

    # FlashInfer before 0.6.12, where the arguments after it have other positions.
    def routed_without_swap(
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        m_indptr: torch.Tensor,
        alpha: torch.Tensor | None = None,
        tile_m: int = 128,
        tile_n: int = 128,
        tile_k: int = 128,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        **more: Any,
    ) -> Any:
        return routed(
            *(a, b, a_scale, b_scale, m_indptr, alpha, tile_m, tile_n, tile_k, True),
            *(out, out_dtype),
            **more,
        )

    return routed_without_swap


def group_gemm_mxfp8_mxfp4_nt_groupwise(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise`.

    `group_gemm_mxfp4_nt_groupwise` is the same function by its older name.
    """
    forward = forwarder(original)

    def routed(
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
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                a=a,
                b=b,
                a_scale=a_scale,
                b_scale=b_scale,
                m_indptr=m_indptr,
                mma_sm=mma_sm,
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=tile_k,
                swap_ab=swap_ab,
                out=out,
                out_dtype=out_dtype,
            )
        return group_gemm.group_gemm_mxfp8_mxfp4_nt_groupwise(
            a,
            b,
            a_scale,
            b_scale,
            m_indptr,
            mma_sm,
            tile_m,
            tile_n,
            tile_k,
            swap_ab,
            out,
            out_dtype,
        )

    return routed
