"""Replacements of FlashInfer's quantization functions.

Each is made for the function that it replaces, takes its arguments, gives its results, and goes to
the wheel or to FlashInfer by conditions that Dynamo evaluates while it traces.
"""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _recipes, quantization
from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)

_FP8 = torch.float8_e4m3fn


def fp4_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.fp4_quantize`."""
    forward = forwarder(original)
    backends, omitted = context.backends, context.omitted
    default = _recipes.recipe_code("fp4_quantize", "recipe", context.recipe)

    def routed(
        input: torch.Tensor,
        global_scale: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        is_global_scale_inversed: bool = False,
        enable_pdl: bool | None = None,
        backend: str = original.backend,
        nvfp4_4over6: Any = omitted,
        **more: Any,
    ) -> Any:
        if backend not in backends or asks_for_more(more):
            return forward(
                more,
                input=input,
                global_scale=global_scale,
                sf_vec_size=sf_vec_size,
                sf_use_ue8m0=sf_use_ue8m0,
                is_sf_swizzled_layout=is_sf_swizzled_layout,
                is_sf_8x4_layout=is_sf_8x4_layout,
                is_global_scale_inversed=is_global_scale_inversed,
                enable_pdl=enable_pdl,
                backend=backend,
                nvfp4_4over6=nvfp4_4over6,
            )
        if nvfp4_4over6 is not omitted:
            recipe = _recipes.recipe_code("fp4_quantize", "nvfp4_4over6", nvfp4_4over6)
        elif sf_vec_size != 16 or sf_use_ue8m0 or input.dtype == _FP8:
            # There is no other recipe for these, and FlashInfer ignores the environment's.
            recipe = _recipes.STANDARD
        else:
            recipe = default
        if global_scale is not None:
            global_scale = global_scale.to(device=input.device, dtype=torch.float32)
        values, block_scales = torch.ops.fp4aot.fp4_quantize.default(
            input,
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
            is_global_scale_inversed,
            enable_pdl,
            recipe,
        )
        return values, block_scales

    if "is_global_scale_inversed" in original.names:
        return routed

    # FlashInfer before 0.6.12, where the arguments after it have other positions.
    def routed_without_inverse(
        input: torch.Tensor,
        global_scale: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        enable_pdl: bool | None = None,
        backend: str = original.backend,
        **more: Any,
    ) -> Any:
        return routed(
            input,
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
            False,
            enable_pdl,
            backend,
            **more,
        )

    return routed_without_inverse


def nvfp4_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.nvfp4_quantize`."""
    forward = forwarder(original)
    backends, omitted, moves = context.backends, context.omitted, context.moves_to_gpu
    default = context.recipe

    def routed(
        a: torch.Tensor,
        a_global_sf: Any,
        sfLayout: Any = quantization.SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
        do_shuffle: bool = False,
        sf_vec_size: int = 16,
        enable_pdl: bool | None = None,
        backend: str = original.backend,
        per_token_activation: bool = False,
        expanded_idx_to_permuted_idx: torch.Tensor | None = None,
        out_scale: torch.Tensor | None = None,
        nvfp4_4over6: Any = omitted,
        **more: Any,
    ) -> Any:
        is_tensor = isinstance(a_global_sf, torch.Tensor)
        if (
            backend not in backends
            or out_scale is not None
            # A number as global scale is for FlashInfer's CuTe-DSL kernel.
            or not (is_tensor or per_token_activation)
            or asks_for_more(more)
        ):
            return forward(
                more,
                a=a,
                a_global_sf=a_global_sf,
                sfLayout=sfLayout,
                do_shuffle=do_shuffle,
                sf_vec_size=sf_vec_size,
                enable_pdl=enable_pdl,
                backend=backend,
                per_token_activation=per_token_activation,
                expanded_idx_to_permuted_idx=expanded_idx_to_permuted_idx,
                out_scale=out_scale,
                nvfp4_4over6=nvfp4_4over6,
            )
        if nvfp4_4over6 is not omitted:
            recipe = nvfp4_4over6
        else:
            recipe = None if a.dtype == _FP8 else default
        if moves and not a.is_cuda:
            a = a.cuda()
        if expanded_idx_to_permuted_idx is not None:
            expanded_idx_to_permuted_idx = expanded_idx_to_permuted_idx.to(a.device)
        if (
            is_tensor
            and per_token_activation
            and (recipe is not None or expanded_idx_to_permuted_idx is not None)
        ):
            # The kernel takes a number; FlashInfer reads the tensor on the host too.
            a_global_sf = float(a_global_sf.item())
        elif is_tensor:
            a_global_sf = a_global_sf.to(device=a.device, dtype=torch.float32)
        return quantization.nvfp4_quantize(
            a,
            a_global_sf,
            sfLayout,
            do_shuffle,
            sf_vec_size,
            enable_pdl,
            "cuda",
            per_token_activation,
            expanded_idx_to_permuted_idx,
            None,
            recipe,
        )

    return routed


def mxfp4_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.mxfp4_quantize`."""
    forward = forwarder(original)
    backends, moves = context.backends, context.moves_to_gpu

    def routed(
        a: torch.Tensor,
        backend: str = original.backend,
        enable_pdl: bool | None = None,
        sfLayout: Any = quantization.SfLayout.layout_128x4,  # noqa: N803 (FlashInfer's name)
        **more: Any,
    ) -> Any:
        if backend not in backends or asks_for_more(more):
            return forward(more, a=a, backend=backend, enable_pdl=enable_pdl, sfLayout=sfLayout)
        if moves and not a.is_cuda:
            a = a.cuda()
        return quantization.mxfp4_quantize(a, "cuda", enable_pdl, sfLayout)

    return routed


