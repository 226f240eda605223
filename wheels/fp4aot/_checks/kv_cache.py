"""Arguments of the KV cache operators."""

from __future__ import annotations

import torch

from fp4aot._checks import common, quantize

_KV_BLOCK = 16
# The KV kernel keeps a row's scales and the global scale in 48 KiB of shared memory.
_MOST_KV_SCALES = 48 * 1024 - 4
_E4M3_STORAGE = (torch.uint8, torch.float8_e4m3fn)
_KV_OUTPUTS = (torch.float16, torch.bfloat16)


def nvfp4_kv_quantize(input: torch.Tensor, global_scale: torch.Tensor) -> None:
    """Refuse what `nvfp4_kv_quantize` cannot quantize."""
    name = "nvfp4_kv_quantize"
    common.check_dtype(name, "input", input, (torch.float16, torch.bfloat16))
    common.check_rank(name, "input", input, (2,))
    quantize.check_blocks(name, "input", input)
    common.check_int32(name, "input", input.shape[1], "a number of columns of")
    common.check_scalar_scale(name, "global_scale", global_scale, "input", input)


def nvfp4_kv_quantize_out(
    input: torch.Tensor, fp4_output: torch.Tensor, block_scales: torch.Tensor
) -> None:
    """Refuse buffers that differ from what the functional form returns for a valid `input`."""
    name = "nvfp4_kv_quantize"
    for argument, buffer, shape in zip(
        ("fp4_output", "block_scales"),
        (fp4_output, block_scales),
        kv_quantized_shapes(input),
        strict=True,
    ):
        common.check_output(name, argument, buffer, shape, torch.uint8, "input", input)


