"""Quantization to FP4 and back, with FlashInfer's names and argument order.

Functions here are one operator call, or a few that say so: nothing is compiled, no file and no
environment variable is read, no device is synchronised, and `torch.compile(fullgraph=True)` traces
them without a warm-up call.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from fp4aot import _per_token
from fp4aot._layouts import SfLayout, is_column_major, scale_shape
from fp4aot._recipes import NVFP44Over6Config, recipe_code
from fp4aot.shuffle import shuffle_matrix_a, shuffle_matrix_sf_a

__all__ = [
    "SfLayout",
    "block_scale_interleave",
    "block_scale_interleave_reverse",
    "e2m1_and_ufp8sf_scale_to_float",
    "fp4_quantize",
    "mxfp4_dequantize",
    "mxfp4_dequantize_host",
    "mxfp4_quantize",
    "nvfp4_block_scale_interleave",
    "nvfp4_quantize",
]

# Looked up once: `torch.ops.fp4aot.fp4_quantize.default` takes half a microsecond. Arguments that
# have the operator's own defaults are not passed, where that can be seen in less time than torch
# takes to convert them (a microsecond for all).
_FP4_QUANTIZE = torch.ops.fp4aot.fp4_quantize.default


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    backend: str = "cuda",
    nvfp4_4over6: NVFP44Over6Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a tensor to FP4 (E2M1) with one scale factor per block of 16 or 32 values.

    Parameters
    ----------
    input
        `[..., M, K]` of dtype float16, bfloat16 or float8_e4m3fn. Blocks run along K, which must be
        divisible by `sf_vec_size`; the leading dimensions together count as rows. A column-major
        input (the transpose of a contiguous tensor) is quantized along its other dimension, the one
        with stride 1, and both results come back transposed. Any other non-contiguous input is
        copied first.
    global_scale
        float32 on the input's device, with one element, or one for each row. It multiplies the
        block scales; `448 * 6 / input.abs().max()` uses the whole range. Needed for NVFP4. MXFP4
        from float16 or bfloat16 ignores it, MXFP4 from float8 applies it.
    sf_vec_size, sf_use_ue8m0
        `16, False` for NVFP4 (E4M3 block scales) or `32, True` for MXFP4 (UE8M0 block scales).
    is_sf_swizzled_layout, is_sf_8x4_layout
        Layout of the block scales: 128x4 by default, 8x4, or linear for
        `is_sf_swizzled_layout=False`.
    is_global_scale_inversed
        Whether `global_scale` holds reciprocals.
    enable_pdl
        Programmatic dependent launch: on unless False. Ignored on the CPU.
    backend
        Only "cuda". The argument is FlashInfer's.
    nvfp4_4over6
        None for the standard recipe, or an `NVFP44Over6Config` (FlashInfer's own will do) for the
        4-over-6 recipe: each block is quantized with its largest magnitude at 6 and at 4, and the
        result with the smaller error is kept. It needs NVFP4 and float16 or bfloat16 input. Unlike
        FlashInfer, no environment variable changes the recipe.

    Returns
    -------
    values : torch.Tensor
        uint8 `[..., M, K / 2]`; element 2i is in the low four bits.
    block_scales : torch.Tensor
        uint8, two-dimensional: `[round_up(M, 128), round_up(K / sf_vec_size, 4)]` for 128x4,
        rows rounded up to 8 for 8x4, `[M, K / sf_vec_size]` for linear, with M counting all rows.
        In the swizzled layouts its memory is in the layout's order, and padding is zero.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    ValueError
        `backend` asks for what this package does not contain.
    TypeError
        `nvfp4_4over6` is not a recipe.

    Notes
    -----
    A block with largest magnitude a, under global scale g, has the scale s = g * a / 6, rounded to
    E4M3 (NVFP4) or up to a power of two (MXFP4, g = 1); its values are x * g / s, rounded to E2M1.
    So x is about value * s / g. The arithmetic is that of FlashInfer's `cvt_warp_fp16_to_fp4` and
    `cvt_warp_fp8_to_fp4` (`quantization_utils.cuh`). NaN becomes +6 and does not enter a, unless
    all of a block's elements in odd places are NaN: then a is NaN, and so is the block scale (0x7F,
    or 0xFF for UE8M0). For float8 input, only a block of nothing but NaN has that scale. On the
    CPU a reciprocal is correctly rounded, which a GPU's is not, so a few codes may differ where a
    scaled value lies on a tie.
    """
    if backend != "cuda":
        _refuse_backend("fp4_quantize", backend)
    quantized: tuple[torch.Tensor, torch.Tensor]
    if (
        sf_vec_size == 16
        and is_sf_swizzled_layout
        and not (sf_use_ue8m0 or is_sf_8x4_layout or is_global_scale_inversed)
        and enable_pdl is None
        and nvfp4_4over6 is None
    ):
        quantized = _FP4_QUANTIZE(input, global_scale)
    else:
        quantized = _FP4_QUANTIZE(
            input,
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
            is_global_scale_inversed,
            enable_pdl,
            recipe_code("fp4_quantize", "nvfp4_4over6", nvfp4_4over6),
        )
    return quantized


