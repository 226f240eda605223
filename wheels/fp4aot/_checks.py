"""Argument validation, shared by the CPU kernels and the fakes.

The C++ kernels make the same checks in the same words (`csrc/checks.cpp` and the operators), so a
wrong call reads alike on the CPU, on a GPU and while tracing:

    fp4aot::<operator>: argument '<name>': got <what>, expected <what>; <what to do>

An error is a RuntimeError, the only kind that the C++ kernels can raise. Nothing here reads a
tensor's data. Sizes may be symbolic: a check that would only bound a size (the kernels' 32-bit
indices) is left to run time then, because a bound would become a condition on the exported program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from fp4aot import _layouts

_LARGEST_INT32 = 2**31 - 1
_KV_BLOCK = 16
# The KV kernel keeps a row's scales and the global scale in 48 KiB of shared memory.
_MOST_KV_SCALES = 48 * 1024 - 4
_E4M3_STORAGE = (torch.uint8, torch.float8_e4m3fn)
_KV_OUTPUTS = (torch.float16, torch.bfloat16)


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
    is_global_scale_inversed: bool,
) -> None:
    """Refuse what `fp4_quantize` cannot quantise."""
    name = "fp4_quantize"
    _dtype(name, "input", input, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    if input.dim() < 2:
        _fail(
            name,
            "input",
            f"shape {_shape(input)}",
            "two or more dimensions",
            "use input.unsqueeze(0) for a vector",
        )
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        _fail(
            name,
            "sf_vec_size",
            f"{sf_vec_size} with sf_use_ue8m0={sf_use_ue8m0}",
            "16 with sf_use_ue8m0=False (NVFP4) or 32 with sf_use_ue8m0=True (MXFP4)",
            "choose one of the two formats",
        )
    _layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    rows, columns = _layouts.flattened_rows(matrix.shape), matrix.shape[-1]
    if columns % sf_vec_size != 0:
        dimension = "contiguous second-to-last" if column_major else "last"
        _fail(
            name,
            "input",
            f"shape {_shape(input)}, where {columns} values are quantized along the {dimension} "
            "dimension",
            f"a multiple of {sf_vec_size}",
            "pad that dimension",
        )
    _int32(name, "input", rows, "a number of rows of")
    _int32(name, "input", columns, "a number of columns of")
    if global_scale is not None:
        _dtype(name, "global_scale", global_scale, (torch.float32,))
        count = global_scale.numel()
        if count not in (1, rows):
            _fail(
                name,
                "global_scale",
                f"shape {_shape(global_scale)}",
                f"1 element, or one per row: {rows}",
                "pass a tensor of shape [1], or of shape [rows]",
            )
        _same_device(name, "global_scale", global_scale, "input", input)
    elif not sf_use_ue8m0:
        _fail(
            name,
            "global_scale",
            "None",
            "a float32 tensor (NVFP4 needs one)",
            "pass 448 * 6 / input.abs().max() as a tensor of shape [1]",
        )
    elif is_global_scale_inversed:
        _fail(
            name,
            "is_global_scale_inversed",
            "True without a global_scale",
            "False",
            "pass the global_scale that is inverted",
        )


def fp4_quantize_out(
    input: torch.Tensor,
    sf_vec_size: int,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Refuse buffers that differ from what `fp4_quantize` returns for a valid `input`."""
    name = "fp4_quantize"
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    columns = matrix.shape[-1]
    value_shape = (*matrix.shape[:-1], columns // 2)
    scale_shape = _layouts.scale_shape(
        _layouts.flattened_rows(matrix.shape),
        columns // sf_vec_size,
        _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout),
    )
    for argument, buffer, shape in (
        ("values", values, value_shape),
        ("block_scales", block_scales, scale_shape),
    ):
        _output(name, argument, buffer, shape, torch.uint8, "input", input, column_major)


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> None:
    """Refuse what `block_scale_interleave` cannot reorder."""
    name = "block_scale_interleave"
    _dtype(name, "unswizzled_sf", unswizzled_sf, (torch.uint8, torch.bfloat16))
    _rank(name, "unswizzled_sf", unswizzled_sf, (2, 3))
    count = interleaved_numel(unswizzled_sf)
    _int32(name, "unswizzled_sf", count, "a padded number of scales of")


