"""Replacements of FlashInfer's functions that dequantize, swizzle scales and shuffle rows."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import quantization, shuffle
from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)


def block_scale_interleave(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.block_scale_interleave`, by both its names."""
    forward = forwarder(original)

    def routed(unswizzled_sf: torch.Tensor, **more: Any) -> Any:
        if asks_for_more(more):
            return forward(more, unswizzled_sf=unswizzled_sf)
        return torch.ops.fp4aot.block_scale_interleave.default(unswizzled_sf)

    return routed


def e2m1_and_ufp8sf_scale_to_float(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.e2m1_and_ufp8sf_scale_to_float`."""
    forward = forwarder(original)

    def routed(
        e2m1_tensor: torch.Tensor,
        ufp8_scale_tensor: torch.Tensor,
        global_scale_tensor: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        ufp8_type: int = 1,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                e2m1_tensor=e2m1_tensor,
                ufp8_scale_tensor=ufp8_scale_tensor,
                global_scale_tensor=global_scale_tensor,
                sf_vec_size=sf_vec_size,
                ufp8_type=ufp8_type,
                is_sf_swizzled_layout=is_sf_swizzled_layout,
                is_sf_8x4_layout=is_sf_8x4_layout,
            )
        device = e2m1_tensor.device
        if global_scale_tensor is not None:
            global_scale_tensor = global_scale_tensor.to(device)
        result = torch.ops.fp4aot.e2m1_and_ufp8sf_scale_to_float.default(
            e2m1_tensor,
            ufp8_scale_tensor.to(device),
            global_scale_tensor,
            sf_vec_size,
            ufp8_type,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
        )
        # FlashInfer does this on the CPU and leaves it there.
        return result.cpu()

    return routed


def mxfp4_dequantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.mxfp4_dequantize`."""
    forward = forwarder(original)

    def routed(
        a_fp4: torch.Tensor,
        a_sf: torch.Tensor,
        sfLayout: Any = quantization.SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(more, a_fp4=a_fp4, a_sf=a_sf, sfLayout=sfLayout)
        values = a_fp4.view(torch.uint8)
        block_scales = a_sf.to(a_fp4.device).view(torch.uint8)
        result = torch.ops.fp4aot.mxfp4_dequantize.default(values, block_scales, int(sfLayout))
        return result.cpu()

    return routed


def mxfp4_dequantize_host(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.mxfp4_dequantize_host`."""
    forward = forwarder(original)

    def routed(weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32, **more: Any) -> Any:
        if asks_for_more(more):
            return forward(more, weight=weight, scale=scale, group_size=group_size)
        return torch.ops.fp4aot.mxfp4_dequantize_host.default(weight, scale, group_size)

    return routed


def shuffle_matrix_a(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.shuffle_matrix_a`."""
    forward = forwarder(original)

    def routed(input_tensor: torch.Tensor, epilogue_tile_m: int, **more: Any) -> Any:
        if asks_for_more(more):
            return forward(more, input_tensor=input_tensor, epilogue_tile_m=epilogue_tile_m)
        return shuffle.shuffle_matrix_a(input_tensor, epilogue_tile_m)

    return routed


def shuffle_matrix_sf_a(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.shuffle_matrix_sf_a`."""
    forward = forwarder(original)

    def routed(
        input_tensor: torch.Tensor,
        epilogue_tile_m: int,
        num_elts_per_sf: int = 16,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                input_tensor=input_tensor,
                epilogue_tile_m=epilogue_tile_m,
                num_elts_per_sf=num_elts_per_sf,
            )
        return shuffle.shuffle_matrix_sf_a(input_tensor, epilogue_tile_m, num_elts_per_sf)

    return routed
