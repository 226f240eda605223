"""Arguments of `nvfp4_quantize_per_token`."""

from __future__ import annotations

import torch

from fp4aot import _layouts
from fp4aot._checks import common, quantize

_BLOCK = 16


def nvfp4_quantize_per_token(
    input: torch.Tensor,
    expanded_idx_to_permuted_idx: torch.Tensor | None,
    sf_layout: int,
    nvfp4_4over6: int,
) -> None:
    """Refuse what `nvfp4_quantize_per_token` cannot quantize."""
    name = "nvfp4_quantize_per_token"
    common.check_dtype(name, "input", input, (torch.float16, torch.bfloat16))
    common.check_rank(name, "input", input, (2,))
    if sf_layout not in (0, 1, 2):
        common.fail(
            name,
            "sf_layout",
            f"{sf_layout}",
            "0 (128x4), 1 (8x4) or 2 (linear)",
            "pass an SfLayout",
        )
    quantize.check_recipe(name, nvfp4_4over6, "input", input)
    quantize.check_blocks(name, "input", input)
    rows, columns = input.shape
    common.check_int32(name, "input", rows, "a number of rows of")
    common.check_int32(name, "input", columns, "a number of columns of")
    common.check_int32(name, "input", rows * (columns // _BLOCK), "a number of blocks of")
    if expanded_idx_to_permuted_idx is not None:
        argument = "expanded_idx_to_permuted_idx"
        common.check_dtype(name, argument, expanded_idx_to_permuted_idx, (torch.int32,))
        common.check_rank(name, argument, expanded_idx_to_permuted_idx, (1,))
        if expanded_idx_to_permuted_idx.shape[0] < rows:
            common.fail(
                name,
                argument,
                f"shape {common.shape_text(expanded_idx_to_permuted_idx)}",
                f"{rows} elements or more, the rows of 'input'",
                "pass one row number, or a negative one, for each row",
            )
        common.check_same_device(name, argument, expanded_idx_to_permuted_idx, "input", input)


def nvfp4_quantize_per_token_out(
    input: torch.Tensor,
    sf_layout: int,
    values: torch.Tensor,
    block_scales: torch.Tensor,
    per_token_scale: torch.Tensor,
) -> None:
    """Refuse buffers that differ from what the functional form returns for a valid `input`."""
    for argument, buffer, shape, dtype in zip(
        ("values", "block_scales", "per_token_scale"),
        (values, block_scales, per_token_scale),
        per_token_shapes(input, sf_layout),
        (torch.uint8, torch.uint8, torch.float32),
        strict=True,
    ):
        common.check_output(
            "nvfp4_quantize_per_token", argument, buffer, shape, dtype, "input", input
        )


def per_token_shapes(input: torch.Tensor, sf_layout: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of values, block scales and per-token scales."""
    rows, columns = input.shape
    scale_shape = _layouts.scale_shape(rows, columns // _BLOCK, _layouts.SfLayout(sf_layout))
    return (rows, columns // 2), scale_shape, (rows,)
