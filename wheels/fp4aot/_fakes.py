"""Fake implementations: what each operator returns, without computing it.

torch runs these while it traces. Shapes, dtypes, strides and devices are those of the real kernels,
as a function of the arguments' shapes, dtypes and flags alone; the arguments are validated by the
kernels' own checks. Derived from the kernels: FlashInfer's fakes disagree with its operators.

Functions carry their operator's name; `<name>_out` is the overload that writes to buffers.
"""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed values and block scales, transposed for a column-major input."""
    _checks.fp4_quantize(
        input,
        global_scale,
        sf_vec_size,
        sf_use_ue8m0,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
        is_global_scale_inversed,
    )
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    columns = matrix.shape[-1]
    values = _bytes((*matrix.shape[:-1], columns // 2), input)
    scale_shape = _layouts.scale_shape(
        _layouts.flattened_rows(matrix.shape),
        columns // sf_vec_size,
        _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout),
    )
    block_scales = _bytes(scale_shape, input)
    if column_major:
        return values.transpose(-2, -1), block_scales.transpose(-2, -1)
    return values, block_scales


def fp4_quantize_out(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    *,
    values: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.fp4_quantize(
        input,
        global_scale,
        sf_vec_size,
        sf_use_ue8m0,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
        is_global_scale_inversed,
    )
    _checks.fp4_quantize_out(
        input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, values, block_scales
    )


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    """Return the flat padded buffer."""
    _checks.block_scale_interleave(unswizzled_sf)
    return unswizzled_sf.new_empty((_checks.interleaved_numel(unswizzled_sf),))


def block_scale_interleave_out(unswizzled_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Validate only."""
    _checks.block_scale_interleave_out(unswizzled_sf, out)


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same shape."""
    _checks.block_scale_interleave_reverse(interleaved_sf)
    return interleaved_sf.new_empty(interleaved_sf.shape)


def block_scale_interleave_reverse_out(interleaved_sf: torch.Tensor, *, out: torch.Tensor) -> None:
    """Validate only."""
    _checks.block_scale_interleave_reverse_out(interleaved_sf, out)


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
) -> torch.Tensor:
    """Return float32 `[M, K]` on the device of the values."""
    _checks.e2m1_and_ufp8sf_scale_to_float(
        e2m1_tensor,
        ufp8_scale_tensor,
        global_scale_tensor,
        sf_vec_size,
        ufp8_type,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
    )
    return _dequantized(e2m1_tensor, torch.float32)


def e2m1_and_ufp8sf_scale_to_float_out(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    *,
    out: torch.Tensor,
) -> None:
    """Validate only."""
    _checks.e2m1_and_ufp8sf_scale_to_float(
        e2m1_tensor,
        ufp8_scale_tensor,
        global_scale_tensor,
        sf_vec_size,
        ufp8_type,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
    )
    _checks.dequantized_out("e2m1_and_ufp8sf_scale_to_float", e2m1_tensor, out)


def mxfp4_dequantize(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int = 0) -> torch.Tensor:
    """Return float32 `[M, K]` on the device of the values."""
    _checks.mxfp4_dequantize(a_fp4, a_sf, sf_layout)
    return _dequantized(a_fp4, torch.float32)


def mxfp4_dequantize_out(
    a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int = 0, *, out: torch.Tensor
) -> None:
    """Validate only."""
    _checks.mxfp4_dequantize(a_fp4, a_sf, sf_layout)
    _checks.dequantized_out("mxfp4_dequantize", a_fp4, out)


def mxfp4_dequantize_host(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32
) -> torch.Tensor:
    """Return float32 `[M, K]` on the CPU."""
    _checks.mxfp4_dequantize_host(weight, scale, group_size)
    return _dequantized(weight, torch.float32)


def mxfp4_dequantize_host_out(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32, *, out: torch.Tensor
) -> None:
    """Validate only."""
    _checks.mxfp4_dequantize_host_out(weight, scale, group_size, out)


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Return `[M, K]` of the output dtype."""
    _checks.nvfp4_kv_dequantize(fp4_data, block_scales, global_scale, output_dtype)
    return _dequantized(fp4_data, output_dtype)


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


def _bytes(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(shape, dtype=torch.uint8)


def _dequantized(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((packed.shape[0], packed.shape[1] * 2), dtype=dtype)
