"""Results of the KV cache operators."""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._fakes import common


def nvfp4_kv_quantize(
    input: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed values and linear block scales."""
    _checks.nvfp4_kv_quantize(input, global_scale)
    value_shape, scale_shape = _checks.kv_quantized_shapes(input)
    return common.uint8(value_shape, input), common.uint8(scale_shape, input)


def nvfp4_kv_quantize_out(
    input: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    fp4_output: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.nvfp4_kv_quantize(input, global_scale)
    _checks.nvfp4_kv_quantize_out(input, fp4_output, block_scales)


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Return `[M, K]` of the output dtype."""
    _checks.nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, output_dtype)
    return common.dequantized(fp4_data, output_dtype)


def nvfp4_kv_dequantize_out(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.nvfp4_kv_dequantize_out(fp4_data, block_scales, global_scale, out)


def nvfp4_kv_dequantize_paged(
    paged_k_cache: torch.Tensor,
    paged_v_cache: torch.Tensor,
    k_block_scales: torch.Tensor,
    v_block_scales: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    max_seq_len: int,
    output_dtype: torch.dtype,
    kv_layout: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V, contiguous `[batch, max_seq_len, heads, dim]`."""
    _checks.nvfp4_kv_dequantize_paged(
        paged_k_cache,
        paged_v_cache,
        k_block_scales,
        v_block_scales,
        block_tables,
        seq_lens,
        k_scale,
        v_scale,
        max_seq_len,
        output_dtype,
        kv_layout,
    )
    k_shape, v_shape = _checks.paged_output_shapes(
        paged_k_cache, paged_v_cache, block_tables, max_seq_len, kv_layout
    )
    return (
        paged_k_cache.new_empty(k_shape, dtype=output_dtype),
        paged_k_cache.new_empty(v_shape, dtype=output_dtype),
    )


def nvfp4_kv_dequantize_paged_out(
    paged_k_cache: torch.Tensor,
    paged_v_cache: torch.Tensor,
    k_block_scales: torch.Tensor,
    v_block_scales: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    kv_layout: int,
    *,
    output_k: torch.Tensor,
    output_v: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.nvfp4_kv_dequantize_paged_out(
        paged_k_cache,
        paged_v_cache,
        k_block_scales,
        v_block_scales,
        block_tables,
        seq_lens,
        k_scale,
        v_scale,
        kv_layout,
        output_k,
        output_v,
    )