def nvfp4_quantize(
    a: torch.Tensor,
    a_global_sf: torch.Tensor | float,
    sfLayout: SfLayout = SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
    do_shuffle: bool = False,
    sf_vec_size: int = 16,
    enable_pdl: bool | None = None,
    backend: str = "cuda",
    per_token_activation: bool = False,
    expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
    nvfp4_4over6: NVFP44Over6Config | None = None,
) -> tuple[torch.Tensor, ...]:
    """Quantize to NVFP4: blocks of 16, E4M3 scales. `fp4_quantize` has the details.

    Parameters
    ----------
    a
        `[..., M, K]` of dtype float16, bfloat16 or float8_e4m3fn. Unlike FlashInfer, tensors stay
        on their device. With `per_token_activation`, `[M, K]` of float16 or bfloat16, and a
        non-contiguous tensor is copied first.
    a_global_sf
        float32, one element or one for each row. With `per_token_activation`, the inverse base
        scale, typically `1 / (448 * 6)`: a number, or a float32 tensor with one element, which is
        not read on the host.
    sfLayout
        Layout of the block scales.
    do_shuffle
        Whether to reorder the rows of the results for a TensorRT-LLM GEMM whose weight `a` is, by
        `shuffle_matrix_a` and `shuffle_matrix_sf_a` with a tile of 128. Needs the layout 128x4 and
        a row-major matrix with M divisible by 128.
    sf_vec_size
        Only 16.
    enable_pdl
        Programmatic dependent launch: on unless False. FlashInfer launches its per-token kernel
        without it, whatever is passed.
    backend
        Only "cuda".
    per_token_activation
        Whether each row gets a scale of its own from its largest magnitude.
    expanded_idx_to_permuted_idx
        int32, one-dimensional, with M elements or more; for `per_token_activation` with a number.
        The first M are the rows to quantize: row r of `a` goes to row r of the results, a negative
        number stands for none, and the rows that are not named are zero. A number of M or more is
        an error on the CPU and undefined on a GPU.
    out_scale
        Only None; FlashInfer has it for its CuTe-DSL backend.
    nvfp4_4over6
        The recipe, as in `fp4_quantize`. With `per_token_activation`, `a_global_sf` must be the
        number `1 / (e4m3_max * 6)`.

    Returns
    -------
    values : torch.Tensor
        uint8 `[..., M, K / 2]`.
    block_scales : torch.Tensor
        uint8, shaped by the layout as in `fp4_quantize`.
    per_token_scale : torch.Tensor
        Only with `per_token_activation`: float32 `[M]`, the row's largest magnitude times
        `a_global_sf`. A value times its block scale times this is about the element; a row of zeros
        has the scale zero.

    Raises
    ------
    RuntimeError
        A tensor is not as described.
    ValueError
        Arguments do not fit together, or ask for what this package does not contain.
    TypeError
        `nvfp4_4over6` is not a recipe.

    Notes
    -----
    With `per_token_activation` and a tensor, the rows' scales are made by a few torch operations,
    and the rest is `fp4_quantize`; the results are the same.
    """
    name = "nvfp4_quantize"
    if backend != "cuda":
        _refuse_backend(name, backend)
    recipe = recipe_code(name, "nvfp4_4over6", nvfp4_4over6)
    if out_scale is not None:
        raise ValueError(
            f"fp4aot.{name}: out_scale goes with FlashInfer's CuTe-DSL backend, which is not in "
            "this package; pass None, and multiply the scales that are returned"
        )
    layout = sfLayout
    if do_shuffle:
        _require_shuffleable(name, a, sfLayout)
        layout = SfLayout.layout_linear
    if per_token_activation:
        if sf_vec_size != 16:
            raise ValueError(
                f"fp4aot.{name}: sf_vec_size={sf_vec_size} with per_token_activation=True; pass 16"
            )
        quantized: tuple[torch.Tensor, ...] = _quantize_per_token(
            name, a, a_global_sf, layout, enable_pdl, expanded_idx_to_permuted_idx, nvfp4_4over6
        )
    elif expanded_idx_to_permuted_idx is not None:
        raise ValueError(
            f"fp4aot.{name}: expanded_idx_to_permuted_idx goes with per_token_activation=True; "
            "pass None"
        )
    elif (
        layout == SfLayout.layout_128x4 and sf_vec_size == 16 and not recipe and enable_pdl is None
    ):
        quantized = _FP4_QUANTIZE(a, a_global_sf)
    else:
        quantized = _FP4_QUANTIZE(
            a,
            a_global_sf,
            sf_vec_size,
            False,
            layout != SfLayout.layout_linear,
            layout == SfLayout.layout_8x4,
            False,
            enable_pdl,
            recipe,
        )
    return _shuffled(*quantized) if do_shuffle else quantized


