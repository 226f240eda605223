"""The operators in plain PyTorch: what they refuse, what they return, and references.

A module holds a family. From its two functions for an operator `structured` derives fakes and CPU
kernels, which `register` connects to the schemas of the C++ library; the CUDA kernels are in C++.
The references are also what the tests hold the GPU against.
"""

from fp4aot.operators import (  # noqa: F401 (each adds its operators)
    batched,
    dequantize,
    grouped_matmul,
    interleave,
    matmul,
    mixture_of_experts,
    nvfp4_kv_cache,
    per_token,
    quantize,
)
from fp4aot.operators.structured import OPERATORS, register

__all__ = ["DEVICE_OPERATORS", "register"]

DEVICE_OPERATORS = tuple(name for name, made in OPERATORS.items() if made.keys == ("CPU",))
"""Operators whose CUDA kernels are compiled code."""
