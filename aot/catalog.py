"""What this project ships: FlashInfer's FP4 modules and their exported functions.

Data, no logic; `aot.presets` selects from it. To add a kernel: one row here, one
operator file, one fake, one reference, one test.

A type schema is what TVM-FFI reports for an exported function, reduced to the argument types. The
build compares it with the compiled module and refuses a FlashInfer whose signature has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        Everything it exports. An export that is not listed fails the build.
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

_KV_QUANTIZATION_FUNCTIONS: Final = (
    Function("nvfp4_kv_quant", (_TENSOR,) * 4, operator="nvfp4_kv_quantize"),
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
)

_GROUP_GEMM_NVFP4: Final = Function(
    "group_gemm_nvfp4_nt_groupwise",
    (*(_TENSOR,) * 9, *("int",) * 5, "bool"),
    operator="group_gemm_nvfp4_nt_groupwise",
)

_QUANTIZATION_GENERATORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "10.0a": "sm100",
        "10.3a": "sm103",
        "11.0a": "sm110",
        "12.0a": "sm120",
        "12.0f": "sm120f",
        "12.1a": "sm121",
    }
)


def quantization(architecture: str) -> Module:
    """FP4 quantization for one target: FlashInfer has a module for each."""
    suffix = _QUANTIZATION_GENERATORS[architecture]
    return Module(
        name=f"fp4_quantization_{suffix.removeprefix('sm')}",
        family="quantization",
        generator=f"flashinfer.jit.fp4_quantization:gen_fp4_quantization_{suffix}_module",
        architectures=(architecture,),
        needs_fp4_instructions=True,
        functions=_QUANTIZATION_FUNCTIONS,
    )


def kv_dequantization(*architectures: str) -> Module:
    """NVFP4 KV cache dequantization: one module for any targets from 8.0 up."""
    return Module(
        name="fp4_kv_dequant",
        family="kv_cache",
        generator="flashinfer.jit.fp4_kv_dequantization:gen_fp4_kv_dequantization_module",
        architectures=architectures,
        needs_fp4_instructions=False,
        functions=_KV_DEQUANTIZATION_FUNCTIONS,
    )


def kv_quantization(*architectures: str) -> Module:
    """NVFP4 KV cache quantization: one module for any targets with FP4 conversions."""
    return Module(
        name="fp4_kv_quant",
        family="kv_cache",
        generator="flashinfer.jit.fp4_kv_quantization:gen_fp4_kv_quantization_module",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=_KV_QUANTIZATION_FUNCTIONS,
    )


def gemm(kernels: str, *architectures: str) -> Module:
    """FP4 GEMM of CUTLASS. FlashInfer has a module for each of three groups of kernels.

    Parameters
    ----------
    kernels
        ``"sm100"`` (10.0 and 11.0), ``"sm103"`` (10.3) or ``"sm120"`` (12.0 and 12.1).
    architectures
        The targets.
    """
    return Module(
        # FlashInfer names the first of them without its architecture.
        name="fp4_gemm_cutlass" + ("" if kernels == "sm100" else f"_{kernels}"),
        family="gemm",
        generator=f"flashinfer.jit.gemm.core:gen_gemm_{kernels}_module_cutlass_fp4",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=_GEMM_FUNCTIONS,
    )


def moe(kernels: str, *architectures: str) -> Module:
    """Mixture of experts of CUTLASS, its NVFP4 part: FlashInfer's module is for every dtype.

    Parameters
    ----------
    kernels
        ``"100"`` (10.0 and 11.0), ``"103"`` (10.3) or ``"120"`` (12.0 and 12.1).
    architectures
        The targets.
    """
    return Module(
        name=f"fused_moe_{kernels}",
        family="moe",
        generator=f"flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm{kernels}_module",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=_MOE_FUNCTIONS,
        selection=_MOE_SELECTION,
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


def group_gemm(kernels: str, *architectures: str) -> Module:
    """Take the FP4 part of CUTLASS's grouped GEMMs.

    Parameters
    ----------
    kernels
        ``"sm100"`` (10.0 and 10.3: MXFP8 by MXFP4) or ``"sm120"`` (12.0 and 12.1: that, and NVFP4).
    architectures
        The targets.
    """
    chosen = GROUP_GEMM_FORMATS[kernels]
    # FlashInfer's older kernels also choose between one and two multiprocessors for a tile.
    mxfp4 = Function(
        "group_gemm_mxfp4_nt_groupwise",
        (*(_TENSOR,) * 8, *("int",) * (6 if kernels == "sm100" else 5), "bool"),
        operator="group_gemm_mxfp8_mxfp4_nt_groupwise",
    )
    functions = {"mxfp4": mxfp4, "nvfp4": _GROUP_GEMM_NVFP4}
    # Whichever of its two bindings: both name what is not here.
    bindings = {"mxfp4": f"gemm_{kernels}_binding.cu", "nvfp4": f"group_gemm_{kernels}_binding.cu"}
    return Module(
        name=f"gemm_{kernels}",
        family="group_gemm",
        generator=f"flashinfer.jit.gemm.core:gen_gemm_{kernels}_module",
        architectures=architectures,
        needs_fp4_instructions=True,
        functions=tuple(functions[name] for name in chosen),
        selection=Selection(
            sources=tuple(f"group_gemm_{name}_groupwise_*.cu" for name in chosen),
            replaced=MappingProxyType(
                {bindings[name]: f"{name}_group_gemm_{kernels}.cu" for name in chosen}
            ),
        ),
    )


GROUP_GEMM_FORMATS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"sm100": ("mxfp4",), "sm120": ("mxfp4", "nvfp4")}
)
"""The formats of weights that each group of grouped GEMM kernels has."""


MOE_ARCHITECTURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "100": ("10.0a", "11.0a"),
        "103": ("10.3a",),
        "120": ("12.0a", "12.0f", "12.1a"),
    }
)
"""The targets of each group of kernels for mixtures of experts."""

GROUP_GEMM_ARCHITECTURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sm100": ("10.0a", "10.3a"),
        "sm120": ("12.0a", "12.0f", "12.1a"),
    }
)
"""The targets that each group of grouped GEMM kernels is written for."""

GEMM_ARCHITECTURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sm100": ("10.0a", "11.0a"),
        "sm103": ("10.3a",),
        "sm120": ("12.0a", "12.0f", "12.1a"),
    }
)
"""The targets that each group of GEMM kernels is written for."""

QUANTIZATION_ARCHITECTURES: Final = tuple(_QUANTIZATION_GENERATORS)

DEFAULT_FLASHINFER: Final = "0.7.2"
DEFAULT_CUDA: Final = "13.0"
TORCH_TARGET: Final = "2.10"
"""The PyTorch release whose stable ABI the operators are compiled against: the wheel's floor."""