def mxfp4_quantize(
    a: torch.Tensor,
    backend: str = "cuda",
    enable_pdl: bool | None = None,
    sfLayout: SfLayout = SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to MXFP4: blocks of 32, UE8M0 scales. `fp4_quantize` has the details.

    Parameters
    ----------
    a
        `[..., M, K]` of dtype float16, bfloat16 or float8_e4m3fn, K divisible by 32. Unlike
        FlashInfer, the tensor stays on its device.
    backend
        Only "cuda".
    enable_pdl
        Programmatic dependent launch: on unless False.
    sfLayout
        Layout of the block scales.

    Returns
    -------
    values : torch.Tensor
        uint8 `[..., M, K / 2]`.
    block_scales : torch.Tensor
        uint8, shaped by the layout as in `fp4_quantize`.

    Raises
    ------
    RuntimeError
        The tensor is not as described.
    ValueError
        `backend` is not "cuda".
    """
    if backend != "cuda":
        _refuse_backend("mxfp4_quantize", backend)
    return fp4_quantize(
        a,
        None,
        32,
        True,
        sfLayout != SfLayout.layout_linear,
        sfLayout == SfLayout.layout_8x4,
        enable_pdl=enable_pdl,
    )


def block_scale_interleave(unswizzled_sf: torch.Tensor) -> torch.Tensor:
    """Pad row-major block scales and put them in the 128x4 swizzled layout.

    Parameters
    ----------
    unswizzled_sf
        uint8 or bfloat16, `[rows, columns]` or `[experts, rows, columns]`. A non-contiguous tensor
        is copied first.

    Returns
    -------
    torch.Tensor
        Same dtype, one-dimensional, `experts * round_up(rows, 128) * round_up(columns, 4)`
        elements; padding is zero.

    Raises
    ------
    RuntimeError
        The tensor is not as described.

    Notes
    -----
    Within a tile of 128 rows and 4 columns, (row, column) is at
    `row % 32 * 16 + row // 32 * 4 + column`; tiles follow each other along the row. From
    `get_sf_out_offset_128x4` in FlashInfer's `quantization_utils.cuh`.
    """
    interleaved: torch.Tensor = torch.ops.fp4aot.block_scale_interleave.default(unswizzled_sf)
    return interleaved


# FlashInfer keeps its older name, and callers use it.
nvfp4_block_scale_interleave = block_scale_interleave


def block_scale_interleave_reverse(interleaved_sf: torch.Tensor) -> torch.Tensor:
    """Bring block scales from the 128x4 swizzled layout back to row-major order.

    Parameters
    ----------
    interleaved_sf
        uint8, `[rows, columns]` or `[experts, rows, columns]` with the padded sizes: rows divisible
        by 128, columns by 4. Reshape the flat buffer of `block_scale_interleave` first.

    Returns
    -------
    torch.Tensor
        uint8 of the same shape, padding included.

    Raises
    ------
    RuntimeError
        The tensor is not as described.
    """
    linear: torch.Tensor = torch.ops.fp4aot.block_scale_interleave_reverse.default(interleaved_sf)
    return linear


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
) -> torch.Tensor:
    """Dequantize packed FP4 values to float32.

    Parameters
    ----------
    e2m1_tensor
        uint8 `[M, K / 2]`, as `fp4_quantize` returns it.
    ufp8_scale_tensor
        uint8 block scales of any shape, with as many elements as the layout holds.
    global_scale_tensor
        float32, one element. It multiplies: to undo `fp4_quantize`, pass the reciprocal of its
        global scale. Needed for E4M3, ignored for UE8M0.
    sf_vec_size
        Values that share a scale.
    ufp8_type
        0 for UE8M0, 1 for E4M3.
    is_sf_swizzled_layout, is_sf_8x4_layout
        Layout of the block scales, as in `fp4_quantize`.

    Returns
    -------
    torch.Tensor
        float32 `[M, K]`, on the device of the arguments. FlashInfer copies everything to the CPU
        and returns a CPU tensor.

    Raises
    ------
    RuntimeError
        An argument is not as described.

    Notes
    -----
    value * (scale * global scale), each product rounded to float32; from
    `E2M1AndUFP8SFScaleToFloatV2` in FlashInfer's `fp4Op.cpp`. UE8M0 code 0 reads as 0.0 and 255 as
    infinity, as there.
    """
    result: torch.Tensor = torch.ops.fp4aot.e2m1_and_ufp8sf_scale_to_float.default(
        e2m1_tensor,
        ufp8_scale_tensor,
        global_scale_tensor,
        sf_vec_size,
        ufp8_type,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
    )
    return result


def mxfp4_dequantize(
    a_fp4: torch.Tensor,
    a_sf: torch.Tensor,
    sfLayout: SfLayout = SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
) -> torch.Tensor:
    """Dequantize MXFP4 (blocks of 32, UE8M0 scales) to float32.

    Parameters
    ----------
    a_fp4
        uint8 `[M, K / 2]`, as `mxfp4_quantize` returns it.
    a_sf
        uint8 block scales of any shape, with as many elements as the layout holds.
    sfLayout
        Layout of the block scales.

    Returns
    -------
    torch.Tensor
        float32 `[M, K]`, on the device of the arguments (FlashInfer returns a CPU tensor). Scale
        code 0 reads as 0.0 and 255 as infinity.

    Raises
    ------
    RuntimeError
        An argument is not as described.
    """
    result: torch.Tensor = torch.ops.fp4aot.mxfp4_dequantize.default(a_fp4, a_sf, int(sfLayout))
    return result


def mxfp4_dequantize_host(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32
) -> torch.Tensor:
    """Dequantize MXFP4 weights on the CPU, with FlashInfer's own host code.

    Parameters
    ----------
    weight
        uint8 `[M, K / 2]` on the CPU.
    scale
        uint8 UE8M0 scales `[M, K / group_size]` on the CPU, in the linear layout.
    group_size
        Values that share a scale.

    Returns
    -------
    torch.Tensor
        float32 `[M, K]` on the CPU. Scale code 0 reads as 2^-127 and 255 as NaN, as in CUDA's
        `__nv_fp8_e8m0`; `mxfp4_dequantize` differs there.

    Raises
    ------
    RuntimeError
        An argument is not as described.
    """
    result: torch.Tensor = torch.ops.fp4aot.mxfp4_dequantize_host.default(weight, scale, group_size)
    return result


def _refuse_backend(function: str, backend: str) -> NoReturn:
    raise ValueError(
        f"fp4aot.{function}: backend={backend!r} is not in this package; pass backend='cuda', "
        f"or call flashinfer.{function}"
    )


def _quantize_per_token(
    function: str,
    a: torch.Tensor,
    a_global_sf: torch.Tensor | float,
    layout: SfLayout,
    enable_pdl: bool | None,
    expanded_idx_to_permuted_idx: torch.Tensor | None,
    nvfp4_4over6: NVFP44Over6Config | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not isinstance(a_global_sf, torch.Tensor):
        if nvfp4_4over6 is not None:
            _per_token.require_scale_of_recipe(function, a_global_sf, nvfp4_4over6)
        recipe = recipe_code(function, "nvfp4_4over6", nvfp4_4over6)
        return _per_token.with_number(a, a_global_sf, expanded_idx_to_permuted_idx, layout, recipe)
    for argument, value in (
        ("expanded_idx_to_permuted_idx", expanded_idx_to_permuted_idx),
        ("nvfp4_4over6", nvfp4_4over6),
    ):
        if value is not None:
            raise ValueError(
                f"fp4aot.{function}: {argument} with a tensor for a_global_sf; pass a_global_sf as "
                "a number, which the kernel needs on the host, as 1 / (448 * 6)"
            )
    return _per_token.with_tensor(a, a_global_sf, layout, enable_pdl)


_SHUFFLE_TILE = 128


def _require_shuffleable(function: str, a: torch.Tensor, layout: SfLayout) -> None:
    if layout != SfLayout.layout_128x4:
        raise ValueError(
            f"fp4aot.{function}: do_shuffle=True with sfLayout={layout!r}; pass "
            "SfLayout.layout_128x4, the layout of shuffled scales"
        )
    if a.dim() != 2 or a.shape[0] % _SHUFFLE_TILE != 0:
        raise ValueError(
            f"fp4aot.{function}: do_shuffle=True with a of shape {list(a.shape)}; pass a matrix "
            f"with rows divisible by {_SHUFFLE_TILE}, or pad its rows"
        )
    if is_column_major(a):
        raise ValueError(
            f"fp4aot.{function}: do_shuffle=True with a column-major a; pass a.contiguous()"
        )


def _shuffled(
    values: torch.Tensor, block_scales: torch.Tensor, *per_token_scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Reorder the rows of results that have linear block scales."""
    rows = values.shape[0]
    shuffled_scales = shuffle_matrix_sf_a(block_scales, _SHUFFLE_TILE)
    return (
        shuffle_matrix_a(values, _SHUFFLE_TILE),
        shuffled_scales.view(*scale_shape(rows, block_scales.shape[1], SfLayout.layout_128x4)),
        *(shuffle_matrix_a(s.unsqueeze(1), _SHUFFLE_TILE).squeeze(1) for s in per_token_scale),
    )
