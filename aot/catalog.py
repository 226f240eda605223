"""What this project ships: FlashInfer's FP4 modules and their exported functions.

Data, no logic; `aot.presets` selects from it. To add a kernel: one row here, one
operator file, one fake, one reference, one test.

A row is compared three times. The plan refuses an operator that no C++ source defines
(`aot.operator_sources`), and a function that the sources export and no row lists, or the other way
round (`aot.exports`). The operators call through C++ types that are generated from the argument
types (`aot.codegen.flashinfer_functions`). And what each compiled function reports of itself, its
type schema, is compared with them: a FlashInfer whose signature has changed is refused
(`aot.schemas`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aot.selection import Selection


@dataclass(frozen=True)
class Function:
    """One function that a FlashInfer module exports.

    Parameters
    ----------
    name
        The export name.
    arguments
        Its argument types, as TVM-FFI's type schema names them.
    operator
        The operator that calls it, or None when it is compiled with the module but not offered
        (`reason` says why).
    reason
        Why no operator calls it.
    result
        The type of its result.
    """

    name: str
    arguments: tuple[str, ...]
    operator: str | None = None
    reason: str = ""
    result: str = "None"


@dataclass(frozen=True)
class Module:
    """One FlashInfer JIT module.

    Parameters
    ----------
    name
        The name of its JIT specification.
    family
        Group in reports: quantization, kv_cache, ...
    generator
        ``package.module:function`` that returns the specification.
    architectures
        The targets it is built for, in the dotted form. Generators without a fixed target read
        them from ``FLASHINFER_CUDA_ARCH_LIST``.
    needs_fp4_instructions
        Whether the kernels are compiled out on targets without the e2m1 conversions.
    functions
        Everything it exports: the plan refuses an export that is not listed.
    selection
        The part of it that is built, or None for all of it.
    """

    name: str
    family: str
    generator: str
    architectures: tuple[str, ...]
    needs_fp4_instructions: bool
    functions: tuple[Function, ...]
    selection: Selection | None = None


_TENSOR: Final = "DLTensor*"
_OPTIONAL: Final = "Optional<DLTensor*>"

_QUANTIZATION_FUNCTIONS: Final = (
    Function(
        "fp4_quantize",
        (
            *(_TENSOR, _OPTIONAL, _TENSOR, _TENSOR, "int"),
            *("bool", "bool", "bool", "bool", "bool", "int"),
        ),
        operator="fp4_quantize",
    ),
    Function("block_scale_interleave_sm100", (_TENSOR, _TENSOR), operator="block_scale_interleave"),
    Function(
        "block_scale_interleave_reverse_sm100",
        (_TENSOR, _TENSOR),
        operator="block_scale_interleave_reverse",
    ),
    Function(
        "mxfp4_dequantize_host",
        (_TENSOR, _TENSOR, _TENSOR, "int"),
        operator="mxfp4_dequantize_host",
    ),
    Function(
        "e2m1_and_ufp8sf_scale_to_float_sm100",
        (_TENSOR, _TENSOR, _OPTIONAL, _TENSOR, "int", "int", "bool", "bool"),
        reason="host code that would synchronise the device: the operator of this name runs in "
        "PyTorch on every device instead",
    ),
    Function(
        "fp4_batched_quantize",
        ("Tensor", "Tensor", "Tensor", "Tensor", "int", "bool", "int"),
        operator="nvfp4_batched_quantize",
    ),
    Function(
        "silu_and_mul_scaled_nvfp4_experts_quantize",
        ("Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "bool", "int"),
        # Without its activation, the same function is `scaled_fp4_grouped_quantize`.
        operator="silu_and_mul_scaled_nvfp4_experts_quantize",
    ),
    Function(
        "nvfp4_quant_and_per_token_scale",
        (_TENSOR, "float", _TENSOR, _TENSOR, _TENSOR, _OPTIONAL, "int", "int"),
        operator="nvfp4_quantize_per_token",
    ),
)

_KV_DEQUANTIZATION_FUNCTIONS: Final = (
    Function("nvfp4_kv_dequant", (_TENSOR,) * 4, operator="nvfp4_kv_dequantize"),
    Function(
        "nvfp4_paged_kv_dequant",
        ((_TENSOR,) * 10) + ("int",),
        operator="nvfp4_kv_dequantize_paged",
    ),
)

_PAGE_FUNCTIONS: Final = (
    Function(
        "nvfp4_quantize_append_paged_kv_cache",
        (*(_TENSOR,) * 11, "float", "float", "int"),
        operator="nvfp4_quantize_append_paged_kv_cache",
    ),
    Function(
        "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
        (*(_TENSOR,) * 9, "int"),
        reason="the same by slots in place of pages: not offered yet",
    ),
    Function(
        "nvfp4_quantize_append_paged_mla_kv_cache",
        (*(_TENSOR,) * 10, "float", "float"),
        reason="the cache of multi-head latent attention: not offered yet",
    ),
    Function("append_paged_kv_cache", (*(_TENSOR,) * 9, "int"), reason="a cache without FP4"),
    Function("append_paged_mla_kv_cache", (_TENSOR,) * 9, reason="a cache without FP4"),
)

_GEMM_FUNCTIONS: Final = (
    Function("fp4_gemm", ((_TENSOR,) * 7) + ("int",), operator="mm_fp4"),
    Function("fp4_gemm_tactic_num", (), operator="_mm_fp4_tactic_count", result="int"),
)

_MOE_FUNCTIONS: Final = (
    Function(
        "nvfp4_moe",
        (
            # output, input and its scales, experts of each token and their weights
            *(_TENSOR, _TENSOR, _OPTIONAL, _TENSOR, _OPTIONAL),
            # weights and biases of both products
            *(_TENSOR, _OPTIONAL, _TENSOR, _OPTIONAL),
            # global scale of the input, block scales of the weights, alpha: of both products
            *(_TENSOR,) * 6,
            # parameters of the activation, workspace
            *(_OPTIONAL,) * 4,
            # layout of the input's scales, ranks, all-to-all, fused finalize
            *("bool", "int", "int", "int", "int", "bool", "bool"),
            # activation, two tactics, programmatic dependent launch
            *("int", "int", "int", "bool"),
        ),
        operator="cutlass_fused_moe",
    ),
    Function(
        "nvfp4_moe_workspace_size",
        (*("int",) * 10, *("bool",) * 3),
        operator="_cutlass_fused_moe_workspace_size",
        result="int",
    ),
    Function(
        "nvfp4_moe_tactic_count",
        ("int", "bool"),
        operator="_cutlass_fused_moe_tactic_count",
        result="int",
    ),
    Function(
        "nvfp4_moe_tactic_occupancy",
        ("int", "int", "bool"),
        operator="_cutlass_fused_moe_tactic_occupancy",
        result="int",
    ),
    Function(
        "nvfp4_moe_profile",
        # weights; product, tactic, preparation; sizes, ranks, activation; flags
        (_TENSOR, "int", "int", "bool", *("int",) * 10, *("bool",) * 6),
        operator="_cutlass_fused_moe_profile",
    ),
)


def _group_gemm_mxfp4(integers: int) -> Function:
    return Function(
        "group_gemm_mxfp4_nt_groupwise",
        (*(_TENSOR,) * 8, *("int",) * integers, "bool"),
        operator="group_gemm_mxfp8_mxfp4_nt_groupwise",
    )


_MOE_SELECTION: Final = Selection(
    sources=(
        "moe_gemm_kernels_fp4_fp4.cu",
        "moe_gemm_tma_warp_specialized_input.cu",
        "cutlass_heuristic.cpp",
        "lora.cpp",
        "envUtils.cpp",
        "logger.cpp",
        "stringUtils.cpp",
        "tllmException.cpp",
    ),
    # A launcher names the dtypes of its activations and weights side by side.
    containing=MappingProxyType({"*_gemm_grouped_*.generated.cu": "SafeFP4, SafeFP4"}),
    replaced=MappingProxyType(
        {
            "flashinfer_cutlass_fused_moe_binding.cu": "nvfp4_moe.cu",
            "cutlass_fused_moe_instantiation.cu": "nvfp4_moe_runners.cu",
        }
    ),
    # For the FP8 kernels that are compiled on the device's machine.
    dropped_linker_flags=("-lnvrtc",),
)


def _quantization(kernels: str, architecture: str) -> Module:
    return Module(
        name=f"fp4_quantization_{kernels}",
        family="quantization",
        generator=f"flashinfer.jit.fp4_quantization:gen_fp4_quantization_sm{kernels}_module",
        architectures=(architecture,),
        needs_fp4_instructions=True,
        functions=_QUANTIZATION_FUNCTIONS,
    )


def _gemm(kernels: str, *architectures: str) -> Module:
    return Module(
        # FlashInfer names the first of them without its architecture.
        name="fp4_gemm_cutlass" + ("" if kernels == "sm100" else f"_{kernels}"),
        family="gemm",
        generator=f"flashinfer.jit.gemm.core:gen_gemm_{kernels}_module_cutlass_fp4",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=_GEMM_FUNCTIONS,
    )


def _moe(kernels: str, *architectures: str) -> Module:
    return Module(
        name=f"fused_moe_{kernels}",
        family="moe",
        generator=f"flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm{kernels}_module",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=_MOE_FUNCTIONS,
        selection=_MOE_SELECTION,
    )


def _group_gemm(kernels: str, *architectures: str, **functions: Function) -> Module:
    # Whichever of its two bindings: both name what is not here.
    bindings = {"mxfp4": f"gemm_{kernels}_binding.cu", "nvfp4": f"group_gemm_{kernels}_binding.cu"}
    return Module(
        name=f"gemm_{kernels}",
        family="group_gemm",
        generator=f"flashinfer.jit.gemm.core:gen_gemm_{kernels}_module",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=tuple(functions.values()),
        selection=Selection(
            sources=tuple(f"group_gemm_{weights}_groupwise_*.cu" for weights in functions),
            replaced=MappingProxyType(
                {bindings[weights]: f"{weights}_group_gemm_{kernels}.cu" for weights in functions}
            ),
        ),
    )


_BLACKWELL: Final = ("10.0a", "10.3a", "11.0a", "12.0a", "12.0f", "12.1a")

MODULES: Final = (
    _quantization("100", "10.0a"),
    _quantization("103", "10.3a"),
    _quantization("110", "11.0a"),
    _quantization("120", "12.0a"),
    _quantization("120f", "12.0f"),
    _quantization("121", "12.1a"),
    Module(
        name="fp4_kv_quant",
        family="kv_cache",
        generator="flashinfer.jit.fp4_kv_quantization:gen_fp4_kv_quantization_module",
        architectures=_BLACKWELL,
        needs_fp4_instructions=True,
        functions=(Function("nvfp4_kv_quant", (_TENSOR,) * 4, operator="nvfp4_kv_quantize"),),
    ),
    Module(
        name="fp4_kv_dequant",
        family="kv_cache",
        generator="flashinfer.jit.fp4_kv_dequantization:gen_fp4_kv_dequantization_module",
        # Its kernels need no FP4 instruction: a Hopper reads an FP4 KV cache too.
        architectures=("9.0a", *_BLACKWELL),
        needs_fp4_instructions=False,
        functions=_KV_DEQUANTIZATION_FUNCTIONS,
    ),
    Module(
        name="page",
        family="kv_cache",
        generator="flashinfer.jit.page:gen_page_module",
        architectures=("9.0a", *_BLACKWELL),
        needs_fp4_instructions=False,
        functions=_PAGE_FUNCTIONS,
    ),
    _gemm("sm100", "10.0a", "11.0a"),
    _gemm("sm103", "10.3a"),
    _gemm("sm120", "12.0a", "12.0f", "12.1a"),
    # FlashInfer's module is for every dtype; of it, what NVFP4 needs.
    _moe("100", "10.0a", "11.0a"),
    _moe("103", "10.3a"),
    _moe("120", "12.0a", "12.0f", "12.1a"),
    # The FP4 part of CUTLASS's grouped GEMMs. FlashInfer's older kernels also choose between one
    # and two multiprocessors for a tile.
    _group_gemm("sm100", "10.0a", "10.3a", mxfp4=_group_gemm_mxfp4(6)),
    _group_gemm(
        *("sm120", "12.0a", "12.0f", "12.1a"),
        mxfp4=_group_gemm_mxfp4(5),
        nvfp4=Function(
            "group_gemm_nvfp4_nt_groupwise",
            (*(_TENSOR,) * 9, *("int",) * 5, "bool"),
            operator="group_gemm_nvfp4_nt_groupwise",
        ),
    ),
)
"""Every module that there is, each with every target that it can be built for."""

DEFAULT_FLASHINFER: Final = "0.7.2"
DEFAULT_CUDA: Final = "13.0"
TORCH_TARGET: Final = "2.10"
"""The PyTorch release whose stable ABI the operators are compiled against: the wheel's floor."""
