"""What this project ships: FlashInfer's FP4 modules, their exported functions, and the presets.

Data, no logic. To add a kernel: one row here, one operator file, one fake, one reference, one test.

A type schema is what TVM-FFI reports for an exported function, reduced to the argument types. The
build compares it with the compiled module and refuses a FlashInfer whose signature has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


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
    """

    name: str
    arguments: tuple[str, ...]
    operator: str | None = None
    reason: str = ""


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
    """

    name: str
    family: str
    generator: str
    architectures: tuple[str, ...]
    needs_fp4_instructions: bool
    functions: tuple[Function, ...]


@dataclass(frozen=True)
class Preset:
    """A named selection of modules."""

    name: str
    description: str
    modules: tuple[Module, ...]


_TENSOR: Final = "DLTensor*"
_OPTIONAL: Final = "Optional<DLTensor*>"
_LATER: Final = "not offered as an operator yet"

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
        reason=_LATER,
    ),
    Function(
        "silu_and_mul_scaled_nvfp4_experts_quantize",
        ("Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "bool", "int"),
        reason=_LATER,
    ),
    Function(
        "nvfp4_quant_and_per_token_scale",
        (_TENSOR, "float", _TENSOR, _TENSOR, _TENSOR, _OPTIONAL, "int", "int"),
        reason=_LATER,
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
    Function("fp4_gemm_tactic_num", (), operator="mm_fp4_tactic_count"),
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


def _dense(*architectures: str) -> tuple[Module, ...]:
    """Every module of the dense path for some targets."""
    groups = {
        kernels: tuple(name for name in architectures if name in targets)
        for kernels, targets in GEMM_ARCHITECTURES.items()
    }
    return (
        *(quantization(name) for name in architectures),
        kv_quantization(*architectures),
        # Its kernels need no FP4 instruction: a Hopper reads an FP4 KV cache too.
        kv_dequantization("9.0a", *architectures),
        *(gemm(kernels, *targets) for kernels, targets in groups.items() if targets),
    )


GEMM_ARCHITECTURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sm100": ("10.0a", "11.0a"),
        "sm103": ("10.3a",),
        "sm120": ("12.0a", "12.0f", "12.1a"),
    }
)
"""The targets that each group of GEMM kernels is written for."""

QUANTIZATION_ARCHITECTURES: Final = tuple(_QUANTIZATION_GENERATORS)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                "quick",
                "FP4 quantization for 12.0f; KV dequantization for 9.0a and 12.0f",
                (quantization("12.0f"), kv_dequantization("9.0a", "12.0f")),
            ),
            Preset(
                "dense-12.0f",
                "FP4 quantization, KV cache and GEMM for 12.0f: RTX PRO 6000, RTX 50 and DGX Spark",
                _dense("12.0f"),
            ),
            Preset(
                "dense-12.1a",
                "the same for 12.1a alone: DGX Spark",
                _dense("12.1a"),
            ),
            Preset(
                "dense",
                "FP4 quantization, KV cache and GEMM for every Blackwell",
                _dense("10.0a", "10.3a", "11.0a", "12.0f"),
            ),
        )
    }
)

NOT_SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "make_nvfp4_global_scale": "plain PyTorch: FlashInfer's works as it is",
        "nvfp4_batched_quantize": _LATER,
        "nvfp4_quantize_paged_kv_cache": _LATER,
        "nvfp4_kv_quantize": _LATER,
        "scaled_fp4_grouped_quantize": _LATER,
        "silu_and_mul_scaled_nvfp4_experts_quantize": _LATER,
        "shuffle_matrix_a": "plain PyTorch: FlashInfer's works as it is",
        "shuffle_matrix_sf_a": "PyTorch over block_scale_interleave; " + _LATER,
        "silu_and_mul_nvfp4_quantize": "a CuTe-DSL kernel, compiled at run time only",
        "get_fp4_quantization_module": "returns the JIT module that this package replaces",
        "NVFP44Over6Config": "the 4-over-6 recipe; " + _LATER,
        "NVFP44Over6ErrMode": "the 4-over-6 recipe; " + _LATER,
        "nvfp4_4over6_code": "the 4-over-6 recipe; " + _LATER,
        "nvfp4_4over6_from_code": "the 4-over-6 recipe; " + _LATER,
        "nvfp4_e4m3_max": "the 4-over-6 recipe; " + _LATER,
        "resolve_nvfp4_4over6": "the 4-over-6 recipe; " + _LATER,
    }
)
"""FlashInfer's public FP4 quantization functions that a wheel does not replace, and why."""

MEMORY_MEGABYTES: Final[Mapping[str, int]] = MappingProxyType({"quantization.cu": 1300})
"""Peak memory of the translation units that need more than the default. Measured, CUDA 13.0."""

SECONDS: Final[Mapping[str, int]] = MappingProxyType(
    {"quantization.cu": 115, "fp4_kv_dequantization.cu": 15}
)
"""Compile time on one core of the units that take longer than the default, for the ETA."""

DEFAULT_MEMORY_MEGABYTES: Final = 700
DEFAULT_SECONDS: Final = 10

DEFAULT_FLASHINFER: Final = "0.7.2"
DEFAULT_CUDA: Final = "13.0"
TORCH_TARGET: Final = "2.10"
"""The PyTorch release whose stable ABI the operators are compiled against: the wheel's floor."""
