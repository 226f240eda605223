"""NVFP4 KV caches: quantization, dequantization and append, with FlashInfer's names and order.

Every function here is one operator call, as in `fp4aot.quantization`.
"""

from __future__ import annotations

import torch

__all__ = [
    "nvfp4_kv_dequantize",
    "nvfp4_kv_dequantize_paged",
    "nvfp4_kv_quantize",
    "nvfp4_quantize_append_paged_kv_cache",
]

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
    cache, layout = _caches("nvfp4_kv_dequantize_paged", paged_kv_cache, kv_cache_sf, kv_layout)
    request = (block_tables, seq_lens, k_scale, v_scale)
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


def nvfp4_quantize_append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str = "NHD",
) -> None:
    """Quantize new keys and values into the pages of an NVFP4 KV cache, in place.

    Parameters
    ----------
    append_key, append_value
        `[rows, heads, dim]` of dtype float16 or bfloat16, dim 64, 128, 256 or 512.
    batch_indices, positions
        int32 `[rows]`: the request of each row, and its position in it. Each row must go to another
        place, for which the request has a page; the kernel looks at neither.
    paged_kv_cache, kv_cache_sf
        The caches, as `nvfp4_kv_dequantize_paged` reads them; K and V have the same strides.
    kv_indices
        int32: the numbers of all requests' pages, one request after the other.
    kv_indptr
        int32 `[requests + 1]`: where the pages of each request begin in `kv_indices`.
    kv_last_page_len
        int32 `[requests]`: entries in the last page of each request.
    k_scale, v_scale
        Positive, finite: the numbers that `nvfp4_kv_dequantize_paged` multiplies by.
    kv_layout
        "NHD" or "HND".

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    ValueError
        `kv_layout` or a cache has another form.

    Notes
    -----
    A block with largest magnitude a, under global scale g, has the scale s = a / (6 g), rounded to
    E4M3; its values are x / (s g), rounded to E2M1, and zeros where s is rounded to zero. From
    `page.cuh` of FlashInfer. What a block with a NaN becomes is not specified.
    """
    name = "nvfp4_quantize_append_paged_kv_cache"
    cache, layout = _caches(name, paged_kv_cache, kv_cache_sf, kv_layout)
    torch.ops.fp4aot.nvfp4_quantize_append_paged_kv_cache.default(
        *(append_key, append_value, batch_indices, positions, *cache),
        *(kv_indices, kv_indptr, kv_last_page_len, float(k_scale), float(v_scale), layout),
    )


def _caches(
    name: str,
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_layout: str,
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], int]:
    """Return the caches of K and V, their block scales, and the number of the layout."""
    if kv_layout not in _KV_LAYOUTS:
        raise ValueError(f"fp4aot.{name}: kv_layout={kv_layout!r}; pass 'NHD' or 'HND'")
    k, v = _unstack(name, paged_kv_cache, "paged_kv_cache", kv_layout)
    k_scales, v_scales = _unstack(name, kv_cache_sf, "kv_cache_sf", kv_layout)
    return (k, v, k_scales, v_scales), _KV_LAYOUTS[kv_layout]


def _unstack(
    name: str,
    cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    argument: str,
    kv_layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a stacked cache, and give pages of one token their dimension."""
    if isinstance(cache, torch.Tensor):
        if cache.dim() not in (4, 5) or cache.shape[1] != 2:
            raise ValueError(
                f"fp4aot.{name}: {argument} has shape {list(cache.shape)}; pass "
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
