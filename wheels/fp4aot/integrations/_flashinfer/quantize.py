"""The routes of FlashInfer's quantization functions.

Dynamo evaluates their conditions while it traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fp4aot import _recipes, batched_quantization, quantization
from fp4aot.integrations._flashinfer.call import Context, Function, Route

_FP8 = torch.float8_e4m3fn


def fp4_quantize(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.fp4_quantize`."""
    backends, omitted = context.backends, context.omitted
    default = _recipes.recipe_code("fp4_quantize", "recipe", context.recipe)
    operator = torch.ops.fp4aot.fp4_quantize.default

    def answer(
        input: torch.Tensor,
        global_scale: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        is_global_scale_inversed: bool = False,
        enable_pdl: bool | None = None,
        backend: str = "cuda",
        nvfp4_4over6: Any = omitted,
    ) -> Any:
        if backend not in backends:
            return NotImplemented
        if nvfp4_4over6 is not omitted:
            recipe = _recipes.recipe_code("fp4_quantize", "nvfp4_4over6", nvfp4_4over6)
        elif sf_vec_size != 16 or sf_use_ue8m0 or input.dtype == _FP8:
            # There is no other recipe for these, and FlashInfer ignores the environment's.
            recipe = _recipes.STANDARD
        else:
            recipe = default
        if global_scale is not None:
            global_scale = global_scale.to(device=input.device, dtype=torch.float32)
        return operator(
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

    return Route(answer)


def nvfp4_quantize(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.nvfp4_quantize`."""
    backends, omitted, moves = context.backends, context.omitted, context.moves_to_gpu
    default = context.recipe
    function = quantization.nvfp4_quantize

    def answer(values: dict[str, Any]) -> Any:
        a, scale = values["a"], values["a_global_sf"]
        is_tensor = isinstance(scale, torch.Tensor)
        per_token = values.get("per_token_activation", False)
        # A number as global scale is for FlashInfer's CuTe-DSL kernel.
        if values.pop("backend", "cuda") not in backends or not (is_tensor or per_token):
            return NotImplemented
        recipe = values.get("nvfp4_4over6", omitted)
        if recipe is omitted:
            recipe = None if a.dtype == _FP8 else default
        if moves and not a.is_cuda:
            a = a.cuda()
        order = values.get("expanded_idx_to_permuted_idx")
        if order is not None:
            values["expanded_idx_to_permuted_idx"] = order.to(a.device)
        if is_tensor and per_token and (recipe is not None or order is not None):
            # The kernel takes a number; FlashInfer reads the tensor on the host too.
            scale = float(scale.item())
        elif is_tensor:
            scale = scale.to(device=a.device, dtype=torch.float32)
        values.update(a=a, a_global_sf=scale, nvfp4_4over6=recipe)
        return function(**values)

    return Route(answer, function, leaves=("out_scale",))


def mxfp4_quantize(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.mxfp4_quantize`."""
    backends, moves = context.backends, context.moves_to_gpu
    function = quantization.mxfp4_quantize

    def answer(values: dict[str, Any]) -> Any:
        if values.pop("backend", "cuda") not in backends:
            return NotImplemented
        if moves and not values["a"].is_cuda:
            values["a"] = values["a"].cuda()
        return function(**values)

    return Route(answer, function)


def nvfp4_batched_quantize(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.nvfp4_batched_quantize`."""
    omitted, default = context.omitted, context.recipe

    def answer(
        a: torch.Tensor,
        a_global_sf: torch.Tensor,
        sf_vec_size: int = 16,
        nvfp4_4over6: Any = omitted,
    ) -> Any:
        if nvfp4_4over6 is omitted:
            nvfp4_4over6 = None if a.dtype == _FP8 else default
        return batched_quantization.nvfp4_batched_quantize(
            a, a_global_sf, sf_vec_size, nvfp4_4over6
        )

    return Route(answer)


def of_experts(function: Function) -> Callable[[Function, Context], Route]:
    """Make what makes the route to a function that quantizes the rows of experts."""

    def make(original: Function, context: Context) -> Route:
        omitted, default = context.omitted, context.recipe

        def answer(
            a: torch.Tensor,
            mask: torch.Tensor,
            a_global_sf: torch.Tensor,
            nvfp4_4over6: Any = omitted,
        ) -> Any:
            recipe = default if nvfp4_4over6 is omitted else nvfp4_4over6
            return function(a, mask, a_global_sf, recipe)

        return Route(answer)

    return make
