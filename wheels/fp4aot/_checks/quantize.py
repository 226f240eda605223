"""Arguments of `fp4_quantize`, and what it shares with the other quantizing operators."""

from __future__ import annotations

import torch

from fp4aot import _layouts, _recipes
from fp4aot._checks import common


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None,
    sf_vec_size: int,
    sf_use_ue8m0: bool,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
    is_global_scale_inversed: bool,
    nvfp4_4over6: int,
) -> None:
    """Refuse what `fp4_quantize` cannot quantize."""
    name = "fp4_quantize"
    common.check_dtype(name, "input", input, (torch.float16, torch.bfloat16, torch.float8_e4m3fn))
    if input.dim() < 2:
        common.fail(
            name,
            "input",
            f"shape {common.shape_text(input)}",
            "two or more dimensions",
            "use input.unsqueeze(0) for a vector",
        )
    if (sf_vec_size, sf_use_ue8m0) not in ((16, False), (32, True)):
        common.fail(
            name,
            "sf_vec_size",
            f"{sf_vec_size} with sf_use_ue8m0={sf_use_ue8m0}",
            "16 with sf_use_ue8m0=False (NVFP4) or 32 with sf_use_ue8m0=True (MXFP4)",
            "choose one of the two formats",
        )
    common.check_layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    check_recipe(name, nvfp4_4over6, "input", input)
    if nvfp4_4over6 != _recipes.STANDARD and sf_use_ue8m0:
        common.fail(
            name,
            "nvfp4_4over6",
            f"{nvfp4_4over6} with sf_use_ue8m0=True",
            "0 (MXFP4 has no other recipe)",
            "pass the standard recipe",
        )
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    rows, columns = _layouts.flattened_rows(matrix.shape), matrix.shape[-1]
    if columns % sf_vec_size != 0:
        dimension = "contiguous second-to-last" if column_major else "last"
        common.fail(
            name,
            "input",
            f"shape {common.shape_text(input)}, where {columns} values are quantized along the "
            f"{dimension} dimension",
            f"a multiple of {sf_vec_size}",
            "pad that dimension",
        )
    common.check_int32(name, "input", rows, "a number of rows of")
    common.check_int32(name, "input", columns, "a number of columns of")
    if global_scale is not None:
        common.check_dtype(name, "global_scale", global_scale, (torch.float32,))
        count = global_scale.numel()
        if count not in (1, rows):
            common.fail(
                name,
                "global_scale",
                f"shape {common.shape_text(global_scale)}",
                f"1 element, or one per row: {rows}",
                "pass a tensor of shape [1], or of shape [rows]",
            )
        common.check_same_device(name, "global_scale", global_scale, "input", input)
    elif not sf_use_ue8m0:
        common.fail(
            name,
            "global_scale",
            "None",
            "a float32 tensor (NVFP4 needs one)",
            "pass 448 * 6 / input.abs().max() as a tensor of shape [1]",
        )
    elif is_global_scale_inversed:
        common.fail(
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
        common.check_output(
            name, argument, buffer, shape, torch.uint8, "input", input, column_major
        )


def check_recipe(operator: str, code: int, argument: str, tensor: torch.Tensor) -> None:
    """Refuse what is not the code of a recipe, and 4-over-6 for a tensor of float8."""
    if not _recipes.is_recipe_code(code):
        common.fail(
            operator,
            "nvfp4_4over6",
            f"{code}",
            "0 (the standard recipe) or the code of a 4-over-6 recipe",
            "pass what fp4aot.nvfp4_4over6_code returns",
        )
    if code != _recipes.STANDARD and tensor.dtype == torch.float8_e4m3fn:
        common.fail(
            operator,
            "nvfp4_4over6",
            f"{code} with '{argument}' of {tensor.dtype}",
            "0 (float8 values have no other recipe)",
            "pass the standard recipe, or float16 or bfloat16 values",
        )


def check_blocks(operator: str, argument: str, tensor: torch.Tensor, multiple: int = 16) -> None:
    """Refuse rows that do not divide into blocks."""
    columns = tensor.shape[-1]
    if columns % multiple != 0:
        common.fail(
            operator,
            argument,
            f"shape {common.shape_text(tensor)} ({columns} values a row)",
            f"a multiple of {multiple} values a row",
            "pad the rows",
        )
