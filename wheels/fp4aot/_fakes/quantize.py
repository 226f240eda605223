"""Results of `fp4_quantize`."""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts
from fp4aot._fakes import common


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    nvfp4_4over6: int = 0,
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
        nvfp4_4over6,
    )
    column_major = _layouts.is_column_major(input)
    matrix = input.transpose(-2, -1) if column_major else input
    columns = matrix.shape[-1]
    values = common.uint8((*matrix.shape[:-1], columns // 2), input)
    scale_shape = _layouts.scale_shape(
        _layouts.flattened_rows(matrix.shape),
        columns // sf_vec_size,
        _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout),
    )
    block_scales = common.uint8(scale_shape, input)
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
    nvfp4_4over6: int = 0,
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
        nvfp4_4over6,
    )
    _checks.fp4_quantize_out(
        input, sf_vec_size, is_sf_swizzled_layout, is_sf_8x4_layout, values, block_scales
    )
