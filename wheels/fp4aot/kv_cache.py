"""Quantization to NVFP4 KV caches and dequantization, with FlashInfer's names and argument order.

Every function here is one operator call, as in `fp4aot.quantization`.
"""

from __future__ import annotations

import torch

__all__ = ["nvfp4_kv_dequantize", "nvfp4_kv_dequantize_paged", "nvfp4_kv_quantize"]

_KV_LAYOUTS = {"NHD": 0, "HND": 1}


def nvfp4_kv_quantize(
    input: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows to NVFP4 with linear block scales, as `nvfp4_kv_dequantize` reads them.

    Parameters
    ----------
    input
        `[M, K]` of dtype float16 or bfloat16, K divisible by 16. A non-contiguous tensor is copied
        first.
    global_scale
        float32, one element, on the same device. It is the reciprocal of the global scale of
        `fp4_quantize`, and the one that `nvfp4_kv_dequantize` takes: `input.abs().max() /
        (448 * 6)` uses the whole range.

    Returns
    -------
    fp4_output : torch.Tensor
        uint8 `[M, K / 2]`; element 2i is in the low four bits.
    block_scales : torch.Tensor
        uint8 `[M, K / 16]`: E4M3, in the linear layout.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.

    Notes
    -----
    A block with largest magnitude a, under global scale g, has the scale s = (a / 6) / g, rounded
    to E4M3; its values are x / (s * g), rounded to E2M1. From `fp4_kv_quantization.cu` of
    FlashInfer. What a block with a NaN becomes is not specified.

    For a paged cache, reshape: the rows of `[pages, page_size, heads, dim]` (NHD) or `[pages,
    heads, page_size, dim]` (HND) are its vectors of `dim` values, and the results reshape back.
    """
    fp4_output, block_scales = torch.ops.fp4aot.nvfp4_kv_quantize.default(input, global_scale)
    return fp4_output, block_scales


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Dequantize NVFP4 rows with linear block scales.

    Parameters
    ----------
    fp4_data
        uint8 `[M, K / 2]`, K divisible by 16.
    block_scales
        uint8 or float8_e4m3fn `[M, K / 16]`: E4M3, in the linear layout.
    global_scale
        float32, one element, on the same device. It multiplies: to undo `fp4_quantize`, pass the
        reciprocal of its global scale.
    output_dtype
        bfloat16 or float16.

    Returns
    -------
    torch.Tensor
        `[M, K]` of `output_dtype`.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.

    Notes
    -----
    (value * block scale) * global scale in float32, then rounded to the output dtype; from
    `fp4_kv_dequantization.cu` of FlashInfer. What the bits of a NaN are is not specified.
    """
    result: torch.Tensor = torch.ops.fp4aot.nvfp4_kv_dequantize.default(
        fp4_data, block_scales, global_scale, output_dtype
    )
    return result


def nvfp4_kv_dequantize_paged(
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    output_k: torch.Tensor | None = None,
    output_v: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    *,
    max_seq_len: int | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Gather a paged NVFP4 KV cache into dense, dequantized K and V.

    Parameters
    ----------
    paged_kv_cache
        A tuple `(k, v)`, each uint8 `[pages, page_size, heads, dim / 2]` for "NHD" or
        `[pages, heads, page_size, dim / 2]` for "HND", or one tensor with both, stacked in its
        second dimension. Only the last dimension must have stride 1. K and V may differ in `dim`.
        As in FlashInfer, the page dimension may be missing where pages hold one token.
    kv_cache_sf
        E4M3 block scales in the same form, uint8 or float8_e4m3fn, with `dim / 16` last. Both K and
        V in the linear layout: the V scales of `flashinfer.nvfp4_quantize_paged_kv_cache` are in
        another one.
    block_tables
        int32 or int64 `[batch, pages a request]`. A page number outside the cache is skipped.
    seq_lens
        int32 `[batch]`.
    k_scale, v_scale
        float32, one element each. They multiply.
    output_k, output_v
        Buffers `[batch, max_seq_len, heads, dim]`, contiguous, float16 or bfloat16, to write to:
        both or neither.
    kv_layout
        "NHD" or "HND".
    max_seq_len
        Length of the results where no buffers are given; needed then. (The longest sequence is in
        device memory, and reading it would wait for the device.)
    output_dtype
        dtype of the results where no buffers are given.

    Returns
    -------
    tuple of torch.Tensor, or None
        `(k, v)`, zero where a position is not below its sequence's length or has no valid page.
        With buffers: None, and such positions of the buffers are left as they are.

    Raises
    ------
    RuntimeError
        A tensor is not as described; the message names it, what it is, and what to do.
    ValueError
        `kv_layout`, the outputs or `max_seq_len` do not fit together.
    """
    if kv_layout not in _KV_LAYOUTS:
        raise ValueError(
            f"fp4aot.nvfp4_kv_dequantize_paged: kv_layout={kv_layout!r}; pass 'NHD' or 'HND'"
        )
    k_cache, v_cache = _unstack(paged_kv_cache, "paged_kv_cache", kv_layout)
    k_block_scales, v_block_scales = _unstack(kv_cache_sf, "kv_cache_sf", kv_layout)
    cache = (k_cache, v_cache, k_block_scales, v_block_scales)
    request = (block_tables, seq_lens, k_scale, v_scale)
    layout = _KV_LAYOUTS[kv_layout]
    if output_k is not None and output_v is not None:
        torch.ops.fp4aot.nvfp4_kv_dequantize_paged.out(
            *cache, *request, layout, output_k=output_k, output_v=output_v
        )
        return None
    if output_k is not None or output_v is not None:
        raise ValueError(
            "fp4aot.nvfp4_kv_dequantize_paged: one of output_k and output_v is None; pass both, or "
            "neither and max_seq_len"
        )
    if max_seq_len is None:
        raise ValueError(
            "fp4aot.nvfp4_kv_dequantize_paged: max_seq_len is None; pass it, or output_k and "
            "output_v"
        )
    k, v = torch.ops.fp4aot.nvfp4_kv_dequantize_paged.default(
        *cache, *request, max_seq_len, output_dtype, layout
    )
    return k, v


def _unstack(
    cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor], argument: str, kv_layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a stacked cache, and give pages of one token their dimension."""
    if isinstance(cache, torch.Tensor):
        if cache.dim() not in (4, 5) or cache.shape[1] != 2:
            raise ValueError(
                f"fp4aot.nvfp4_kv_dequantize_paged: {argument} has shape {list(cache.shape)}; pass "
                "a tuple (k, v), or one tensor [pages, 2, ...] of four or five dimensions"
            )
        k, v = cache[:, 0], cache[:, 1]
    else:
        k, v = cache
    page_dimension = -3 if kv_layout == "NHD" else -2
    return (
        k.unsqueeze(page_dimension) if k.dim() == 3 else k,
        v.unsqueeze(page_dimension) if v.dim() == 3 else v,
    )