def nvfp4_batched_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.nvfp4_batched_quantize`."""
    forward = forwarder(original)
    omitted = context.omitted
    default = _recipes.recipe_code("nvfp4_batched_quantize", "recipe", context.recipe)

    def routed(
        a: torch.Tensor,
        a_global_sf: torch.Tensor,
        sf_vec_size: int = 16,
        nvfp4_4over6: Any = omitted,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(
                more,
                a=a,
                a_global_sf=a_global_sf,
                sf_vec_size=sf_vec_size,
                nvfp4_4over6=nvfp4_4over6,
            )
        if nvfp4_4over6 is not omitted:
            recipe = _recipes.recipe_code("nvfp4_batched_quantize", "nvfp4_4over6", nvfp4_4over6)
        else:
            recipe = _recipes.STANDARD if a.dtype == _FP8 else default
        values, block_scales = torch.ops.fp4aot.nvfp4_batched_quantize.default(
            a, a_global_sf, sf_vec_size, recipe
        )
        return values, block_scales

    return routed


def scaled_fp4_grouped_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.scaled_fp4_grouped_quantize`."""
    return _of_experts("scaled_fp4_grouped_quantize", original, context)


def silu_and_mul_scaled_nvfp4_experts_quantize(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.silu_and_mul_scaled_nvfp4_experts_quantize`."""
    return _of_experts("silu_and_mul_scaled_nvfp4_experts_quantize", original, context)


def _of_experts(name: str, original: Original, context: Context) -> Function:
    forward = forwarder(original)
    omitted = context.omitted
    operator = getattr(torch.ops.fp4aot, name).default
    default = _recipes.recipe_code(name, "recipe", context.recipe)

    def routed(
        a: torch.Tensor,
        mask: torch.Tensor,
        a_global_sf: torch.Tensor,
        nvfp4_4over6: Any = omitted,
        **more: Any,
    ) -> Any:
        if asks_for_more(more):
            return forward(more, a=a, mask=mask, a_global_sf=a_global_sf, nvfp4_4over6=nvfp4_4over6)
        if nvfp4_4over6 is not omitted:
            recipe = _recipes.recipe_code(name, "nvfp4_4over6", nvfp4_4over6)
        else:
            recipe = default
        values, block_scales = operator(a, mask, a_global_sf, recipe)
        return values, block_scales

    return routed
