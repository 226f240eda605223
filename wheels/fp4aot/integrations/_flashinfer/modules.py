"""What stands for FlashInfer's compiled modules, so that its own Python compiles none of them.

FlashInfer reaches a module through a cached function, which compiles and loads it and returns an
object with Python functions. Here are functions that return an object with the same functions, each
of which calls an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fp4aot import _recipes
from fp4aot._layouts import SfLayout
from fp4aot.integrations._flashinfer.call import Context, Function

_FROM_ENVIRONMENT = -1
_FP8 = torch.float8_e4m3fn


def quantization(original: Function, context: Context) -> Function:
    """Make the replacement of `get_fp4_quantization_module`, for all architectures.

    The operators choose the kernel by the tensors' device.
    """
    module = SimpleNamespace(**_quantization_functions(context))

    def get_fp4_quantization_module(backend: str = "100") -> SimpleNamespace:
        return module

    return _like_cached(get_fp4_quantization_module, original)


def kv_quantization(original: Function, context: Context) -> Function:
    """Make the replacement of `get_fp4_kv_quantization_module`."""

    def nvfp4_kv_quant(
        input: torch.Tensor,
        global_scale: torch.Tensor,
        fp4_output: torch.Tensor,
        block_scales: torch.Tensor,
    ) -> None:
        torch.ops.fp4aot.nvfp4_kv_quantize.out(
            input, global_scale, fp4_output=fp4_output, block_scales=block_scales
        )

    module = SimpleNamespace(nvfp4_kv_quant=nvfp4_kv_quant)

    def get_fp4_kv_quantization_module() -> SimpleNamespace:
        return module

    return _like_cached(get_fp4_kv_quantization_module, original)


def kv_dequantization(original: Function, context: Context) -> Function:
    """Make the replacement of `get_fp4_kv_dequantization_module`."""

    def nvfp4_kv_dequant(
        fp4_data: torch.Tensor,
        block_scales: torch.Tensor,
        global_scale: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        torch.ops.fp4aot.nvfp4_kv_dequantize.out(fp4_data, block_scales, global_scale, out=output)

    def nvfp4_paged_kv_dequant(
        paged_k_cache: torch.Tensor,
        paged_v_cache: torch.Tensor,
        k_scales: torch.Tensor,
        v_scales: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        k_global_scale: torch.Tensor,
        v_global_scale: torch.Tensor,
        output_k: torch.Tensor,
        output_v: torch.Tensor,
        kv_layout: int,
    ) -> None:
        torch.ops.fp4aot.nvfp4_kv_dequantize_paged.out(
            paged_k_cache,
            paged_v_cache,
            k_scales,
            v_scales,
            block_tables,
            seq_lens,
            k_global_scale,
            v_global_scale,
            kv_layout,
            output_k=output_k,
            output_v=output_v,
        )

    module = SimpleNamespace(
        nvfp4_kv_dequant=nvfp4_kv_dequant, nvfp4_paged_kv_dequant=nvfp4_paged_kv_dequant
    )

    def get_fp4_kv_dequantization_module() -> SimpleNamespace:
        return module

    return _like_cached(get_fp4_kv_dequantization_module, original)


def _quantization_functions(context: Context) -> dict[str, Function]:
    """Define the functions of the quantization module, with FlashInfer's names and arguments."""
    default = _recipes.recipe_code("get_fp4_quantization_module", "recipe", context.recipe)

    def recipe_of(code: int, *, has_recipes: bool = True) -> int:
        if code != _FROM_ENVIRONMENT:
            return code
        return default if has_recipes else _recipes.STANDARD

    def fp4_quantize_sm100(
        input: torch.Tensor,
        global_scale: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
        is_global_scale_inversed: bool = False,
        enable_pdl: bool | None = None,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        has_recipes = sf_vec_size == 16 and not sf_use_ue8m0 and input.dtype != _FP8
        values, block_scales = torch.ops.fp4aot.fp4_quantize.default(
            input.contiguous(),
            global_scale,
            sf_vec_size,
            sf_use_ue8m0,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
            is_global_scale_inversed,
            enable_pdl,
            recipe_of(nvfp4_4over6_code, has_recipes=has_recipes),
        )
        return values, block_scales.reshape(-1)

    def fp4_batched_quantize_sm100(
        input: torch.Tensor,
        global_scale: torch.Tensor,
        sf_vec_size: int = 16,
        sf_use_ue8m0: bool = False,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if sf_use_ue8m0:
            raise NotImplementedError(
                "fp4_batched_quantize with UE8M0 scales is not in fp4aot, and FlashInfer does not "
                "support it either; pass sf_use_ue8m0=False"
            )
        values, block_scales = torch.ops.fp4aot.nvfp4_batched_quantize.default(
            input,
            global_scale,
            sf_vec_size,
            recipe_of(nvfp4_4over6_code, has_recipes=input.dtype != _FP8),
        )
        return values, block_scales

    def nvfp4_quant_and_per_token_scale_sm100(
        input: torch.Tensor,
        scale_inv: float,
        expanded_idx_to_permuted_idx: torch.Tensor | None = None,
        sf_layout: int = SfLayout.layout_linear.value,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        values, block_scales, per_token = torch.ops.fp4aot.nvfp4_quantize_per_token.default(
            input,
            scale_inv,
            expanded_idx_to_permuted_idx,
            sf_layout,
            recipe_of(nvfp4_4over6_code),
        )
        return values, block_scales, per_token

    def nvfp4_quant_and_per_token_scale_out_sm100(
        input: torch.Tensor,
        scale_inv: float,
        output: torch.Tensor,
        output_scale: torch.Tensor,
        output_per_token_scale: torch.Tensor,
        expanded_idx_to_permuted_idx: torch.Tensor | None = None,
        sf_layout: int = SfLayout.layout_linear.value,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> None:
        torch.ops.fp4aot.nvfp4_quantize_per_token.out(
            input,
            scale_inv,
            expanded_idx_to_permuted_idx,
            sf_layout,
            recipe_of(nvfp4_4over6_code),
            values=output,
            block_scales=output_scale,
            per_token_scale=output_per_token_scale,
        )

    def silu_and_mul_scaled_nvfp4_experts_quantize_sm100(
        input: torch.Tensor,
        mask: torch.Tensor,
        global_scale: torch.Tensor,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        operator = torch.ops.fp4aot.silu_and_mul_scaled_nvfp4_experts_quantize.default
        values, block_scales = operator(input, mask, global_scale, recipe_of(nvfp4_4over6_code))
        return values, block_scales

    def scaled_fp4_grouped_quant_sm100(
        input_tensor: torch.Tensor,
        input_global_scale: torch.Tensor,
        mask: torch.Tensor,
        nvfp4_4over6_code: int = _FROM_ENVIRONMENT,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, block_scales = torch.ops.fp4aot.scaled_fp4_grouped_quantize.default(
            input_tensor, mask, input_global_scale, recipe_of(nvfp4_4over6_code)
        )
        return values, block_scales

    return {
        "fp4_quantize_sm100": fp4_quantize_sm100,
        "fp4_batched_quantize_sm100": fp4_batched_quantize_sm100,
        "nvfp4_quant_and_per_token_scale_sm100": nvfp4_quant_and_per_token_scale_sm100,
        "nvfp4_quant_and_per_token_scale_out_sm100": nvfp4_quant_and_per_token_scale_out_sm100,
        "silu_and_mul_scaled_nvfp4_experts_quantize_sm100": (
            silu_and_mul_scaled_nvfp4_experts_quantize_sm100
        ),
        "scaled_fp4_grouped_quant_sm100": scaled_fp4_grouped_quant_sm100,
        **_layout_functions(),
    }


def _layout_functions() -> dict[str, Function]:
    """Define those functions of the quantization module that know no recipe."""

    def block_scale_interleave_sm100(unswizzled_sf: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.fp4aot.block_scale_interleave.default(unswizzled_sf)
        return result

    def block_scale_interleave_sm100_out(unswizzled_sf: torch.Tensor, out: torch.Tensor) -> None:
        torch.ops.fp4aot.block_scale_interleave.out(unswizzled_sf, out=out)

    def e2m1_and_ufp8sf_scale_to_float_sm100(
        e2m1_tensor: torch.Tensor,
        ufp8_scale_tensor: torch.Tensor,
        global_scale_tensor: torch.Tensor | None = None,
        sf_vec_size: int = 16,
        ufp8_type: int = 1,
        is_sf_swizzled_layout: bool = True,
        is_sf_8x4_layout: bool = False,
    ) -> torch.Tensor:
        result: torch.Tensor = torch.ops.fp4aot.e2m1_and_ufp8sf_scale_to_float.default(
            e2m1_tensor.cpu(),
            ufp8_scale_tensor.cpu(),
            None if global_scale_tensor is None else global_scale_tensor.cpu(),
            sf_vec_size,
            ufp8_type,
            is_sf_swizzled_layout,
            is_sf_8x4_layout,
        )
        return result

    def mxfp4_dequantize_host(
        weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32
    ) -> torch.Tensor:
        result: torch.Tensor = torch.ops.fp4aot.mxfp4_dequantize_host.default(
            weight, scale, group_size
        )
        return result

    return {
        "block_scale_interleave_sm100": block_scale_interleave_sm100,
        "block_scale_interleave_sm100_out": block_scale_interleave_sm100_out,
        "e2m1_and_ufp8sf_scale_to_float_sm100": e2m1_and_ufp8sf_scale_to_float_sm100,
        "mxfp4_dequantize_host": mxfp4_dequantize_host,
    }


def _like_cached(function: Function, original: Function) -> Function:
    """Give a function what callers of a cached one may use."""
    for name in ("cache_clear", "cache_info", "cache_parameters"):
        attribute: Callable[..., Any] | None = getattr(original, name, None)
        if attribute is not None:
            setattr(function, name, attribute)
    return function
