"""Connects the Python implementations to the operators that the C++ library defines.

The C++ library defines the operators and implements them for CUDA. From here come the CPU kernels,
the fakes, and the two operators for which FlashInfer has no device kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fp4aot import _fakes
from fp4aot._reference import dequantize, interleave, kv_cache, quantize

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


_ON_EVERY_DEVICE = ("CPU", "CUDA")

_OVERLOADS = (
    _Overload("fp4_quantize", _fakes.fp4_quantize, quantize.fp4_quantize),
    _Overload("fp4_quantize.out", _fakes.fp4_quantize_out, quantize.fp4_quantize_out),
    _Overload(
        "block_scale_interleave", _fakes.block_scale_interleave, interleave.block_scale_interleave
    ),
    _Overload(
        "block_scale_interleave.out",
        _fakes.block_scale_interleave_out,
        interleave.block_scale_interleave_out,
    ),
    _Overload(
        "block_scale_interleave_reverse",
        _fakes.block_scale_interleave_reverse,
        interleave.block_scale_interleave_reverse,
    ),
    _Overload(
        "block_scale_interleave_reverse.out",
        _fakes.block_scale_interleave_reverse_out,
        interleave.block_scale_interleave_reverse_out,
    ),
    _Overload(
        "e2m1_and_ufp8sf_scale_to_float",
        _fakes.e2m1_and_ufp8sf_scale_to_float,
        dequantize.e2m1_and_ufp8sf_scale_to_float,
        _ON_EVERY_DEVICE,
    ),
    _Overload(
        "e2m1_and_ufp8sf_scale_to_float.out",
        _fakes.e2m1_and_ufp8sf_scale_to_float_out,
        dequantize.e2m1_and_ufp8sf_scale_to_float_out,
        _ON_EVERY_DEVICE,
    ),
    _Overload(
        "mxfp4_dequantize", _fakes.mxfp4_dequantize, dequantize.mxfp4_dequantize, _ON_EVERY_DEVICE
    ),
    _Overload(
        "mxfp4_dequantize.out",
        _fakes.mxfp4_dequantize_out,
        dequantize.mxfp4_dequantize_out,
        _ON_EVERY_DEVICE,
    ),
    # FlashInfer's own host code, compiled into the library, is this operator's CPU kernel.
    _Overload("mxfp4_dequantize_host", _fakes.mxfp4_dequantize_host, None),
    _Overload("mxfp4_dequantize_host.out", _fakes.mxfp4_dequantize_host_out, None),
    _Overload("nvfp4_kv_dequantize", _fakes.nvfp4_kv_dequantize, kv_cache.nvfp4_kv_dequantize),
    _Overload(
        "nvfp4_kv_dequantize.out", _fakes.nvfp4_kv_dequantize_out, kv_cache.nvfp4_kv_dequantize_out
    ),
    _Overload(
        "nvfp4_kv_dequantize_paged",
        _fakes.nvfp4_kv_dequantize_paged,
        kv_cache.nvfp4_kv_dequantize_paged,
    ),
    _Overload(
        "nvfp4_kv_dequantize_paged.out",
        _fakes.nvfp4_kv_dequantize_paged_out,
        kv_cache.nvfp4_kv_dequantize_paged_out,
    ),
)


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
