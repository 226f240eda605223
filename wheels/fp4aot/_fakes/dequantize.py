"""Results of the dequantizing operators, except those of a KV cache."""

from __future__ import annotations

import torch

from fp4aot import _checks
from fp4aot._fakes import common


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
    return common.dequantized(e2m1_tensor, torch.float32)


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
    return common.dequantized(a_fp4, torch.float32)


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
    return common.dequantized(weight, torch.float32)


def mxfp4_dequantize_host_out(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32, *, out: torch.Tensor
) -> None:
    """Validate only."""
    _checks.mxfp4_dequantize_host_out(weight, scale, group_size, out)