def kv_quantized_shapes(input: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of values and block scales."""
    rows, columns = input.shape
    return (rows, columns // 2), (rows, columns // _KV_BLOCK)


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> None:
    """Refuse what `nvfp4_kv_dequantize` cannot dequantize."""
    name = "nvfp4_kv_dequantize"
    common.check_dtype(name, "fp4_data", fp4_data, (torch.uint8,))
    common.check_rank(name, "fp4_data", fp4_data, (2,))
    rows, columns = fp4_data.shape[0], fp4_data.shape[1] * 2
    if columns % _KV_BLOCK != 0:
        common.fail(
            name,
            "fp4_data",
            f"shape {common.shape_text(fp4_data)} ({columns} values a row)",
            f"a multiple of {_KV_BLOCK} values a row",
            "pad the rows",
        )
    common.check_dtype(name, "block_scales", block_scales, _E4M3_STORAGE)
    if tuple(block_scales.shape) != (rows, columns // _KV_BLOCK):
        common.fail(
            name,
            "block_scales",
            f"shape {common.shape_text(block_scales)}",
            f"[{rows}, {columns // _KV_BLOCK}]",
            "pass one linear scale for each 16 values",
        )
    common.check_same_device(name, "block_scales", block_scales, "fp4_data", fp4_data)
    common.check_scalar_scale(name, "global_scale", global_scale, "fp4_data", fp4_data)
    common.check_int32(name, "fp4_data", rows * columns, "a number of values of")
    if isinstance(columns, int) and columns // _KV_BLOCK > _MOST_KV_SCALES:
        common.fail(
            name,
            "fp4_data",
            f"{columns} values a row",
            f"at most {_MOST_KV_SCALES * _KV_BLOCK}",
            "split the rows: the block scales of one row must fit in shared memory",
        )
    _kv_output_dtype(name, output_dtype)


def nvfp4_kv_dequantize_out(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    name = "nvfp4_kv_dequantize"
    common.check_dtype(name, "out", out, _KV_OUTPUTS)
    nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, out.dtype)
    shape = (fp4_data.shape[0], fp4_data.shape[1] * 2)
    common.check_output(name, "out", out, shape, out.dtype, "fp4_data", fp4_data)


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
) -> None:
    """Refuse what `nvfp4_kv_dequantize_paged` cannot gather."""
    name = "nvfp4_kv_dequantize_paged"
    if kv_layout not in (0, 1):
        expected = "0 (NHD) or 1 (HND)"
        common.fail(name, "kv_layout", f"{kv_layout}", expected, "pass the layout of the cache")
    _paged_cache(
        ("paged_k_cache", paged_k_cache), ("k_block_scales", k_block_scales), paged_k_cache
    )
    _paged_cache(
        ("paged_v_cache", paged_v_cache), ("v_block_scales", v_block_scales), paged_k_cache
    )
    reference = ("paged_k_cache", paged_k_cache)
    common.check_dtype(name, "block_tables", block_tables, (torch.int32, torch.int64))
    common.check_rank(name, "block_tables", block_tables, (2,))
    common.check_same_device(name, "block_tables", block_tables, *reference)
    common.check_dtype(name, "seq_lens", seq_lens, (torch.int32,))
    common.check_rank(name, "seq_lens", seq_lens, (1,))
    common.check_same_device(name, "seq_lens", seq_lens, *reference)
    common.check_scalar_scale(name, "k_scale", k_scale, *reference)
    common.check_scalar_scale(name, "v_scale", v_scale, *reference)
    batch = block_tables.shape[0]
    page_size, heads = paged_k_cache.shape[1:3] if kv_layout == 0 else paged_k_cache.shape[2:0:-1]
    if seq_lens.shape[0] != batch:
        common.fail(
            name,
            "seq_lens",
            f"shape {common.shape_text(seq_lens)}",
            f"[{batch}], the batch of block_tables",
            "pass one length for each request",
        )
    if max_seq_len < 0:
        common.fail(
            name, "max_seq_len", f"{max_seq_len}", "0 or more", "pass the longest sequence length"
        )
    if block_tables.shape[1] * page_size < max_seq_len:
        common.fail(
            name,
            "block_tables",
            f"shape {common.shape_text(block_tables)} with pages of {page_size}",
            f"pages for {max_seq_len} tokens",
            "pass more pages a request, or a smaller max_seq_len",
        )
    common.check_int32(
        name, "max_seq_len", batch * max_seq_len * heads, "batch * max_seq_len * heads of"
    )
    _kv_output_dtype(name, output_dtype)


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
    output_k: torch.Tensor,
    output_v: torch.Tensor,
) -> None:
    """Check the arguments and the buffers of the `out` form."""
    name = "nvfp4_kv_dequantize_paged"
    common.check_dtype(name, "output_k", output_k, _KV_OUTPUTS)
    common.check_rank(name, "output_k", output_k, (4,))
    max_seq_len = output_k.shape[1]
    nvfp4_kv_dequantize_paged(
        paged_k_cache,
        paged_v_cache,
        k_block_scales,
        v_block_scales,
        block_tables,
        seq_lens,
        k_scale,
        v_scale,
        max_seq_len,
        output_k.dtype,
        kv_layout,
    )
    shapes = paged_output_shapes(paged_k_cache, paged_v_cache, block_tables, max_seq_len, kv_layout)
    for argument, output, shape in zip(
        ("output_k", "output_v"), (output_k, output_v), shapes, strict=True
    ):
        common.check_output(
            name, argument, output, shape, output_k.dtype, "paged_k_cache", paged_k_cache
        )


def paged_output_shapes(
    paged_k_cache: torch.Tensor,
    paged_v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    max_seq_len: int,
    kv_layout: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of K and V, `[batch, max_seq_len, heads, dim]`."""
    batch = block_tables.shape[0]
    heads = paged_k_cache.shape[2 if kv_layout == 0 else 1]
    k_dim, v_dim = paged_k_cache.shape[3] * 2, paged_v_cache.shape[3] * 2
    return (batch, max_seq_len, heads, k_dim), (batch, max_seq_len, heads, v_dim)


def _kv_output_dtype(operator: str, output_dtype: torch.dtype) -> None:
    if output_dtype not in _KV_OUTPUTS:
        expected = "torch.bfloat16 or torch.float16"
        common.fail(
            operator, "output_dtype", str(output_dtype), expected, "convert the result instead"
        )


def _paged_cache(
    cache: tuple[str, torch.Tensor],
    block_scales: tuple[str, torch.Tensor],
    reference: torch.Tensor,
) -> None:
    """Require one of the two caches with its scales, shaped as the K cache in all but `dim`."""
    name = "nvfp4_kv_dequantize_paged"
    argument, pages = cache
    scale_argument, scale_pages = block_scales
    common.check_dtype(name, argument, pages, (torch.uint8,))
    common.check_rank(name, argument, pages, (4,))
    common.check_dtype(name, scale_argument, scale_pages, _E4M3_STORAGE)
    common.check_rank(name, scale_argument, scale_pages, (4,))
    common.check_same_device(name, argument, pages, "paged_k_cache", reference)
    common.check_same_device(name, scale_argument, scale_pages, "paged_k_cache", reference)
    head_dim = pages.shape[3] * 2
    if head_dim == 0 or head_dim % _KV_BLOCK != 0:
        common.fail(
            name,
            argument,
            f"shape {common.shape_text(pages)} (head_dim {head_dim})",
            f"a head_dim that is a positive multiple of {_KV_BLOCK}",
            "pad the heads",
        )
    if pages.shape[:3] != reference.shape[:3]:
        common.fail(
            name,
            argument,
            f"shape {common.shape_text(pages)}",
            f"the pages, page size and heads of paged_k_cache {common.shape_text(reference)}",
            "pass caches of one layout",
        )
    if scale_pages.shape[:3] != pages.shape[:3]:
        common.fail(
            name,
            scale_argument,
            f"shape {common.shape_text(scale_pages)}",
            f"the first three sizes of {argument} {common.shape_text(pages)}",
            "pass one scale for each 16 values",
        )
    if scale_pages.shape[3] != head_dim // _KV_BLOCK:
        common.fail(
            name,
            scale_argument,
            f"shape {common.shape_text(scale_pages)}",
            f"{head_dim // _KV_BLOCK} scales a head",
            "pass one scale for each 16 values",
        )
    for tensor_name, tensor in (cache, block_scales):
        if tensor.stride(3) != 1 and tensor.shape[3] > 1:
            got = f"stride {tensor.stride(3)} in the last dimension"
            common.fail(name, tensor_name, got, "1", "make the last dimension contiguous")
