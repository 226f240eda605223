"""Quantization to an NVFP4 KV cache, and dequantization, in plain PyTorch.

The arithmetic is that of FlashInfer 0.7.2's `fp4_kv_quantization.cu` and
`fp4_kv_dequantization.cu`, in float32 with the flushing of subnormals that `-use_fast_math`
implies. Dequantization is value x block scale, then x global scale, each product rounded to
float32, then rounded to the output dtype.
"""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._reference import blocks, e2m1, nvfp4, scales
from fp4aot._reference.dequantize import scale_blocks


def nvfp4_kv_quantize(
    input: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `[M, K]` with linear block scales. The global scale divides, and multiplies back.

    A block whose scale underflows to zero while its maximum is not zero saturates to +-6 (and +6
    where an element is zero), as in the kernel. What a block with a NaN gets is not specified.
    """
    _checks.nvfp4_kv_quantize(input, global_scale)
    decode_scale = scales.flush_subnormals(global_scale.reshape(1, 1))
    quantized = nvfp4.standard(
        blocks.split(input, 16), scales.reciprocal(decode_scale), decode_scale, blocks.maximum
    )
    return quantized.packed(), quantized.scale_codes


def nvfp4_kv_quantize_out(
    input: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    fp4_output: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Quantize into the caller's buffers."""
    quantized = nvfp4_kv_quantize(input, global_scale)
    _checks.nvfp4_kv_quantize_out(input, fp4_output, block_scales)
    fp4_output.copy_(quantized[0])
    block_scales.copy_(quantized[1])


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Dequantize `[M, K / 2]` with linear block scales `[M, K / 16]`."""
    _checks.nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, output_dtype)
    return _dequantize(fp4_data, block_scales, global_scale, output_dtype)


def nvfp4_kv_dequantize_out(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    out: torch.Tensor,
) -> None:
    """Dequantize into the caller's buffer, whose dtype is the output dtype."""
    _checks.nvfp4_kv_dequantize_out(fp4_data, block_scales, global_scale, out)
    out.copy_(_dequantize(fp4_data, block_scales, global_scale, out.dtype))


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
    """Gather and dequantize; positions that no page backs are zero."""
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
    shapes = _checks.paged_output_shapes(
        paged_k_cache, paged_v_cache, block_tables, max_seq_len, kv_layout
    )
    output_k, output_v = (
        torch.zeros(shape, dtype=output_dtype, device=paged_k_cache.device) for shape in shapes
    )
    pages = (block_tables, seq_lens, kv_layout)
    _write_pages(output_k, paged_k_cache, k_block_scales, k_scale, *pages)
    _write_pages(output_v, paged_v_cache, v_block_scales, v_scale, *pages)
    return output_k, output_v


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
    """Gather and dequantize; positions that no page backs keep what the buffers held."""
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
    pages = (block_tables, seq_lens, kv_layout)
    _write_pages(output_k, paged_k_cache, k_block_scales, k_scale, *pages)
    _write_pages(output_v, paged_v_cache, v_block_scales, v_scale, *pages)


def _dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    # An E2M1 value times an E4M3 scale is exact in float32: at most six significant bits.
    values = scale_blocks(e2m1.decode(e2m1.unpack(fp4_data)), scales.decode_e4m3(block_scales))
    factor = scales.flush_subnormals(global_scale.reshape(()))
    return scales.multiply(values, factor).to(output_dtype)


def _write_pages(
    output: torch.Tensor,
    cache: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    kv_layout: int,
) -> None:
    """Write every position of `output` `[batch, sequence, heads, dim]` that a valid page backs."""
    if kv_layout == 1:
        cache, block_scales = cache.transpose(1, 2), block_scales.transpose(1, 2)
    page_count, page_size = cache.shape[:2]
    if output.numel() == 0 or page_count == 0:
        return
    positions = torch.arange(output.shape[1], device=output.device)
    pages = block_tables[:, positions // page_size]
    backed = positions < seq_lens.unsqueeze(1)
    backed &= (pages >= 0) & (pages < page_count)
    # Positions without a page read page 0, and what they read is not used.
    source = (torch.where(backed, pages, 0).to(torch.int64), positions % page_size)
    # float8 tensors cannot be indexed on every device; their bytes can.
    scale_bytes = block_scales.view(torch.uint8)
    values = _dequantize(cache[source], scale_bytes[source], global_scale, output.dtype)
    output.copy_(torch.where(backed[..., None, None], values, output))
