"""The two ways to quantize with a scale for each row: base scale as a number, or in a tensor."""

from __future__ import annotations

import math

import torch

from fp4aot import _recipes
from fp4aot._layouts import SfLayout
from fp4aot.operators.argument_checks import check_scalar_scale
from fp4aot.operators.arithmetic import scales
from fp4aot.operators.per_token import nvfp4_quantize_per_token

Quantized = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# A base scale that went through float32 is this near; one made for 256 instead of 448 is not.
_TOLERANCE = 1e-3


def with_number(
    a: torch.Tensor,
    scale_inv: float,
    expanded_idx_to_permuted_idx: torch.Tensor | None,
    layout: SfLayout,
    recipe: int,
) -> Quantized:
    """Call the operator, whose kernel takes the base scale from the host."""
    values, block_scales, per_token_scale = torch.ops.fp4aot.nvfp4_quantize_per_token.default(
        a, scale_inv, expanded_idx_to_permuted_idx, int(layout), recipe
    )
    return values, block_scales, per_token_scale


def require_scale_of_recipe(
    function: str, scale_inv: float, config: _recipes.NVFP44Over6Config
) -> None:
    """Refuse a base scale made for another largest block scale: all values would be rescaled."""
    expected = 1.0 / (_recipes.nvfp4_e4m3_max(config) * 6.0)
    if abs(scale_inv - expected) > _TOLERANCE * expected:
        raise ValueError(
            f"fp4aot.{function}: a_global_sf={scale_inv!r} does not belong to nvfp4_4over6 with "
            f"e4m3_max={config.e4m3_max}; pass 1 / (e4m3_max * 6), which is {expected!r}"
        )


def with_tensor(
    a: torch.Tensor, a_global_sf: torch.Tensor, layout: SfLayout, enable_pdl: bool | None
) -> Quantized:
    """Make the rows' scales with torch, so that the base scale stays on its device.

    The operator would need it on the host, and reading it would wait for the device and could not
    be captured in a CUDA graph. The results are the operator's, bit for bit.
    """
    nvfp4_quantize_per_token.check(a, 1.0, None, int(layout), _recipes.STANDARD)
    check_scalar_scale(nvfp4_quantize_per_token.name, "a_global_sf", a_global_sf, "input", a)
    # A column-major tensor would be quantized along its other dimension.
    a = a.contiguous()
    base = scales.flush_subnormals(a_global_sf.reshape(()))
    per_token_scale = scales.multiply(scales.flush_subnormals(_row_maximum(a)), base)
    # The kernel turns a scale of zero into the factor zero, and so does the reciprocal of infinity.
    divisor = torch.where(per_token_scale == 0.0, math.inf, per_token_scale)
    values, block_scales = torch.ops.fp4aot.fp4_quantize.default(
        a,
        divisor,
        16,
        False,
        layout != SfLayout.layout_linear,
        layout == SfLayout.layout_8x4,
        True,
        enable_pdl,
    )
    return values, block_scales, per_token_scale


def _row_maximum(a: torch.Tensor) -> torch.Tensor:
    """Return each row's largest magnitude in float32; NaN does not count, as in the kernel."""
    if a.shape[1] == 0:
        return a.new_zeros(a.shape[0], dtype=torch.float32)
    magnitudes = a.abs().nan_to_num(nan=0.0, posinf=math.inf)
    return magnitudes.amax(dim=1).to(torch.float32)