def block_scale_interleave_out(unswizzled_sf: torch.Tensor, out: torch.Tensor) -> None:
    """Check the argument and the buffer of the `out` form."""
    block_scale_interleave(unswizzled_sf)
    shape = (interleaved_numel(unswizzled_sf),)
    name = "block_scale_interleave"
    _output(name, "out", out, shape, unswizzled_sf.dtype, "unswizzled_sf", unswizzled_sf)


def interleaved_numel(unswizzled_sf: torch.Tensor) -> int:
    """Return the elements of the padded 128x4 buffer for `[rows, columns]` or a batch of them."""
    rows, columns = _layouts.scale_shape(
        unswizzled_sf.shape[-2], unswizzled_sf.shape[-1], _layouts.SfLayout.layout_128x4
    )
    experts = unswizzled_sf.shape[0] if unswizzled_sf.dim() == 3 else 1
    return experts * rows * columns


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> None:
    """Refuse what `block_scale_interleave_reverse` cannot reorder."""
    name = "block_scale_interleave_reverse"
    _dtype(name, "interleaved_sf", interleaved_sf, (torch.uint8,))
    _rank(name, "interleaved_sf", interleaved_sf, (2, 3))
    if interleaved_sf.shape[-2] % 128 != 0 or interleaved_sf.shape[-1] % 4 != 0:
        _fail(
            name,
            "interleaved_sf",
            f"shape {_shape(interleaved_sf)}",
            "rows divisible by 128 and columns divisible by 4",
            "pass the padded shape that block_scale_interleave produced",
        )
    _int32(name, "interleaved_sf", interleaved_sf.numel(), "a number of scales of")


def block_scale_interleave_reverse_out(interleaved_sf: torch.Tensor, out: torch.Tensor) -> None:
    """Check the argument and the buffer of the `out` form."""
    block_scale_interleave_reverse(interleaved_sf)
    name = "block_scale_interleave_reverse"
    shape = interleaved_sf.shape
    _output(name, "out", out, shape, torch.uint8, "interleaved_sf", interleaved_sf)


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None,
    sf_vec_size: int,
    ufp8_type: int,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
) -> None:
    """Refuse what `e2m1_and_ufp8sf_scale_to_float` cannot dequantise."""
    name = "e2m1_and_ufp8sf_scale_to_float"
    if ufp8_type not in (0, 1):
        _fail(name, "ufp8_type", f"{ufp8_type}", "0 (UE8M0) or 1 (E4M3)", "pass the scales' format")
    if sf_vec_size < 2 or sf_vec_size % 2 != 0:
        _fail(
            name,
            "sf_vec_size",
            f"{sf_vec_size}",
            "a positive even number",
            "NVFP4 uses 16 and MXFP4 uses 32",
        )
    _layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    _packed_with_scales(
        name,
        ("e2m1_tensor", e2m1_tensor),
        ("ufp8_scale_tensor", ufp8_scale_tensor),
        sf_vec_size,
        layout,
    )
    if global_scale_tensor is not None:
        _scalar(name, "global_scale_tensor", global_scale_tensor, "e2m1_tensor", e2m1_tensor)
    elif ufp8_type == 1:
        _fail(
            name,
            "global_scale_tensor",
            "None",
            "a float32 tensor (E4M3 scales need one)",
            "pass the reciprocal of the global scale that fp4_quantize was given",
        )


def mxfp4_dequantize(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int) -> None:
    """Refuse what `mxfp4_dequantize` cannot dequantise."""
    name = "mxfp4_dequantize"
    if sf_layout not in (0, 1, 2):
        _fail(
            name,
            "sf_layout",
            f"{sf_layout}",
            "0 (128x4), 1 (8x4) or 2 (linear)",
            "pass an SfLayout",
        )
    layout = _layouts.SfLayout(sf_layout)
    _packed_with_scales(name, ("a_fp4", a_fp4), ("a_sf", a_sf), 32, layout)


def dequantized_out(operator: str, packed: torch.Tensor, out: torch.Tensor) -> None:
    """Refuse a buffer that is not float32 `[M, K]` on the device of `packed` `[M, K / 2]`."""
    argument = "a_fp4" if operator == "mxfp4_dequantize" else "e2m1_tensor"
    shape = (packed.shape[0], packed.shape[1] * 2)
    _output(operator, "out", out, shape, torch.float32, argument, packed)


