"""NVFP4 quantization with a scale of its own for each row: `nvfp4_quantize_per_token`.

The arithmetic is that of `nvfp4QuantAndPerTokenScaleKernel` in FlashInfer 0.7.2's
`quantization.cuh`. As there, the index does not move rows: it says which rows of the input go to
the same rows of the results.
"""

from __future__ import annotations

import torch

from fp4aot import _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, nvfp4, scales
from fp4aot.operators.structured import Layout, operator

_INDEX = "expanded_idx_to_permuted_idx"


@operator
def nvfp4_quantize_per_token(
    input: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None,
    sf_layout: int,
    nvfp4_4over6: int,
) -> tuple[Layout, Layout, Layout]:
    """Refuse what cannot be quantized; return values, block scales and the rows' scales."""
    name, index = "nvfp4_quantize_per_token", expanded_idx_to_permuted_idx
    checks.check_dtype(name, "input", input, (torch.float16, torch.bfloat16))
    checks.check_rank(name, "input", input, (2,))
    layout = checks.check_sf_layout(name, sf_layout)
    checks.check_recipe(name, nvfp4_4over6, "input", input)
    checks.check_blocks(name, "input", input)
    rows, columns = input.shape
    checks.check_int32(name, "input", rows, "a number of rows of")
    checks.check_int32(name, "input", columns, "a number of columns of")
    checks.check_int32(
        name, "input", rows * (columns // checks.NVFP4_BLOCK), "a number of blocks of"
    )
    if index is not None:
        checks.check_dtype(name, _INDEX, index, (torch.int32,))
        checks.check_rank(name, _INDEX, index, (1,))
        if index.shape[0] < rows:
            expected = f"{rows} elements or more, the rows of 'input'"
            what_to_do = "pass one row number, or a negative one, for each row"
            checks.fail_shape(name, _INDEX, index, expected, what_to_do)
        checks.check_same_device(name, _INDEX, index, "input", input)
    scale_shape = _layouts.scale_shape(rows, columns // checks.NVFP4_BLOCK, layout)
    return (
        Layout((rows, columns // 2), torch.uint8),
        Layout(scale_shape, torch.uint8),
        Layout((rows,), torch.float32),
    )


@nvfp4_quantize_per_token.writes
def _(
    input: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None,
    sf_layout: int,
    nvfp4_4over6: int,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    # Rows that an index does not name are kept, and with an index so is the padding of the scales.
    # Without one, padding is zero.
    values, block_scales, row_scales = outputs
    quantized, per_token_scale = _quantize_rows(input, scale_inv, nvfp4_4over6)
    named = _named_rows(expanded_idx_to_permuted_idx, input)
    layout = _layouts.SfLayout(sf_layout)
    values.copy_(torch.where(named.unsqueeze(1), quantized.packed(), values))
    linear = _layouts.unswizzle(block_scales, layout).clone()
    if expanded_idx_to_permuted_idx is None:
        linear.zero_()
    rows, columns = quantized.scale_codes.shape
    held = linear[:rows, :columns]
    held.copy_(torch.where(named.unsqueeze(1), quantized.scale_codes, held))
    block_scales.copy_(_layouts.swizzle(linear, layout))
    row_scales.copy_(torch.where(named, per_token_scale, row_scales))


def _quantize_rows(
    input: torch.Tensor, scale_inv: float, recipe: int
) -> tuple[blocks.Blocks, torch.Tensor]:
    """Quantize every row; return also the rows' scales, `[M]`."""
    elements = scales.flush_subnormals(blocks.split(input, checks.NVFP4_BLOCK))
    row_maximum = _row_maximum(elements)
    base = torch.tensor(scale_inv, dtype=torch.float32, device=input.device)
    per_token_scale = scales.multiply(row_maximum, scales.flush_subnormals(base))
    factor = scales.reciprocal(per_token_scale).masked_fill(per_token_scale == 0.0, 0.0)
    return nvfp4.quantize(elements, factor, recipe, row_maximum), per_token_scale.squeeze(1)


def _row_maximum(elements: torch.Tensor) -> torch.Tensor:
    """Return each row's largest magnitude, `[M, 1]`; zero for a row of nothing but NaN."""
    if elements.shape[1] == 0:
        return elements.new_zeros(elements.shape[0], 1)
    return elements.abs().masked_fill(elements.isnan(), 0.0).amax(dim=(1, 2)).unsqueeze(1)


def _named_rows(index: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    """Say which rows to quantize, `[M]`: those that the first M entries of the index name."""
    rows = input.shape[0]
    if index is None:
        return torch.ones(rows, dtype=torch.bool, device=input.device)
    entries = index[:rows].to(torch.int64)
    outside = entries[entries >= rows]
    if outside.numel() > 0:
        # On a GPU this is undefined: checking would mean waiting for the device.
        got, expected = (
            f"row number {int(outside[0])}",
            f"row numbers below {rows}, the rows of 'input'",
        )
        what_to_do = "pass a negative number for a row to leave out"
        checks.fail("nvfp4_quantize_per_token", _INDEX, got, expected, what_to_do)
    named = torch.zeros(rows, dtype=torch.bool, device=input.device)
    named[entries[entries >= 0]] = True
    return named
