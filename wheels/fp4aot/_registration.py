"""Connects the Python implementations to the operators that the C++ library defines.

The C++ library defines the operators and implements them for CUDA. From here come the CPU kernels,
the fakes, and the two operators for which FlashInfer has no device kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fp4aot import _fakes
from fp4aot._reference import (
    batched,
    dequantize,
    gemm,
    group_gemm,
    interleave,
    kv_cache,
    moe,
    per_token,
    quantize,
)

# A torch.library.Library undoes its registrations when it is collected. These live as long as the
# process, and this is where they live.
_libraries: list[torch.library.Library] = []


@dataclass(frozen=True)
class _Overload:
    """The Python implementations of one operator overload.

    Attributes
    ----------
    name
        Operator and overload without the namespace, e.g. `fp4_quantize.out`.
    fake
        Shapes, dtypes and strides, for tracing.
    kernel
        The implementation in plain PyTorch, or None where C++ has all of them.
    dispatch_keys
        Where `kernel` serves.
    """

    name: str
    fake: Callable[..., Any]
    kernel: Callable[..., Any] | None
    dispatch_keys: tuple[str, ...] = ("CPU",)


def _overloads(
    fakes: ModuleType,
    kernels: ModuleType | None,
    *operators: str,
    dispatch_keys: tuple[str, ...] = ("CPU",),
) -> tuple[_Overload, ...]:
    """Both overloads of some operators, whose functions are named alike in both modules."""
    return tuple(
        _Overload(
            f"{operator}.out" if suffix else operator,
            getattr(fakes, operator + suffix),
            getattr(kernels, operator + suffix) if kernels else None,
            dispatch_keys,
        )
        for operator in operators
        for suffix in ("", "_out")
    )


_OVERLOADS = (
    *_overloads(_fakes.quantize, quantize, "fp4_quantize"),
    *_overloads(
        _fakes.interleave, interleave, "block_scale_interleave", "block_scale_interleave_reverse"
    ),
    *_overloads(
        _fakes.dequantize,
        dequantize,
        "e2m1_and_ufp8sf_scale_to_float",
        "mxfp4_dequantize",
        dispatch_keys=("CPU", "CUDA"),
    ),
    # FlashInfer's own host code, compiled into the library, is this operator's CPU kernel.
    *_overloads(_fakes.dequantize, None, "mxfp4_dequantize_host"),
    *_overloads(_fakes.gemm, gemm, "mm_fp4"),
    *_overloads(
        _fakes.group_gemm,
        group_gemm,
        "group_gemm_nvfp4_nt_groupwise",
        "group_gemm_mxfp8_mxfp4_nt_groupwise",
    ),
    *_overloads(_fakes.moe, moe, "cutlass_fused_moe"),
    *_overloads(
        _fakes.kv_cache,
        kv_cache,
        "nvfp4_kv_quantize",
        "nvfp4_kv_dequantize",
        "nvfp4_kv_dequantize_paged",
    ),
    *_overloads(_fakes.per_token, per_token, "nvfp4_quantize_per_token"),
    *_overloads(
        _fakes.batched,
        batched,
        "nvfp4_batched_quantize",
        "scaled_fp4_grouped_quantize",
        "silu_and_mul_scaled_nvfp4_experts_quantize",
    ),
)


DEVICE_OPERATORS = tuple(
    overload.name
    for overload in _OVERLOADS
    if overload.kernel is not None
    and overload.dispatch_keys == ("CPU",)
    and not overload.name.endswith(".out")
)
"""Operators whose CUDA kernels are compiled code."""


def register(namespace: str = "fp4aot") -> None:
    """Register the CPU kernels and the fakes. Call once, after the operators are defined.

    Parameters
    ----------
    namespace
        Where the operators are defined; tests define them in a namespace of their own.

    Raises
    ------
    RuntimeError
        When the namespace does not define an operator, or has been registered before.
    """
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    for overload in _OVERLOADS:
        torch.library.register_fake(
            f"{namespace}::{overload.name}", overload.fake, lib=library, allow_override=False
        )
        for dispatch_key in overload.dispatch_keys:
            if overload.kernel is not None:
                library.impl(  # type: ignore[no-untyped-call]
                    overload.name, overload.kernel, dispatch_key
                )
    _libraries.append(library)