def mxfp4_dequantize_host(weight: torch.Tensor, scale: torch.Tensor, group_size: int) -> None:
    """Refuse what the host function cannot dequantise."""
    name = "mxfp4_dequantize_host"
    _dtype(name, "weight", weight, (torch.uint8,))
    _rank(name, "weight", weight, (2,))
    _dtype(name, "scale", scale, (torch.uint8,))
    _rank(name, "scale", scale, (2,))
    if weight.device.type not in ("cpu", "meta"):
        _fail(
            name,
            "weight",
            f"device {weight.device}",
            "cpu (this is a host function)",
            "use mxfp4_dequantize there",
        )
    _same_device(name, "scale", scale, "weight", weight)
    if group_size < 1:
        _fail(name, "group_size", f"{group_size}", "a positive number", "MXFP4 uses 32")
    rows, columns = weight.shape[0], weight.shape[1] * 2
    if scale.shape[0] != rows or scale.shape[1] * group_size != columns:
        _fail(
            name,
            "scale",
            f"shape {_shape(scale)}",
            f"[{rows}, {columns} / {group_size}] for weight of shape {_shape(weight)}",
            "pass linear scales, one for each group",
        )
    _int32(name, "weight", rows * columns, "a number of values of")


def mxfp4_dequantize_host_out(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int, out: torch.Tensor
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    mxfp4_dequantize_host(weight, scale, group_size)
    shape = (weight.shape[0], weight.shape[1] * 2)
    _output("mxfp4_dequantize_host", "out", out, shape, torch.float32, "weight", weight)


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> None:
    """Refuse what `nvfp4_kv_dequantize` cannot dequantise."""
    name = "nvfp4_kv_dequantize"
    _dtype(name, "fp4_data", fp4_data, (torch.uint8,))
    _rank(name, "fp4_data", fp4_data, (2,))
    rows, columns = fp4_data.shape[0], fp4_data.shape[1] * 2
    if columns % _KV_BLOCK != 0:
        _fail(
            name,
            "fp4_data",
            f"shape {_shape(fp4_data)} ({columns} values a row)",
            f"a multiple of {_KV_BLOCK} values a row",
            "pad the rows",
        )
    _dtype(name, "block_scales", block_scales, _E4M3_STORAGE)
    if tuple(block_scales.shape) != (rows, columns // _KV_BLOCK):
        _fail(
            name,
            "block_scales",
            f"shape {_shape(block_scales)}",
            f"[{rows}, {columns // _KV_BLOCK}]",
            "pass one linear scale for each 16 values",
        )
    _same_device(name, "block_scales", block_scales, "fp4_data", fp4_data)
    _scalar(name, "global_scale", global_scale, "fp4_data", fp4_data)
    _int32(name, "fp4_data", rows * columns, "a number of values of")
    if isinstance(columns, int) and columns // _KV_BLOCK > _MOST_KV_SCALES:
        _fail(
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
    _dtype(name, "out", out, _KV_OUTPUTS)
    nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, out.dtype)
    shape = (fp4_data.shape[0], fp4_data.shape[1] * 2)
    _output(name, "out", out, shape, out.dtype, "fp4_data", fp4_data)


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
        _fail(name, "kv_layout", f"{kv_layout}", expected, "pass the layout of the cache")
    _paged_cache(
        ("paged_k_cache", paged_k_cache), ("k_block_scales", k_block_scales), paged_k_cache
    )
    _paged_cache(
        ("paged_v_cache", paged_v_cache), ("v_block_scales", v_block_scales), paged_k_cache
    )
    reference = ("paged_k_cache", paged_k_cache)
    _dtype(name, "block_tables", block_tables, (torch.int32, torch.int64))
    _rank(name, "block_tables", block_tables, (2,))
    _same_device(name, "block_tables", block_tables, *reference)
    _dtype(name, "seq_lens", seq_lens, (torch.int32,))
    _rank(name, "seq_lens", seq_lens, (1,))
    _same_device(name, "seq_lens", seq_lens, *reference)
    _scalar(name, "k_scale", k_scale, *reference)
    _scalar(name, "v_scale", v_scale, *reference)
    batch = block_tables.shape[0]
    page_size, heads = paged_k_cache.shape[1:3] if kv_layout == 0 else paged_k_cache.shape[2:0:-1]
    if seq_lens.shape[0] != batch:
        _fail(
            name,
            "seq_lens",
            f"shape {_shape(seq_lens)}",
            f"[{batch}], the batch of block_tables",
            "pass one length for each request",
        )
    if max_seq_len < 0:
        _fail(
            name, "max_seq_len", f"{max_seq_len}", "0 or more", "pass the longest sequence length"
        )
    if block_tables.shape[1] * page_size < max_seq_len:
        _fail(
            name,
            "block_tables",
            f"shape {_shape(block_tables)} with pages of {page_size}",
            f"pages for {max_seq_len} tokens",
            "pass more pages a request, or a smaller max_seq_len",
        )
    _int32(name, "max_seq_len", batch * max_seq_len * heads, "batch * max_seq_len * heads of")
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
    _dtype(name, "output_k", output_k, _KV_OUTPUTS)
    _rank(name, "output_k", output_k, (4,))
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
        _output(name, argument, output, shape, output_k.dtype, "paged_k_cache", paged_k_cache)


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


def _fail(operator: str, argument: str, got: str, expected: str, what_to_do: str) -> NoReturn:
    raise RuntimeError(
        f"fp4aot::{operator}: argument '{argument}': got {got}, expected {expected}; {what_to_do}"
    )


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _dtype(
    operator: str, argument: str, tensor: torch.Tensor, accepted: Sequence[torch.dtype]
) -> None:
    if tensor.dtype not in accepted:
        expected = " or ".join(str(dtype) for dtype in accepted)
        _fail(operator, argument, f"dtype {tensor.dtype}", expected, "convert the tensor first")


def _rank(operator: str, argument: str, tensor: torch.Tensor, accepted: Sequence[int]) -> None:
    if tensor.dim() not in accepted:
        expected = " or ".join(str(rank) for rank in accepted) + " dimensions"
        _fail(operator, argument, f"shape {_shape(tensor)}", expected, "reshape the tensor first")


def _same_device(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    if tensor.device != reference.device:
        _fail(
            operator,
            argument,
            f"device {tensor.device}",
            f"{reference.device} (the device of '{reference_argument}')",
            "move the tensor there first",
        )


def _scalar(
    operator: str,
    argument: str,
    scale: torch.Tensor,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    _dtype(operator, argument, scale, (torch.float32,))
    if scale.numel() != 1:
        got = f"shape {_shape(scale)}"
        _fail(operator, argument, got, "one element", "pass a tensor of shape [1]")
    _same_device(operator, argument, scale, reference_argument, reference)


def _int32(operator: str, argument: str, value: int, what: str) -> None:
    if isinstance(value, int) and value > _LARGEST_INT32:
        _fail(
            operator,
            argument,
            f"{what} {value}",
            f"{what} below 2**31",
            "split the call: the kernel indexes with 32-bit integers",
        )


def _output(
    operator: str,
    argument: str,
    output: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    reference_argument: str,
    reference: torch.Tensor,
    transposed: bool = False,
) -> None:
    """Require the layout of the functional form; `shape` is its contiguous one, maybe transposed.

    Strides of dimensions of size 0 or 1 do not matter.
    """
    _dtype(operator, argument, output, (dtype,))
    _same_device(operator, argument, output, reference_argument, reference)
    sizes, strides = list(shape), list(_layouts.contiguous_strides(shape))
    if transposed:
        sizes[-2:] = reversed(sizes[-2:])
        strides[-2:] = reversed(strides[-2:])
    if not _has_layout(output, sizes, strides):
        _fail(
            operator,
            argument,
            f"shape {_shape(output)} with strides {list(output.stride())}",
            f"shape {sizes} with strides {strides}",
            "allocate it as the functional form returns it",
        )


def _has_layout(tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    if tensor.dim() != len(sizes):
        return False
    actual = zip(tensor.shape, tensor.stride(), sizes, strides, strict=True)
    return all(
        got_size == size and (size <= 1 or got_stride == stride)
        for got_size, got_stride, size, stride in actual
    )


def _layout_flags(operator: str, is_sf_swizzled_layout: bool, is_sf_8x4_layout: bool) -> None:
    if is_sf_8x4_layout and not is_sf_swizzled_layout:
        _fail(
            operator,
            "is_sf_8x4_layout",
            "True with is_sf_swizzled_layout=False",
            "False for the linear layout",
            "pass is_sf_swizzled_layout=True for the 8x4 layout",
        )


def _packed_with_scales(
    operator: str,
    packed: tuple[str, torch.Tensor],
    block_scales: tuple[str, torch.Tensor],
    sf_vec_size: int,
    layout: _layouts.SfLayout,
) -> None:
    """Require packed values `[M, K / 2]` and as many scale bytes as the layout holds for them."""
    packed_name, values = packed
    scale_name, scale_bytes = block_scales
    _dtype(operator, packed_name, values, (torch.uint8,))
    _rank(operator, packed_name, values, (2,))
    rows, columns = values.shape[0], values.shape[1] * 2
    if columns % sf_vec_size != 0:
        _fail(
            operator,
            packed_name,
            f"shape {_shape(values)} ({columns} values a row)",
            f"a multiple of {sf_vec_size} values a row",
            "pad the rows",
        )
    _dtype(operator, scale_name, scale_bytes, (torch.uint8,))
    _same_device(operator, scale_name, scale_bytes, packed_name, values)
    scale_rows, scale_columns = _layouts.scale_shape(rows, columns // sf_vec_size, layout)
    if scale_bytes.numel() != scale_rows * scale_columns:
        _fail(
            operator,
            scale_name,
            f"shape {_shape(scale_bytes)}",
            f"{scale_rows} x {scale_columns} scales in {layout.name}",
            "pass the scales and the layout that the quantizer gave",
        )


def _kv_output_dtype(operator: str, output_dtype: torch.dtype) -> None:
    if output_dtype not in _KV_OUTPUTS:
        expected = "torch.bfloat16 or torch.float16"
        _fail(operator, "output_dtype", str(output_dtype), expected, "convert the result instead")


def _paged_cache(
    cache: tuple[str, torch.Tensor],
    block_scales: tuple[str, torch.Tensor],
    reference: torch.Tensor,
) -> None:
    """Require one of the two caches with its scales, shaped as the K cache in all but `dim`."""
    name = "nvfp4_kv_dequantize_paged"
    argument, pages = cache
    scale_argument, scale_pages = block_scales
    _dtype(name, argument, pages, (torch.uint8,))
    _rank(name, argument, pages, (4,))
    _dtype(name, scale_argument, scale_pages, _E4M3_STORAGE)
    _rank(name, scale_argument, scale_pages, (4,))
    _same_device(name, argument, pages, "paged_k_cache", reference)
    _same_device(name, scale_argument, scale_pages, "paged_k_cache", reference)
    head_dim = pages.shape[3] * 2
    if head_dim == 0 or head_dim % _KV_BLOCK != 0:
        _fail(
            name,
            argument,
            f"shape {_shape(pages)} (head_dim {head_dim})",
            f"a head_dim that is a positive multiple of {_KV_BLOCK}",
            "pad the heads",
        )
    if pages.shape[:3] != reference.shape[:3]:
        _fail(
            name,
            argument,
            f"shape {_shape(pages)}",
            f"the pages, page size and heads of paged_k_cache {_shape(reference)}",
            "pass caches of one layout",
        )
    if scale_pages.shape[:3] != pages.shape[:3]:
        _fail(
            name,
            scale_argument,
            f"shape {_shape(scale_pages)}",
            f"the first three sizes of {argument} {_shape(pages)}",
            "pass one scale for each 16 values",
        )
    if scale_pages.shape[3] != head_dim // _KV_BLOCK:
        _fail(
            name,
            scale_argument,
            f"shape {_shape(scale_pages)}",
            f"{head_dim // _KV_BLOCK} scales a head",
            "pass one scale for each 16 values",
        )
    for tensor_name, tensor in (cache, block_scales):
        if tensor.stride(3) != 1 and tensor.shape[3] > 1:
            got = f"stride {tensor.stride(3)} in the last dimension"
            _fail(name, tensor_name, got, "1", "make the last dimension contiguous")
