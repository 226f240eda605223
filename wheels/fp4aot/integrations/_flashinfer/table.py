"""Which names of FlashInfer's are replaced, by what, and which operators that needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fp4aot import batched_quantization, group_gemm, kv_cache, quantization, shuffle
from fp4aot.integrations._flashinfer import (
    dequantize,
    gemm,
    modules,
    moe,
    quantize,
    tunable_modules,
    tuning,
)
from fp4aot.integrations._flashinfer.call import Context, Function, Route, all_calls

_QUANTIZATION = "flashinfer.quantization.fp4_quantization"
_ACTIVATION = "flashinfer.activation"
_GEMM = "flashinfer.gemm.gemm_base"
_MOE = "flashinfer.fused_moe.core"
_AUTOTUNER = "flashinfer.autotuner"
_KERNELS = ("sm100", "sm103", "sm120")

BLACKWELL = (10, 0)
BLACKWELL_GEFORCE = (12, 0)
AMPERE = (8, 0)


@dataclass(frozen=True)
class PublicFunction:
    """A function that people call.

    Parameters
    ----------
    module, name
        Where FlashInfer defines it. Other modules bind it too.
    make
        Makes the route of its calls.
    operators
        Operators with compiled kernels that the route may call.
    lowest
        Compute capability from which FlashInfer offers it.
    one_recipe
        Whether the operator quantizes by the standard recipe alone, and FlashInfer by that of the
        environment.
    """

    module: str
    name: str
    make: Callable[[Function, Context], Route]
    operators: tuple[str, ...] = ()
    lowest: tuple[int, int] = BLACKWELL
    one_recipe: bool = False


@dataclass(frozen=True)
class ModuleGetter:
    """A function by which FlashInfer's own Python gets a compiled module, or what loads one.

    Parameters
    ----------
    module, name
        Where FlashInfer defines it.
    make
        Makes its replacement.
    operators
        Operators with compiled kernels that the module's functions call.
    lowest
        Compute capability from which FlashInfer offers it.
    one_recipe
        As in `PublicFunction`.
    oldest
        FlashInfer's first release in which the module's functions have the arguments of today.
    cached_by
        The function in the same module that keeps what was loaded.
    """

    module: str
    name: str
    make: Callable[[Function, Context], Function]
    operators: tuple[str, ...]
    lowest: tuple[int, int] = BLACKWELL
    one_recipe: bool = False
    oldest: tuple[int, ...] = (0, 7)
    cached_by: str = ""


@dataclass(frozen=True)
class TuningHook:
    """What changes what FlashInfer's autotuner knows.

    Parameters
    ----------
    module, name
        A function, and where FlashInfer defines it; or a method, "AutoTuner.load_configs".
    make
        Makes its replacement, of the function and of what is to be called afterwards.
    """

    module: str
    name: str
    make: Callable[[Function, Callable[[], None]], Function]


PUBLIC_FUNCTIONS = (
    PublicFunction(
        *(_QUANTIZATION, "fp4_quantize", quantize.fp4_quantize),
        operators=("fp4_quantize",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "nvfp4_quantize", quantize.nvfp4_quantize),
        operators=("fp4_quantize", "nvfp4_quantize_per_token", "block_scale_interleave"),
    ),
    PublicFunction(
        *(_QUANTIZATION, "mxfp4_quantize", quantize.mxfp4_quantize),
        operators=("fp4_quantize",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "nvfp4_batched_quantize", quantize.nvfp4_batched_quantize),
        operators=("nvfp4_batched_quantize",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "scaled_fp4_grouped_quantize"),
        quantize.of_experts(batched_quantization.scaled_fp4_grouped_quantize),
        operators=("scaled_fp4_grouped_quantize",),
    ),
    PublicFunction(
        *(_ACTIVATION, "silu_and_mul_scaled_nvfp4_experts_quantize"),
        quantize.of_experts(batched_quantization.silu_and_mul_scaled_nvfp4_experts_quantize),
        operators=("silu_and_mul_scaled_nvfp4_experts_quantize",),
    ),
    # `nvfp4_block_scale_interleave` is the same function by its older name.
    PublicFunction(
        *(_QUANTIZATION, "block_scale_interleave"),
        all_calls(quantization.block_scale_interleave),
        operators=("block_scale_interleave",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "e2m1_and_ufp8sf_scale_to_float"),
        dequantize.e2m1_and_ufp8sf_scale_to_float,
    ),
    PublicFunction(_QUANTIZATION, "mxfp4_dequantize", dequantize.mxfp4_dequantize),
    PublicFunction(
        *(_QUANTIZATION, "mxfp4_dequantize_host", all_calls(quantization.mxfp4_dequantize_host)),
        operators=("mxfp4_dequantize_host",),
    ),
    PublicFunction(_QUANTIZATION, "shuffle_matrix_a", all_calls(shuffle.shuffle_matrix_a)),
    PublicFunction(
        *(_QUANTIZATION, "shuffle_matrix_sf_a", all_calls(shuffle.shuffle_matrix_sf_a)),
        operators=("block_scale_interleave",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "nvfp4_kv_quantize", all_calls(kv_cache.nvfp4_kv_quantize)),
        operators=("nvfp4_kv_quantize",),
    ),
    PublicFunction(
        *(_QUANTIZATION, "nvfp4_kv_dequantize", all_calls(kv_cache.nvfp4_kv_dequantize)),
        operators=("nvfp4_kv_dequantize",),
        lowest=AMPERE,
    ),
    PublicFunction(
        *(_QUANTIZATION, "nvfp4_kv_dequantize_paged"),
        all_calls(kv_cache.nvfp4_kv_dequantize_paged),
        operators=("nvfp4_kv_dequantize_paged",),
        lowest=AMPERE,
    ),
    PublicFunction(
        *("flashinfer.page", "nvfp4_quantize_append_paged_kv_cache"),
        all_calls(kv_cache.nvfp4_quantize_append_paged_kv_cache),
        operators=("nvfp4_quantize_append_paged_kv_cache",),
        lowest=AMPERE,
    ),
    PublicFunction(_GEMM, "mm_fp4", gemm.mm_fp4, operators=("mm_fp4",)),
    PublicFunction(
        *(_GEMM, "group_gemm_nvfp4_nt_groupwise"),
        all_calls(group_gemm.group_gemm_nvfp4_nt_groupwise),
        operators=("group_gemm_nvfp4_nt_groupwise",),
        lowest=BLACKWELL_GEFORCE,
    ),
    # `group_gemm_mxfp4_nt_groupwise` is the same function by its older name.
    PublicFunction(
        *(_GEMM, "group_gemm_mxfp8_mxfp4_nt_groupwise"),
        all_calls(group_gemm.group_gemm_mxfp8_mxfp4_nt_groupwise),
        operators=("group_gemm_mxfp8_mxfp4_nt_groupwise",),
    ),
    PublicFunction(
        *(_MOE, "cutlass_fused_moe", moe.cutlass_fused_moe),
        operators=("cutlass_fused_moe",),
        one_recipe=True,
    ),
    PublicFunction(
        *(_MOE, "cutlass_fused_moe_workspace_size", moe.cutlass_fused_moe_workspace_size),
        operators=("cutlass_fused_moe",),
        one_recipe=True,
    ),
)

MODULE_GETTERS = (
    ModuleGetter(
        *(_QUANTIZATION, "get_fp4_quantization_module", modules.quantization),
        operators=(
            "fp4_quantize",
            "nvfp4_quantize_per_token",
            "nvfp4_batched_quantize",
            "scaled_fp4_grouped_quantize",
            "silu_and_mul_scaled_nvfp4_experts_quantize",
            "block_scale_interleave",
            "mxfp4_dequantize_host",
        ),
    ),
    ModuleGetter(
        *(_QUANTIZATION, "get_fp4_kv_quantization_module", modules.kv_quantization),
        operators=("nvfp4_kv_quantize",),
    ),
    ModuleGetter(
        *(_QUANTIZATION, "get_fp4_kv_dequantization_module", modules.kv_dequantization),
        operators=("nvfp4_kv_dequantize", "nvfp4_kv_dequantize_paged"),
        lowest=AMPERE,
    ),
    *(
        ModuleGetter(
            *(_GEMM, f"gen_gemm_{kernels}_module_cutlass_fp4", tunable_modules.matmul),
            operators=("mm_fp4",),
            oldest=(),
            cached_by=f"get_gemm_{kernels}_module_cutlass_fp4",
        )
        for kernels in _KERNELS
    ),
    *(
        ModuleGetter(
            *(_MOE, f"gen_cutlass_fused_moe_{kernels}_module", tunable_modules.mixture),
            operators=("cutlass_fused_moe",),
            one_recipe=True,
            oldest=(),
            cached_by="get_cutlass_fused_moe_module",
        )
        for kernels in _KERNELS
    ),
    ModuleGetter(
        *("flashinfer.tllm_utils", "gen_trtllm_utils_module", tunable_modules.utilities),
        operators=(),
        oldest=(),
        cached_by="get_trtllm_utils_module",
    ),
)

TUNED = ("mm_fp4", "cutlass_fused_moe")
"""The functions above that FlashInfer tunes."""

TUNING_HOOKS = (
    TuningHook(_AUTOTUNER, "autotune", tuning.context),
    TuningHook("flashinfer.autotune_cache", "autotune_v2", tuning.context),
    TuningHook("flashinfer.autotune_cache", "autotune_v2_reload", tuning.afterwards),
    TuningHook(_AUTOTUNER, "AutoTuner.load_configs", tuning.afterwards),
    TuningHook(_AUTOTUNER, "AutoTuner.clear_cache", tuning.afterwards),
)
