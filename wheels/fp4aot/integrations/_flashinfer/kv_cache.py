"""Replacements of FlashInfer's functions for NVFP4 KV caches."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import kv_cache
from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)

Cache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def nvfp4_kv_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.nvfp4_kv_quantize`."""
    forward = forwarder(original)

    def routed(input: torch.Tensor, global_scale: torch.Tensor, **more: Any) -> Any:
        if asks_for_more(more):
            return forward(more, input=input, global_scale=global_scale)
        return kv_cache.nvfp4_kv_quantize(input, global_scale)

    return routed


def nvfp4_kv_dequantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.nvfp4_kv_dequantize`."""
    forward = forwarder(original)

    def routed(
        fp4_data: torch.Tensor,
        block_scales: torch.Tensor,
        global_scale: torch.Tensor,
        output_dtype: torch.dtype = torch.bfloat16,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                fp4_data=fp4_data,
                block_scales=block_scales,
                global_scale=global_scale,
                output_dtype=output_dtype,
            )
        return kv_cache.nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, output_dtype)

    return routed


def nvfp4_kv_dequantize_paged(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.nvfp4_kv_dequantize_paged`."""
    forward = forwarder(original)

    def routed(
        paged_kv_cache: Cache,
        kv_cache_sf: Cache,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        output_k: torch.Tensor,
        output_v: torch.Tensor,
        kv_layout: str = "NHD",
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                paged_kv_cache=paged_kv_cache,
                kv_cache_sf=kv_cache_sf,
                block_tables=block_tables,
                seq_lens=seq_lens,
                k_scale=k_scale,
                v_scale=v_scale,
                output_k=output_k,
                output_v=output_v,
                kv_layout=kv_layout,
            )
        return kv_cache.nvfp4_kv_dequantize_paged(
            paged_kv_cache,
            kv_cache_sf,
            block_tables,
            seq_lens,
            k_scale,
            v_scale,
            output_k,
            output_v,
            kv_layout,
        )

    return routed
