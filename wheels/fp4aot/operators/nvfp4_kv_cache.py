"""Quantization to an NVFP4 KV cache, dequantization, and new rows in the pages of one.

The arithmetic is that of FlashInfer 0.7.2's `fp4_kv_quantization.cu` and
`fp4_kv_dequantization.cu`, in float32 with the flushing of subnormals that `-use_fast_math`
implies. Dequantization is value x block scale, then x global scale, each product rounded to
float32, then rounded to the output dtype.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, e2m1, nvfp4, scales
from fp4aot.operators.structured import Layout, operator

# The KV kernel keeps a row's scales and the global scale in 48 KiB of shared memory.
_MOST_SCALES = 48 * 1024 - 4
_ONE_SCALE_EACH = "pass one scale for each 16 values"


@operator
def nvfp4_kv_quantize(input: torch.Tensor, global_scale: torch.Tensor) -> tuple[Layout, Layout]:
    """Refuse what cannot be quantized; block scales are linear."""
    name = "nvfp4_kv_quantize"
    checks.check_dtype(name, "input", input, (torch.float16, torch.bfloat16))
    checks.check_rank(name, "input", input, (2,))
    checks.check_blocks(name, "input", input)
    rows, columns = input.shape
    checks.check_int32(name, "input", columns, "a number of columns of")
    checks.check_scalar_scale(name, "global_scale", global_scale, "input", input)
    return (
        Layout((rows, columns // 2), torch.uint8),
        Layout((rows, columns // checks.NVFP4_BLOCK), torch.uint8),
    )


@nvfp4_kv_quantize.reference
def _(input: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The global scale divides, and multiplies back. A block whose scale underflows to zero while
    # its maximum is not zero saturates to +-6 (and +6 where an element is zero), as in the kernel.
    # What a block with a NaN gets is not specified.
    decode_scale = scales.flush_subnormals(global_scale.reshape(1, 1))
    elements, encode_scale = (
        blocks.split(input, checks.NVFP4_BLOCK),
        scales.reciprocal(decode_scale),
    )
    quantized = nvfp4.standard(elements, encode_scale, decode_scale, blocks.maximum)
    return quantized.packed(), quantized.scale_codes


@operator
def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> Layout:
    """Refuse what cannot be dequantized; return `[M, K]`."""
    name, data = "nvfp4_kv_dequantize", ("fp4_data", fp4_data)
    checks.check_output_dtype(name, "output_dtype", output_dtype)
    checks.check_dtype(name, *data, (torch.uint8,))
    checks.check_rank(name, *data, (2,))
    checks.check_blocks(name, *data, values_of_element=2)
    rows, columns = fp4_data.shape[0], fp4_data.shape[1] * 2
    scale_shape = (rows, columns // checks.NVFP4_BLOCK)
    checks.check_dtype(name, "block_scales", block_scales, checks.E4M3_DTYPES)
    what_to_do = "pass one linear scale for each 16 values"
    checks.check_shape(name, "block_scales", block_scales, scale_shape, what_to_do)
    checks.check_same_device(name, "block_scales", block_scales, *data)
    checks.check_scalar_scale(name, "global_scale", global_scale, *data)
    checks.check_int32(name, "fp4_data", rows * columns, "a number of values of")
    if isinstance(columns, int) and columns // checks.NVFP4_BLOCK > _MOST_SCALES:
        got, expected = f"{columns} values a row", f"at most {_MOST_SCALES * checks.NVFP4_BLOCK}"
        what_to_do = "split the rows: the block scales of one row must fit in shared memory"
        checks.fail(name, "fp4_data", got, expected, what_to_do)
    return Layout((rows, columns), output_dtype)


def _max_seq_len(output_k: torch.Tensor, output_v: torch.Tensor) -> int:
    checks.check_rank("nvfp4_kv_dequantize_paged", "output_k", output_k, (4,))
    return output_k.shape[1]


@operator(derived={"max_seq_len": _max_seq_len})
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
) -> tuple[Layout, Layout]:
    """Refuse what cannot be gathered; return K and V, `[batch, max_seq_len, heads, dim]`."""
    name, reference = "nvfp4_kv_dequantize_paged", ("paged_k_cache", paged_k_cache)
    checks.check_output_dtype(name, "output_dtype", output_dtype)
    values = ("paged_v_cache", paged_v_cache)
    k_scales, v_scales = ("k_block_scales", k_block_scales), ("v_block_scales", v_block_scales)
    _check_caches(name, (reference, k_scales), (values, v_scales), kv_layout)
    for argument, tensor, dtypes, rank in (
        ("block_tables", block_tables, (torch.int32, torch.int64), 2),
        ("seq_lens", seq_lens, (torch.int32,), 1),
    ):
        checks.check_dtype(name, argument, tensor, dtypes)
        checks.check_rank(name, argument, tensor, (rank,))
        checks.check_same_device(name, argument, tensor, *reference)
    checks.check_scalar_scale(name, "k_scale", k_scale, *reference)
    checks.check_scalar_scale(name, "v_scale", v_scale, *reference)
    batch = block_tables.shape[0]
    page_size, heads = paged_k_cache.shape[1:3] if kv_layout == 0 else paged_k_cache.shape[2:0:-1]
    note, what_to_do = ", the batch of block_tables", "pass one length for each request"
    checks.check_shape(name, "seq_lens", seq_lens, (batch,), what_to_do, note)
    if max_seq_len < 0:
        what_to_do = "pass the longest sequence length"
        checks.fail(name, "max_seq_len", f"{max_seq_len}", "0 or more", what_to_do)
    if block_tables.shape[1] * page_size < max_seq_len:
        what_to_do = "pass more pages a request, or a smaller max_seq_len"
        expected, note = f"pages for {max_seq_len} tokens", f" with pages of {page_size}"
        checks.fail_shape(name, "block_tables", block_tables, expected, what_to_do, note)
    size = batch * max_seq_len * heads
    checks.check_int32(name, "max_seq_len", size, "batch * max_seq_len * heads of")
    return (
        Layout((batch, max_seq_len, heads, paged_k_cache.shape[3] * 2), output_dtype),
        Layout((batch, max_seq_len, heads, paged_v_cache.shape[3] * 2), output_dtype),
    )


@nvfp4_kv_dequantize_paged.writes
def _(*arguments: Any, outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    # Positions that no page backs are kept.
    k, v, k_block_scales, v_block_scales, tables, seq_lens, k_scale, v_scale, *_, layout = arguments
    _write_pages(outputs[0], k, k_block_scales, k_scale, tables, seq_lens, layout)
    _write_pages(outputs[1], v, v_block_scales, v_scale, tables, seq_lens, layout)


_Named = tuple[str, torch.Tensor]


def _check_caches(
    name: str, k: tuple[_Named, _Named], v: tuple[_Named, _Named], kv_layout: int
) -> None:
    """Require both caches, each with its scales, of one layout."""
    if kv_layout not in (0, 1):
        expected = "0 (NHD) or 1 (HND)"
        checks.fail(name, "kv_layout", f"{kv_layout}", expected, "pass the layout of the cache")
    _check_cache(name, *k, k[0])
    _check_cache(name, *v, k[0])


def _check_cache(name: str, cache: _Named, block_scales: _Named, reference: _Named) -> None:
    """Require one of the two caches with its scales, shaped as the K cache in all but `dim`."""
    (argument, pages), (_, scale_pages), (_, k_pages) = cache, block_scales, reference
    checks.check_dtype(name, *cache, (torch.uint8,))
    checks.check_rank(name, *cache, (4,))
    checks.check_dtype(name, *block_scales, checks.E4M3_DTYPES)
    checks.check_rank(name, *block_scales, (4,))
    checks.check_same_device(name, *cache, *reference)
    checks.check_same_device(name, *block_scales, *reference)
    head_dim = pages.shape[3] * 2
    if head_dim == 0 or head_dim % checks.NVFP4_BLOCK != 0:
        expected = f"a head_dim that is a positive multiple of {checks.NVFP4_BLOCK}"
        checks.fail_shape(name, *cache, expected, "pad the heads", f" (head_dim {head_dim})")
    if pages.shape[:3] != k_pages.shape[:3]:
        expected = f"the pages, page size and heads of paged_k_cache {list(k_pages.shape)}"
        checks.fail_shape(name, *cache, expected, "pass caches of one layout")
    if scale_pages.shape[:3] != pages.shape[:3]:
        expected = f"the first three sizes of {argument} {list(pages.shape)}"
        checks.fail_shape(name, *block_scales, expected, _ONE_SCALE_EACH)
    if scale_pages.shape[3] != head_dim // checks.NVFP4_BLOCK:
        expected = f"{head_dim // checks.NVFP4_BLOCK} scales a head"
        checks.fail_shape(name, *block_scales, expected, _ONE_SCALE_EACH)
    for tensor_name, tensor in (cache, block_scales):
        if tensor.stride(3) != 1 and tensor.shape[3] > 1:
            got = f"stride {tensor.stride(3)} in the last dimension"
            checks.fail(name, tensor_name, got, "1", "make the last dimension contiguous")


@nvfp4_kv_dequantize.reference
def _dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    # An E2M1 value times an E4M3 scale is exact in float32: at most six significant bits.
    values = blocks.scale(e2m1.decode(e2m1.unpack(fp4_data)), scales.decode_e4m3(block_scales))
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


@operator
def nvfp4_quantize_append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_k_cache: torch.Tensor,
    paged_v_cache: torch.Tensor,
    k_scale_cache: torch.Tensor,
    v_scale_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: int,
) -> tuple[()]:
    """Refuse what cannot be appended. The caches are written in place."""
    name, key = "nvfp4_quantize_append_paged_kv_cache", ("append_key", append_key)
    checks.check_dtype(name, *key, (torch.float16, torch.bfloat16))
    checks.check_rank(name, *key, (3,))
    rows, heads, head_dim = append_key.shape
    if head_dim not in (64, 128, 256, 512):
        expected, note = "a head_dim of 64, 128, 256 or 512", f" (head_dim {head_dim})"
        checks.fail_shape(name, *key, expected, "pad the heads", note)
    checks.check_int32(name, "append_key", rows, "a number of rows of")
    checks.check_dtype(name, "append_value", append_value, (append_key.dtype,))
    note, what_to_do = ", the shape of append_key", "append a value for each key"
    checks.check_shape(name, "append_value", append_value, append_key.shape, what_to_do, note)
    checks.check_same_device(name, "append_value", append_value, *key)
    _check_numbers("batch_indices", batch_indices, rows, "a request for each row", append_key)
    _check_numbers("positions", positions, rows, "a position for each row", append_key)
    k, v = ("paged_k_cache", paged_k_cache), ("paged_v_cache", paged_v_cache)
    k_scales, v_scales = ("k_scale_cache", k_scale_cache), ("v_scale_cache", v_scale_cache)
    _check_caches(name, (k, k_scales), (v, v_scales), kv_layout)
    checks.check_same_device(name, *k, *key)
    held = (paged_k_cache.shape[2 if kv_layout == 0 else 1], paged_k_cache.shape[3] * 2)
    if held != (heads, head_dim) or paged_v_cache.shape[3] * 2 != head_dim:
        expected = (
            f"[rows, heads, head_dim] for caches of shape {list(paged_k_cache.shape)} and "
            f"{list(paged_v_cache.shape)}"
        )
        what_to_do = "append the heads that the caches hold, and pass their kv_layout"
        checks.fail_shape(name, *key, expected, what_to_do)
    # The kernel reads both caches with the strides of K's.
    for (argument, tensor), (_, of_k) in ((v, k), (v_scales, k_scales)):
        if any(
            size > 1 and stride != stride_of_k
            for size, stride, stride_of_k in zip(
                tensor.shape[:3], tensor.stride()[:3], of_k.stride()[:3], strict=True
            )
        ):
            got, expected = f"strides {list(tensor.stride())}", f"{list(of_k.stride())}, as K's"
            what_to_do = "take K and V from one tensor, or make both contiguous"
            checks.fail(name, argument, got, expected, what_to_do)
    for argument, tensor in (("kv_indices", kv_indices), ("kv_last_page_len", kv_last_page_len)):
        checks.check_dtype(name, argument, tensor, (torch.int32,))
        checks.check_rank(name, argument, tensor, (1,))
        checks.check_same_device(name, argument, tensor, *key)
    of_what = "one more than the requests of kv_last_page_len"
    _check_numbers("kv_indptr", kv_indptr, kv_last_page_len.shape[0] + 1, of_what, append_key)
    for argument, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not 0 < scale < math.inf:
            finite = math.isfinite(scale)
            got = "a number that is not positive" if finite else "no finite number"
            what_to_do = "pass what dequantizing multiplies by"
            checks.fail(name, argument, got, "a positive, finite number", what_to_do)
    return ()


def _check_numbers(
    argument: str, tensor: torch.Tensor, count: int, of_what: str, append_key: torch.Tensor
) -> None:
    """Require int32, a number for each of something."""
    name = "nvfp4_quantize_append_paged_kv_cache"
    checks.check_dtype(name, argument, tensor, (torch.int32,))
    checks.check_rank(name, argument, tensor, (1,))
    checks.check_shape(name, argument, tensor, (count,), "pass one number for each", f", {of_what}")
    checks.check_same_device(name, argument, tensor, "append_key", append_key)


@nvfp4_quantize_append_paged_kv_cache.reference
def _(*arguments: Any) -> None:
    # `NVFP4QuantizeAppendPagedKVCacheKernel` of FlashInfer 0.7.2's page.cuh. A row that is given
    # twice, and a block with a NaN, have no result that is specified.
    append_key, append_value, batch_indices, positions = arguments[:4]
    k_cache, v_cache, k_scale_cache, v_scale_cache, kv_indices, kv_indptr = arguments[4:10]
    k_scale, v_scale, kv_layout = arguments[11:]
    if append_key.numel() == 0:
        return
    page_size = k_cache.shape[1 if kv_layout == 0 else 2]
    first, entry = kv_indptr.to(torch.int64)[batch_indices.to(torch.int64)], positions % page_size
    pages = kv_indices.to(torch.int64)[first + positions // page_size]
    for rows, scale, cache, scale_cache in (
        (append_key, k_scale, k_cache, k_scale_cache),
        (append_value, v_scale, v_cache, v_scale_cache),
    ):
        quantized = _append_blocks(rows, scale)
        for target, written in (
            (cache, quantized.packed()),
            (scale_cache.view(torch.uint8), quantized.scale_codes),
        ):
            by_token = target if kv_layout == 0 else target.transpose(1, 2)
            by_token[pages, entry.to(torch.int64)] = written


def _append_blocks(rows: torch.Tensor, decode_scale: float) -> blocks.Blocks:
    elements = scales.flush_subnormals(blocks.split(rows, checks.NVFP4_BLOCK))
    factor = scales.flush_subnormals(
        torch.tensor(decode_scale, dtype=torch.float32, device=rows.device)
    )
    largest = scales.multiply(blocks.maximum(elements), scales.reciprocal(6.0 * factor))
    scale_codes = scales.encode_e4m3(largest.masked_fill(factor == 0.0, 0.0))
    block_scale = scales.decode_e4m3(scale_codes)
    # Unlike `nvfp4_kv_quantize`, a block whose scale underflows to zero has zeros.
    output_scale = scales.reciprocal(scales.multiply(block_scale, factor))
    output_scale = output_scale.masked_fill(block_scale == 0.0, 0.0)
    return blocks.Blocks(blocks.encode(elements, output_scale), scale_codes)
