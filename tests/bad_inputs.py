"""Calls that every implementation of an operator must refuse, and what the error must say.

One table for the CPU kernels, the fakes and the CUDA kernels: a call that one of them accepts, or
refuses in other words, is a bug in one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class BadInput:
    """One refused call.

    Attributes
    ----------
    case
        Name of the test.
    operator
        Operator, with `.out` for that overload.
    build
        Makes the arguments for a device.
    fragments
        Regular expressions that the error text must contain, beside the operator's name.
    """

    case: str
    operator: str
    build: Callable[[str], Arguments]
    fragments: tuple[str, ...]


def other_device(device: str) -> str:
    """Return a device that a tensor can be on without being on `device`."""
    return "cpu" if device.startswith("cuda") else "meta"


def _scale(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (1,), dtype=dtype, device=device)


def _empty(
    device: str, *shape: int, dtype: torch.dtype = torch.uint8, stretch: int = 1
) -> torch.Tensor:
    """Make a tensor; with `stretch`, its first dimension repeats one row that many times."""
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    return tensor if stretch == 1 else tensor.expand(stretch, *shape[1:])


def _quantize(**changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of fp4_quantize with some arguments replaced.

    A value may be a function of the device.
    """

    def build(device: str) -> Arguments:
        arguments: dict[str, Any] = {
            "input": _empty(device, 4, 64, dtype=torch.bfloat16),
            "global_scale": _scale(device),
        }
        arguments.update(changes)
        resolved = {
            name: value(device) if callable(value) else value for name, value in arguments.items()
        }
        return (resolved.pop("input"), resolved.pop("global_scale")), resolved

    return build


def _quantize_out(**changes: Any) -> Callable[[str], Arguments]:
    def build(device: str) -> Arguments:
        buffers = {
            "values": lambda d: _empty(d, 4, 32),
            "block_scales": lambda d: _empty(d, 128, 4),
        }
        return _quantize(**{**buffers, **changes})(device)

    return build


def _call(*positional: Any, **keywords: Any) -> Callable[[str], Arguments]:
    """Build a call from values and functions of the device."""

    def build(device: str) -> Arguments:
        def resolve(value: Any) -> Any:
            return value(device) if callable(value) else value

        return (
            tuple(resolve(value) for value in positional),
            {name: resolve(value) for name, value in keywords.items()},
        )

    return build


def _bytes(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    return lambda device: _empty(device, *shape, **options)


def _every_other(*shape: int) -> Callable[[str], torch.Tensor]:
    """Make a tensor whose last dimension has stride 2."""
    *batch, last = shape
    # A view by as_strided: indexing a fake CUDA tensor needs a torch that is built for CUDA.
    return lambda device: _empty(device, *batch, 2 * last).as_strided(
        shape, [2 * step for step in torch.empty(shape, device="meta").stride()]
    )


def _elsewhere(make: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
    return lambda device: make(other_device(device))


def _paged(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid paged call (5 pages of 4 tokens, 2 heads of 32) with arguments replaced."""

    def build(device: str) -> Arguments:
        arguments: dict[str, Any] = {
            "paged_k_cache": _bytes(5, 4, 2, 16),
            "paged_v_cache": _bytes(5, 4, 2, 16),
            "k_block_scales": _bytes(5, 4, 2, 2),
            "v_block_scales": _bytes(5, 4, 2, 2),
            "block_tables": _bytes(3, 2, dtype=torch.int32),
            "seq_lens": _bytes(3, dtype=torch.int32),
            "k_scale": _scale,
            "v_scale": _scale,
            "kv_layout": 0,
        }
        if out:
            arguments["output_k"] = _bytes(3, 8, 2, 32, dtype=torch.bfloat16)
            arguments["output_v"] = _bytes(3, 8, 2, 32, dtype=torch.bfloat16)
        else:
            arguments["max_seq_len"] = 8
            arguments["output_dtype"] = torch.bfloat16
        arguments.update(changes)
        return (), {
            name: value(device) if callable(value) else value for name, value in arguments.items()
        }

    return build


_HALF = torch.float16

QUANTIZE = (
    BadInput(
        "input dtype",
        "fp4_quantize",
        _quantize(input=_bytes(4, 64, dtype=torch.float32)),
        ("'input'", "float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    BadInput(
        "input of one dimension",
        "fp4_quantize",
        _quantize(input=_bytes(64, dtype=_HALF)),
        ("'input'", r"\[64\]", "two or more dimensions"),
    ),
    BadInput(
        "columns",
        "fp4_quantize",
        _quantize(input=_bytes(4, 40, dtype=_HALF)),
        ("'input'", "40 values", "last dimension", "multiple of 16"),
    ),
    BadInput(
        "columns of mxfp4",
        "fp4_quantize",
        _quantize(input=_bytes(4, 48, dtype=_HALF), sf_vec_size=32, sf_use_ue8m0=True),
        ("'input'", "48 values", "multiple of 32"),
    ),
    BadInput(
        "column-major columns",
        "fp4_quantize",
        _quantize(input=lambda device: _empty(device, 64, 40, dtype=_HALF).t()),
        ("'input'", "40 values", "contiguous second-to-last dimension", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "fp4_quantize",
        _quantize(input=_bytes(1, 16, dtype=_HALF, stretch=2**31)),
        ("'input'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "ue8m0 with blocks of 16",
        "fp4_quantize",
        _quantize(sf_use_ue8m0=True),
        ("'sf_vec_size'", "16 with sf_use_ue8m0=True", "NVFP4", "MXFP4"),
    ),
    BadInput(
        "e4m3 with blocks of 32",
        "fp4_quantize",
        _quantize(sf_vec_size=32),
        ("'sf_vec_size'", "32 with sf_use_ue8m0=False", "NVFP4", "MXFP4"),
    ),
    BadInput(
        "8x4 without swizzling",
        "fp4_quantize",
        _quantize(is_sf_swizzled_layout=False, is_sf_8x4_layout=True),
        ("'is_sf_8x4_layout'", "is_sf_swizzled_layout=False"),
    ),
    BadInput(
        "no global scale",
        "fp4_quantize",
        _quantize(global_scale=None),
        ("'global_scale'", "None", "float32"),
    ),
    BadInput(
        "inversed without a global scale",
        "fp4_quantize",
        _quantize(
            global_scale=None, sf_vec_size=32, sf_use_ue8m0=True, is_global_scale_inversed=True
        ),
        ("'is_global_scale_inversed'", "without a global_scale"),
    ),
    BadInput(
        "bfloat16 global scale",
        "fp4_quantize",
        _quantize(global_scale=lambda device: _scale(device, dtype=torch.bfloat16)),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale of neither one nor M elements",
        "fp4_quantize",
        _quantize(global_scale=lambda device: _scale(device, 3)),
        ("'global_scale'", r"\[3\]", "one per row: 4"),
    ),
    BadInput(
        "ignored global scale of the wrong dtype",
        "fp4_quantize",
        _quantize(
            sf_vec_size=32,
            sf_use_ue8m0=True,
            global_scale=lambda device: _scale(device, dtype=torch.float64),
        ),
        ("'global_scale'", "float64", "float32"),
    ),
    BadInput(
        "global scale elsewhere",
        "fp4_quantize",
        _quantize(global_scale=_elsewhere(_scale)),
        ("'global_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "recipe from the environment",
        "fp4_quantize",
        _quantize(nvfp4_4over6=-1),
        ("'nvfp4_4over6': got -1", "0 .*or the code of a 4-over-6 recipe", "nvfp4_4over6_code"),
    ),
    BadInput(
        "recipe without its first bit",
        "fp4_quantize",
        _quantize(nvfp4_4over6=2),
        ("'nvfp4_4over6': got 2,", "4-over-6"),
    ),
    BadInput(
        "recipe with an unknown error mode",
        "fp4_quantize",
        _quantize(nvfp4_4over6=9),
        ("'nvfp4_4over6': got 9,", "4-over-6"),
    ),
    BadInput(
        "recipe with an unknown bit",
        "fp4_quantize",
        _quantize(nvfp4_4over6=33),
        ("'nvfp4_4over6': got 33,", "4-over-6"),
    ),
    BadInput(
        "recipe of float8",
        "fp4_quantize",
        _quantize(input=_bytes(4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'input' of .*float8_e4m3fn", "expected 0"),
    ),
    BadInput(
        "recipe of mxfp4",
        "fp4_quantize",
        _quantize(sf_vec_size=32, sf_use_ue8m0=True, nvfp4_4over6=23),
        ("'nvfp4_4over6': got 23 with sf_use_ue8m0=True", "expected 0", "MXFP4"),
    ),
    BadInput(
        "values of the wrong shape",
        "fp4_quantize.out",
        _quantize_out(values=_bytes(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    BadInput(
        "values of the wrong dtype",
        "fp4_quantize.out",
        _quantize_out(values=_bytes(4, 32, dtype=torch.int8)),
        ("'values'", "int8", "uint8"),
    ),
    BadInput(
        "values of the wrong strides",
        "fp4_quantize.out",
        _quantize_out(values=_every_other(4, 32)),
        ("'values'", r"strides \[64, 2\]", r"strides \[32, 1\]"),
    ),
    BadInput(
        "values elsewhere",
        "fp4_quantize.out",
        _quantize_out(values=_elsewhere(_bytes(4, 32))),
        ("'values'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "unpadded scales",
        "fp4_quantize.out",
        _quantize_out(block_scales=_bytes(4, 4)),
        ("'block_scales'", r"\[4, 4\]", r"\[128, 4\]"),
    ),
    BadInput(
        "padded scales for 8x4",
        "fp4_quantize.out",
        _quantize_out(is_sf_8x4_layout=True),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    BadInput(
        "flat scales",
        "fp4_quantize.out",
        _quantize_out(block_scales=_bytes(512)),
        ("'block_scales'", r"\[512\]", r"\[128, 4\]"),
    ),
    BadInput(
        "row-major buffers for a column-major input",
        "fp4_quantize.out",
        _quantize_out(
            input=lambda device: _empty(device, 4, 64, dtype=_HALF).t(),
            values=_bytes(32, 4),
            block_scales=lambda device: _empty(device, 128, 4).t(),
        ),
        ("'values'", r"strides \[4, 1\]", r"shape \[32, 4\] with strides \[1, 32\]"),
    ),
)

INTERLEAVE = (
    BadInput(
        "dtype",
        "block_scale_interleave",
        _call(_bytes(4, 4, dtype=torch.float16)),
        ("'unswizzled_sf'", "float16", "uint8 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        "block_scale_interleave",
        _call(_bytes(4)),
        ("'unswizzled_sf'", r"\[4\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "too many scales",
        "block_scale_interleave",
        _call(_bytes(1, 128, 4, stretch=2**22)),
        ("'unswizzled_sf'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "out of the wrong shape",
        "block_scale_interleave.out",
        _call(_bytes(4, 4), out=_bytes(16)),
        ("'out'", r"\[16\]", r"\[512\]"),
    ),
    BadInput(
        "out of the wrong dtype",
        "block_scale_interleave.out",
        _call(_bytes(4, 4, dtype=torch.bfloat16), out=_bytes(512)),
        ("'out'", "uint8", "bfloat16"),
    ),
    BadInput(
        "out elsewhere",
        "block_scale_interleave.out",
        _call(_bytes(4, 4), out=_elsewhere(_bytes(512))),
        ("'out'", "device (cpu|meta)", "'unswizzled_sf'"),
    ),
    BadInput(
        "dtype of the reverse",
        "block_scale_interleave_reverse",
        _call(_bytes(128, 4, dtype=torch.bfloat16)),
        ("'interleaved_sf'", "bfloat16", "uint8"),
    ),
    BadInput(
        "flat buffer",
        "block_scale_interleave_reverse",
        _call(_bytes(512)),
        ("'interleaved_sf'", r"\[512\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "unpadded rows",
        "block_scale_interleave_reverse",
        _call(_bytes(100, 4)),
        ("'interleaved_sf'", r"\[100, 4\]", "divisible by 128"),
    ),
    BadInput(
        "unpadded columns",
        "block_scale_interleave_reverse",
        _call(_bytes(2, 128, 6)),
        ("'interleaved_sf'", r"\[2, 128, 6\]", "divisible by 4"),
    ),
    BadInput(
        "out of the reverse",
        "block_scale_interleave_reverse.out",
        _call(_bytes(128, 4), out=_bytes(512)),
        ("'out'", r"\[512\]", r"\[128, 4\]"),
    ),
)

_NVFP4 = (_bytes(4, 32), _bytes(128, 4), _scale)

DEQUANTIZE = (
    BadInput(
        "packed dtype",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(_bytes(4, 32, dtype=torch.int8), *_NVFP4[1:]),
        ("'e2m1_tensor'", "int8", "uint8"),
    ),
    BadInput(
        "packed rank",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(_bytes(1, 4, 32), *_NVFP4[1:]),
        ("'e2m1_tensor'", r"\[1, 4, 32\]", "2 dimensions"),
    ),
    BadInput(
        "columns",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(_bytes(4, 20), *_NVFP4[1:]),
        ("'e2m1_tensor'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "number of scales",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4, is_sf_swizzled_layout=False),
        ("'ufp8_scale_tensor'", r"\[128, 4\]", "4 x 4 scales", "layout_linear"),
    ),
    BadInput(
        "scale dtype",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(_NVFP4[0], _bytes(128, 4, dtype=torch.float8_e4m3fn), _scale),
        ("'ufp8_scale_tensor'", "float8_e4m3fn", "uint8"),
    ),
    BadInput(
        "scales elsewhere",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(_NVFP4[0], _elsewhere(_bytes(128, 4)), _scale),
        ("'ufp8_scale_tensor'", "device (cpu|meta)", "'e2m1_tensor'"),
    ),
    BadInput(
        "no global scale",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4[:2]),
        ("'global_scale_tensor'", "None", "float32"),
    ),
    BadInput(
        "global scale dtype",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4[:2], lambda device: _scale(device, dtype=torch.float16)),
        ("'global_scale_tensor'", "float16", "float32"),
    ),
    BadInput(
        "global scale of two elements",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4[:2], lambda device: _scale(device, 2)),
        ("'global_scale_tensor'", r"\[2\]", "one element"),
    ),
    BadInput(
        "scale format",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4, ufp8_type=2),
        ("'ufp8_type'", "got 2", "UE8M0", "E4M3"),
    ),
    BadInput(
        "block size",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4, sf_vec_size=0),
        ("'sf_vec_size'", "got 0", "positive even"),
    ),
    BadInput(
        "8x4 without swizzling",
        "e2m1_and_ufp8sf_scale_to_float",
        _call(*_NVFP4, is_sf_swizzled_layout=False, is_sf_8x4_layout=True),
        ("'is_sf_8x4_layout'", "is_sf_swizzled_layout=False"),
    ),
    BadInput(
        "out",
        "e2m1_and_ufp8sf_scale_to_float.out",
        _call(*_NVFP4, out=_bytes(4, 64, dtype=torch.float16)),
        ("'out'", "float16", "float32"),
    ),
    BadInput(
        "layout number",
        "mxfp4_dequantize",
        _call(_bytes(4, 32), _bytes(128, 4), 3),
        ("'sf_layout'", "got 3", "linear"),
    ),
    BadInput(
        "number of scales",
        "mxfp4_dequantize",
        _call(_bytes(4, 32), _bytes(4, 4), 1),
        ("'a_sf'", r"\[4, 4\]", "8 x 4 scales", "layout_8x4"),
    ),
    BadInput(
        "out of the wrong shape",
        "mxfp4_dequantize.out",
        _call(_bytes(4, 32), _bytes(128, 4), out=_bytes(4, 32, dtype=torch.float32)),
        ("'out'", r"\[4, 32\]", r"\[4, 64\]"),
    ),
)

# The host function exists for CPU tensors only, so these are for device "cpu".
HOST = (
    BadInput(
        "weight dtype",
        "mxfp4_dequantize_host",
        _call(_bytes(4, 32, dtype=torch.int8), _bytes(4, 2)),
        ("'weight'", "int8", "uint8"),
    ),
    BadInput(
        "scale shape",
        "mxfp4_dequantize_host",
        _call(_bytes(4, 32), _bytes(4, 4)),
        ("'scale'", r"\[4, 4\]", r"\[4, 64 / 32\]"),
    ),
    BadInput(
        "group size",
        "mxfp4_dequantize_host",
        _call(_bytes(4, 32), _bytes(4, 2), 0),
        ("'group_size'", "got 0", "positive"),
    ),
)

_KV = (_bytes(4, 32), _bytes(4, 4), _scale)

KV_CACHE = (
    BadInput(
        "data dtype",
        "nvfp4_kv_dequantize",
        _call(_bytes(4, 32, dtype=torch.int8), *_KV[1:], torch.bfloat16),
        ("'fp4_data'", "int8", "uint8"),
    ),
    BadInput(
        "data rank",
        "nvfp4_kv_dequantize",
        _call(_bytes(2, 4, 32), *_KV[1:], torch.bfloat16),
        ("'fp4_data'", r"\[2, 4, 32\]", "2 dimensions"),
    ),
    BadInput(
        "columns",
        "nvfp4_kv_dequantize",
        _call(_bytes(4, 20), *_KV[1:], torch.bfloat16),
        ("'fp4_data'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "swizzled scales",
        "nvfp4_kv_dequantize",
        _call(_KV[0], _bytes(128, 4), _scale, torch.bfloat16),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]", "linear"),
    ),
    BadInput(
        "scale dtype",
        "nvfp4_kv_dequantize",
        _call(_KV[0], _bytes(4, 4, dtype=torch.float32), _scale, torch.bfloat16),
        ("'block_scales'", "float32", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_kv_dequantize",
        _call(*_KV[:2], lambda device: _scale(device, dtype=torch.bfloat16), torch.bfloat16),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_kv_dequantize",
        _call(*_KV[:2], _elsewhere(_scale), torch.bfloat16),
        ("'global_scale'", "device (cpu|meta)", "'fp4_data'"),
    ),
    BadInput(
        "global scale of two elements",
        "nvfp4_kv_dequantize",
        _call(*_KV[:2], lambda device: _scale(device, 2), torch.bfloat16),
        ("'global_scale'", r"\[2\]", "one element"),
    ),
    BadInput(
        "output dtype",
        "nvfp4_kv_dequantize",
        _call(*_KV, torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "too many values",
        "nvfp4_kv_dequantize",
        _call(_bytes(1, 8, stretch=2**27), _bytes(1, 1, stretch=2**27), _scale, torch.bfloat16),
        ("'fp4_data'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too long a row",
        "nvfp4_kv_dequantize",
        _call(_bytes(1, 49149 * 8), _bytes(1, 49149), _scale, torch.bfloat16),
        ("'fp4_data'", "786384", "at most 786368", "shared memory"),
    ),
    BadInput(
        "out dtype",
        "nvfp4_kv_dequantize.out",
        _call(*_KV, out=_bytes(4, 64, dtype=torch.float32)),
        ("'out'", "float32", "float16 or .*bfloat16"),
    ),
    BadInput(
        "out strides",
        "nvfp4_kv_dequantize.out",
        _call(*_KV, out=lambda device: _empty(device, 64, 4, dtype=_HALF).t()),
        ("'out'", r"strides \[1, 4\]", r"strides \[64, 1\]"),
    ),
)

PAGED = (
    BadInput(
        "cache dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(paged_v_cache=_bytes(5, 4, 2, 16, dtype=torch.int8)),
        ("'paged_v_cache'", "int8", "uint8"),
    ),
    BadInput(
        "cache rank",
        "nvfp4_kv_dequantize_paged",
        _paged(paged_k_cache=_bytes(5, 4, 16)),
        ("'paged_k_cache'", r"\[5, 4, 16\]", "4 dimensions"),
    ),
    BadInput(
        "head size",
        "nvfp4_kv_dequantize_paged",
        _paged(paged_k_cache=_bytes(5, 4, 2, 12)),
        ("'paged_k_cache'", "head_dim 24", "multiple of 16"),
    ),
    BadInput(
        "caches that differ",
        "nvfp4_kv_dequantize_paged",
        _paged(paged_v_cache=_bytes(5, 4, 3, 16)),
        ("'paged_v_cache'", r"\[5, 4, 3, 16\]", r"\[5, 4, 2, 16\]"),
    ),
    BadInput(
        "scales of other pages",
        "nvfp4_kv_dequantize_paged",
        _paged(k_block_scales=_bytes(4, 4, 2, 2)),
        ("'k_block_scales'", r"\[4, 4, 2, 2\]", "paged_k_cache"),
    ),
    BadInput(
        "scales of another head size",
        "nvfp4_kv_dequantize_paged",
        _paged(v_block_scales=_bytes(5, 4, 2, 4)),
        ("'v_block_scales'", r"\[5, 4, 2, 4\]", "2 scales a head"),
    ),
    BadInput(
        "scale dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(v_block_scales=_bytes(5, 4, 2, 2, dtype=torch.int8)),
        ("'v_block_scales'", "int8", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "last dimension of the cache",
        "nvfp4_kv_dequantize_paged",
        _paged(paged_k_cache=_every_other(5, 4, 2, 16)),
        ("'paged_k_cache'", "stride 2", "last dimension"),
    ),
    BadInput(
        "last dimension of the scales",
        "nvfp4_kv_dequantize_paged",
        _paged(v_block_scales=_every_other(5, 4, 2, 2)),
        ("'v_block_scales'", "stride 2", "last dimension"),
    ),
    BadInput(
        "scales elsewhere",
        "nvfp4_kv_dequantize_paged",
        _paged(k_block_scales=_elsewhere(_bytes(5, 4, 2, 2))),
        ("'k_block_scales'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    BadInput(
        "block table dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(block_tables=_bytes(3, 2, dtype=torch.int16)),
        ("'block_tables'", "int16", "int32 or .*int64"),
    ),
    BadInput(
        "block table too narrow",
        "nvfp4_kv_dequantize_paged",
        _paged(max_seq_len=9),
        ("'block_tables'", r"\[3, 2\]", "pages of 4", "9 tokens"),
    ),
    BadInput(
        "block table elsewhere",
        "nvfp4_kv_dequantize_paged",
        _paged(block_tables=_elsewhere(_bytes(3, 2, dtype=torch.int32))),
        ("'block_tables'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    BadInput(
        "sequence length dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(seq_lens=_bytes(3, dtype=torch.int64)),
        ("'seq_lens'", "int64", "int32"),
    ),
    BadInput(
        "sequence length batch",
        "nvfp4_kv_dequantize_paged",
        _paged(seq_lens=_bytes(2, dtype=torch.int32)),
        ("'seq_lens'", r"\[2\]", r"\[3\]"),
    ),
    BadInput(
        "k scale dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(k_scale=lambda device: _scale(device, dtype=_HALF)),
        ("'k_scale'", "float16", "float32"),
    ),
    BadInput(
        "v scale of two elements",
        "nvfp4_kv_dequantize_paged",
        _paged(v_scale=lambda device: _scale(device, 2)),
        ("'v_scale'", r"\[2\]", "one element"),
    ),
    BadInput(
        "negative length",
        "nvfp4_kv_dequantize_paged",
        _paged(max_seq_len=-1),
        ("'max_seq_len'", "got -1", "0 or more"),
    ),
    BadInput(
        "output dtype",
        "nvfp4_kv_dequantize_paged",
        _paged(output_dtype=torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "layout number",
        "nvfp4_kv_dequantize_paged",
        _paged(kv_layout=2),
        ("'kv_layout'", "got 2", "NHD", "HND"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_kv_dequantize_paged",
        _paged(
            block_tables=_bytes(1, 2**14, dtype=torch.int32, stretch=2**16),
            seq_lens=_bytes(1, dtype=torch.int32, stretch=2**16),
            max_seq_len=2**14,
        ),
        ("'max_seq_len'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "output of the wrong dtype",
        "nvfp4_kv_dequantize_paged.out",
        _paged(out=True, output_k=_bytes(3, 8, 2, 32, dtype=torch.float32)),
        ("'output_k'", "float32", "float16 or .*bfloat16"),
    ),
    BadInput(
        "outputs of two dtypes",
        "nvfp4_kv_dequantize_paged.out",
        _paged(out=True, output_v=_bytes(3, 8, 2, 32, dtype=_HALF)),
        ("'output_v'", "float16", "bfloat16"),
    ),
    BadInput(
        "output of the wrong shape",
        "nvfp4_kv_dequantize_paged.out",
        _paged(out=True, output_v=_bytes(3, 8, 2, 48, dtype=torch.bfloat16)),
        ("'output_v'", r"\[3, 8, 2, 48\]", r"\[3, 8, 2, 32\]"),
    ),
    BadInput(
        "output of the wrong strides",
        "nvfp4_kv_dequantize_paged.out",
        _paged(
            out=True,
            output_k=lambda device: _empty(device, 3, 2, 8, 32, dtype=torch.bfloat16).transpose(
                1, 2
            ),
        ),
        ("'output_k'", r"strides \[512, 32, 256, 1\]", r"strides \[512, 64, 32, 1\]"),
    ),
    BadInput(
        "output longer than the block table",
        "nvfp4_kv_dequantize_paged.out",
        _paged(
            out=True,
            output_k=_bytes(3, 9, 2, 32, dtype=torch.bfloat16),
            output_v=_bytes(3, 9, 2, 32, dtype=torch.bfloat16),
        ),
        ("'block_tables'", "9 tokens"),
    ),
)


def _column_major(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    """Make the transpose of a contiguous tensor; `shape` is the transpose's."""
    *batch, rows, columns = shape
    return lambda device: _empty(device, *batch, columns, rows, **options).transpose(-2, -1)


def _factors(batch: tuple[int, ...]) -> dict[str, Any]:
    """Make what both forms of mm_fp4 take: M = 4, K = 64, N = 96."""
    return {
        "a": _bytes(*batch, 4, 32),
        "b": _column_major(*batch, 32, 96),
        "a_descale": _bytes(*batch, 128, 4),
        "b_descale": _bytes(*batch, 128, 4),
        "alpha": _scale,
    }


def _multiply(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4 with arguments replaced."""
    return _call(**{**_factors(batch), "out_dtype": torch.bfloat16, **changes})


def _multiply_into(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4.out with arguments replaced."""
    out = _bytes(*batch, 4, 96, dtype=torch.bfloat16)
    return _call(**{**_factors(batch), "out": out, **changes})


def _viewed(dtype: torch.dtype, *shape: int) -> Callable[[str], torch.Tensor]:
    """Make bytes that another dtype names."""
    return lambda device: _empty(device, *shape).view(dtype)


GEMM = (
    BadInput(
        "E8M0 scales",
        "mm_fp4",
        _multiply(a_descale=_viewed(torch.float8_e8m0fnu, 512)),
        ("'a_descale': got dtype .*float8_e8m0fnu", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "dtype of a",
        "mm_fp4",
        _multiply(a=_bytes(4, 32, dtype=torch.int8)),
        ("'a': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2", "convert"),
    ),
    BadInput(
        "rank of a",
        "mm_fp4",
        _multiply(a=_bytes(32)),
        ("'a': got shape", r"\[32\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "dtype of b",
        "mm_fp4",
        _multiply(b=_column_major(32, 96, dtype=torch.bfloat16)),
        ("'b': got dtype .*bfloat16", "uint8 or .*float4_e2m1fn_x2"),
    ),
    BadInput(
        "matrix and batch",
        "mm_fp4",
        _multiply(b=_column_major(1, 32, 96)),
        ("'b': got shape", r"\[1, 32, 96\]", "expected 2 dimensions"),
    ),
    BadInput(
        "batch and matrix",
        "mm_fp4",
        _multiply(batch=(2,), b=_column_major(32, 96)),
        ("'b': got shape", r"\[32, 96\]", "expected 3 dimensions"),
    ),
    BadInput(
        "b elsewhere",
        "mm_fp4",
        _multiply(b=_elsewhere(_column_major(32, 96))),
        ("'b': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "batches that differ",
        "mm_fp4",
        _multiply(batch=(2,), b=_column_major(3, 32, 96)),
        ("'b': got shape", r"\[3, 32, 96\]", r"2 matrices, as in a of shape \[2, 4, 32\]"),
    ),
    BadInput(
        "weight that is not transposed",
        "mm_fp4",
        _multiply(b=_bytes(96, 32)),
        ("'b': got shape", r"\[96, 32\]", r"32 rows \(K / 2\)", r"\[4, 32\]", r"weight\.T"),
    ),
    BadInput(
        "weights that are not transposed",
        "mm_fp4",
        _multiply(batch=(2,), b=_bytes(2, 96, 32)),
        ("'b': got shape", r"\[2, 96, 32\]", r"32 rows", r"weight\.transpose\(-2, -1\)"),
    ),
    BadInput(
        "K",
        "mm_fp4",
        _multiply(a=_bytes(4, 24), b=_column_major(24, 96)),
        ("'a': got shape", r"\[4, 24\] \(48 values a row\)", "positive multiple of 32 values"),
    ),
    BadInput(
        "K of 0",
        "mm_fp4",
        _multiply(a=_bytes(4, 0), b=_column_major(0, 96)),
        ("'a': got shape", r"\[4, 0\] \(0 values a row\)", "positive multiple of 32 values"),
    ),
    BadInput(
        "N",
        "mm_fp4",
        _multiply(b=_column_major(32, 48)),
        ("'b': got shape", r"\[32, 48\] \(48 columns\)", "positive multiple of 32 columns"),
    ),
    BadInput(
        "N of 0",
        "mm_fp4",
        _multiply(b=_column_major(32, 0)),
        ("'b': got shape", r"\[32, 0\] \(0 columns\)", "positive multiple of 32 columns"),
    ),
    BadInput(
        "too many rows",
        "mm_fp4",
        _multiply(a=_bytes(1, 32, stretch=2**31)),
        ("'a': got a number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many matrices",
        "mm_fp4",
        _multiply(
            a=_bytes(1, 4, 32, stretch=2**31),
            b=lambda device: _empty(device, 1, 96, 32, stretch=2**31).transpose(-2, -1),
        ),
        ("'a': got a number of matrices of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "row-major b",
        "mm_fp4",
        _multiply(b=_bytes(32, 96)),
        ("'b': got shape", r"strides \[96, 1\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    BadInput(
        "columns of a wider b",
        "mm_fp4",
        _multiply(b=lambda device: _empty(device, 96, 64).as_strided((32, 96), (1, 64))),
        ("'b': got shape", r"strides \[1, 64\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    BadInput(
        "row-major batch",
        "mm_fp4",
        _multiply(batch=(2,), b=_bytes(2, 32, 96)),
        ("'b'", r"strides \[3072, 96, 1\]", r"\[3072, 1, 32\]", r"weight\.transpose\(-2, -1\)"),
    ),
    BadInput(
        "dtype of the scales of a",
        "mm_fp4",
        _multiply(a_descale=_bytes(128, 4, dtype=torch.float32)),
        ("'a_descale': got dtype .*float32", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "scales of a elsewhere",
        "mm_fp4",
        _multiply(a_descale=_elsewhere(_bytes(128, 4))),
        ("'a_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "strides of the scales of a",
        "mm_fp4",
        _multiply(a_descale=_column_major(128, 4)),
        ("'a_descale': got shape", r"strides \[1, 128\]", "contiguous scales;", "quantizer"),
    ),
    BadInput(
        "linear scales of a",
        "mm_fp4",
        _multiply(a_descale=_bytes(4, 4)),
        (
            "'a_descale': got 16 scales, as many as layout_linear has",
            r"512 \(layout_128x4 for 4 rows of 64 values\)",
            "quantize with the 128x4 layout$",
        ),
    ),
    BadInput(
        "8x4 scales of a",
        "mm_fp4",
        _multiply(a_descale=_bytes(8, 4)),
        ("'a_descale': got 32 scales, as many as layout_8x4 has", "expected 512"),
    ),
    BadInput(
        "scales of a batch in one piece",
        "mm_fp4",
        _multiply(batch=(2,), a_descale=_bytes(128, 4)),
        (
            "'a_descale': got 512 scales, expected 1024",
            "layout_128x4 for each of 2 matrices with 4 rows of 64 values",
            "128x4 layout, each matrix by itself",
        ),
    ),
    BadInput(
        "dtype of the scales of b",
        "mm_fp4",
        _multiply(b_descale=_bytes(128, 4, dtype=torch.int8)),
        ("'b_descale': got dtype .*int8", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "scales of b elsewhere",
        "mm_fp4",
        _multiply(b_descale=_elsewhere(_bytes(128, 4))),
        ("'b_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "strides of the scales of b",
        "mm_fp4",
        _multiply(b_descale=_every_other(128, 4)),
        ("'b_descale'", r"strides \[8, 2\]", "contiguous scales or their transpose"),
    ),
    BadInput(
        "linear scales of b",
        "mm_fp4",
        _multiply(b_descale=_bytes(96, 4)),
        ("'b_descale': got 384 scales, as many as", r"512 \(layout_128x4 for 96 rows of 64 values"),
    ),
    BadInput(
        "no alpha",
        "mm_fp4",
        _multiply(alpha=None),
        ("'alpha': got None", "float32", r"1 / \(a_global_sf \* b_global_sf\)"),
    ),
    BadInput(
        "dtype of alpha",
        "mm_fp4",
        _multiply(alpha=lambda device: _scale(device, dtype=torch.bfloat16)),
        ("'alpha': got dtype .*bfloat16", "float32"),
    ),
    BadInput(
        "alpha for each row",
        "mm_fp4",
        _multiply(alpha=lambda device: _scale(device, 4)),
        ("'alpha': got shape", r"\[4\]", "one element", "each row", "scale the rows of the result"),
    ),
    BadInput(
        "alpha elsewhere",
        "mm_fp4",
        _multiply(alpha=_elsewhere(_scale)),
        ("'alpha': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "negative tactic",
        "mm_fp4",
        _multiply(tactic=-2),
        ("'tactic': got -2", "the number of a tactic", "pass -1"),
    ),
    BadInput(
        "output dtype",
        "mm_fp4",
        _multiply(out_dtype=torch.float32),
        ("'out_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "no alpha for the out form",
        "mm_fp4.out",
        _multiply_into(alpha=None),
        ("'alpha': got None", "float32"),
    ),
    BadInput(
        "out of the wrong dtype",
        "mm_fp4.out",
        _multiply_into(out=_bytes(4, 96, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "out of the wrong shape",
        "mm_fp4.out",
        _multiply_into(out=_bytes(96, 4, dtype=_HALF)),
        ("'out': got shape", r"\[96, 4\]", r"\[4, 96\]", "functional form"),
    ),
    BadInput(
        "out of the wrong strides",
        "mm_fp4.out",
        _multiply_into(out=_column_major(4, 96, dtype=_HALF)),
        ("'out': got shape", r"strides \[1, 4\]", r"strides \[96, 1\]"),
    ),
    BadInput(
        "out without its batch",
        "mm_fp4.out",
        _multiply_into(batch=(1,), out=_bytes(4, 96, dtype=_HALF)),
        ("'out': got shape", r"\[4, 96\]", r"\[1, 4, 96\]"),
    ),
    BadInput(
        "out elsewhere",
        "mm_fp4.out",
        _multiply_into(out=_elsewhere(_bytes(4, 96, dtype=_HALF))),
        ("'out': got device (cpu|meta)", "the device of 'a'"),
    ),
)


def _per_token(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_quantize_per_token, M = 4 and K = 64, with changes."""
    buffers = {
        "values": _bytes(4, 32),
        "block_scales": _bytes(128, 4),
        "per_token_scale": _bytes(4, dtype=torch.float32),
    }
    arguments = {"input": _bytes(4, 64, dtype=torch.bfloat16), "scale_inv": 1 / 2688}
    return _call(**{**arguments, **(buffers if out else {}), **changes})


def _index(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    return _bytes(*shape, **{"dtype": torch.int32, **options})


PER_TOKEN = (
    BadInput(
        "input dtype",
        "nvfp4_quantize_per_token",
        _per_token(input=_bytes(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "input rank",
        "nvfp4_quantize_per_token",
        _per_token(input=_bytes(1, 4, 64, dtype=_HALF)),
        ("'input'", r"\[1, 4, 64\]", "2 dimensions"),
    ),
    BadInput(
        "layout number",
        "nvfp4_quantize_per_token",
        _per_token(sf_layout=3),
        ("'sf_layout'", "got 3", "linear"),
    ),
    BadInput(
        "recipe",
        "nvfp4_quantize_per_token",
        _per_token(nvfp4_4over6=-1),
        ("'nvfp4_4over6': got -1", "4-over-6"),
    ),
    BadInput(
        "columns",
        "nvfp4_quantize_per_token",
        _per_token(input=_bytes(4, 40, dtype=_HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_quantize_per_token",
        _per_token(input=_bytes(1, 16, dtype=_HALF, stretch=2**31)),
        ("'input'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many blocks",
        "nvfp4_quantize_per_token",
        _per_token(input=_bytes(1, 32, dtype=_HALF, stretch=2**30)),
        ("'input'", "number of blocks of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "index dtype",
        "nvfp4_quantize_per_token",
        _per_token(expanded_idx_to_permuted_idx=_index(4, dtype=torch.int64)),
        ("'expanded_idx_to_permuted_idx'", "int64", "int32"),
    ),
    BadInput(
        "index rank",
        "nvfp4_quantize_per_token",
        _per_token(expanded_idx_to_permuted_idx=_index(4, 1)),
        ("'expanded_idx_to_permuted_idx'", r"\[4, 1\]", "1 dimensions"),
    ),
    BadInput(
        "index too short",
        "nvfp4_quantize_per_token",
        _per_token(expanded_idx_to_permuted_idx=_index(3)),
        ("'expanded_idx_to_permuted_idx'", r"\[3\]", "4 elements or more"),
    ),
    BadInput(
        "index elsewhere",
        "nvfp4_quantize_per_token",
        _per_token(expanded_idx_to_permuted_idx=_elsewhere(_index(4))),
        ("'expanded_idx_to_permuted_idx'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "values of the wrong shape",
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, values=_bytes(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    BadInput(
        "scales of another layout",
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, sf_layout=1),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    BadInput(
        "per-token scales of the wrong dtype",
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, per_token_scale=_bytes(4, dtype=_HALF)),
        ("'per_token_scale'", "float16", "float32"),
    ),
    BadInput(
        "per-token scales of the wrong shape",
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, per_token_scale=_bytes(4, 1, dtype=torch.float32)),
        ("'per_token_scale'", r"\[4, 1\]", r"\[4\]"),
    ),
    BadInput(
        "per-token scales elsewhere",
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, per_token_scale=_elsewhere(_bytes(4, dtype=torch.float32))),
        ("'per_token_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
)


def _batched(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_batched_quantize, B = 2, M = 4 and K = 64, with changes."""
    buffers = {"values": _bytes(2, 4, 32), "block_scales": _bytes(2, 512)}
    arguments = {"a": _bytes(2, 4, 64, dtype=torch.bfloat16), "a_global_sf": _scale}
    return _call(**{**arguments, **(buffers if out else {}), **changes})


BATCHED = (
    BadInput(
        "dtype",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(2, 4, 64, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    BadInput(
        "rank",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(4, 64, dtype=_HALF)),
        ("'a'", r"\[4, 64\]", "3 dimensions"),
    ),
    BadInput(
        "block size",
        "nvfp4_batched_quantize",
        _batched(sf_vec_size=32),
        ("'sf_vec_size': got 32, expected 16",),
    ),
    BadInput(
        "recipe",
        "nvfp4_batched_quantize",
        _batched(nvfp4_4over6=64),
        ("'nvfp4_4over6': got 64", "4-over-6"),
    ),
    BadInput(
        "recipe of float8",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(2, 4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'a' of .*float8_e4m3fn", "expected 0"),
    ),
    BadInput(
        "columns",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(2, 4, 40, dtype=_HALF)),
        ("'a'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(1, 128, 16, dtype=_HALF, stretch=2**24)),
        ("'a'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many scales",
        "nvfp4_batched_quantize",
        _batched(a=_bytes(1, 1, 16, dtype=_HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_batched_quantize",
        _batched(a_global_sf=lambda device: _scale(device, dtype=torch.bfloat16)),
        ("'a_global_sf'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale of neither one nor M elements",
        "nvfp4_batched_quantize",
        _batched(a_global_sf=lambda device: _scale(device, 2)),
        ("'a_global_sf'", r"\[2\]", "one per row: 4"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_batched_quantize",
        _batched(a_global_sf=_elsewhere(_scale)),
        ("'a_global_sf'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "values of the wrong strides",
        "nvfp4_batched_quantize.out",
        _batched(out=True, values=_column_major(2, 4, 32)),
        ("'values'", r"strides \[128, 1, 4\]", r"strides \[128, 32, 1\]"),
    ),
    BadInput(
        "scales that are not flat",
        "nvfp4_batched_quantize.out",
        _batched(out=True, block_scales=_bytes(2, 128, 4)),
        ("'block_scales'", r"\[2, 128, 4\]", r"\[2, 512\]"),
    ),
)

_GROUPED = "scaled_fp4_grouped_quantize"
_FUSED = "silu_and_mul_scaled_nvfp4_experts_quantize"


def _expert_scales(device: str, rows: int = 1, batch: int = 2) -> torch.Tensor:
    scales = _empty(device, batch, rows, 1, 32, 4, 4, dtype=torch.float8_e4m3fn)
    return scales.permute(3, 4, 1, 5, 2, 0)


def _experts(columns: int = 64, out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of an expert operator, B = 2, M = 4 and K = 64, with changes."""
    buffers = {
        "values": lambda device: _empty(device, 2, 4, 32).permute(1, 2, 0),
        "block_scales": _expert_scales,
    }
    arguments = {
        "a": _bytes(2, 4, columns, dtype=torch.bfloat16),
        "mask": _bytes(2, dtype=torch.int32),
        "a_global_sf": lambda device: _scale(device, 2),
    }
    return _call(**{**arguments, **(buffers if out else {}), **changes})


EXPERTS = (
    BadInput(
        "dtype",
        _GROUPED,
        _experts(a=_bytes(2, 4, 64, dtype=torch.float8_e4m3fn)),
        ("'a': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "dtype",
        _FUSED,
        _experts(a=_bytes(2, 4, 128, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        _GROUPED,
        _experts(a=_bytes(4, 64, dtype=_HALF)),
        ("'a'", r"\[4, 64\]", "3 dimensions"),
    ),
    BadInput("recipe", _GROUPED, _experts(nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")),
    BadInput(
        "recipe", _FUSED, _experts(128, nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")
    ),
    BadInput("columns", _GROUPED, _experts(40), ("'a'", "40 values", "multiple of 16")),
    BadInput("columns", _FUSED, _experts(48), ("'a'", "48 values", "multiple of 32")),
    BadInput(
        "too much work",
        _GROUPED,
        _experts(a=_bytes(1, 128, 128, dtype=_HALF, stretch=2**20)),
        ("'a'", "number of groups of 8 values of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many scales",
        _FUSED,
        _experts(a=_bytes(1, 1, 32, dtype=_HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "mask dtype",
        _GROUPED,
        _experts(mask=_bytes(2, dtype=torch.int64)),
        ("'mask'", "int64", "int32"),
    ),
    BadInput(
        "mask shape",
        _GROUPED,
        _experts(mask=_bytes(2, 4, dtype=torch.int32)),
        ("'mask'", r"\[2, 4\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "mask length",
        _FUSED,
        _experts(128, mask=_bytes(3, dtype=torch.int32)),
        ("'mask'", r"\[3\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "mask elsewhere",
        _GROUPED,
        _experts(mask=_elsewhere(_bytes(2, dtype=torch.int32))),
        ("'mask'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "global scale dtype",
        _GROUPED,
        _experts(a_global_sf=_bytes(2, dtype=_HALF)),
        ("'a_global_sf'", "float16", "float32"),
    ),
    BadInput(
        "one global scale for all",
        _FUSED,
        _experts(128, a_global_sf=_scale),
        ("'a_global_sf'", r"\[1\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "global scale elsewhere",
        _FUSED,
        _experts(128, a_global_sf=_elsewhere(lambda device: _scale(device, 2))),
        ("'a_global_sf'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "values before permuting",
        f"{_GROUPED}.out",
        _experts(out=True, values=_bytes(2, 4, 32)),
        ("'values'", r"\[2, 4, 32\]", r"shape \[4, 32, 2\] with strides \[32, 1, 128\]"),
    ),
    BadInput(
        "contiguous values",
        f"{_FUSED}.out",
        _experts(128, out=True, values=_bytes(4, 32, 2)),
        ("'values'", r"strides \[64, 2, 1\]", r"strides \[32, 1, 128\]"),
    ),
    BadInput(
        "scales as bytes",
        f"{_GROUPED}.out",
        _experts(out=True, block_scales=lambda d: _expert_scales(d).view(torch.uint8)),
        ("'block_scales'", "uint8", "float8_e4m3fn"),
    ),
    BadInput(
        "scales of more rows",
        f"{_FUSED}.out",
        _experts(128, out=True, block_scales=lambda d: _expert_scales(d, rows=2)),
        (
            "'block_scales'",
            r"\[32, 4, 2, 4, 1, 2\]",
            r"shape \[32, 4, 1, 4, 1, 2\] with strides \[16, 4, 512, 1, 512, 512\]",
        ),
    ),
    BadInput(
        "scales elsewhere",
        f"{_GROUPED}.out",
        _experts(out=True, block_scales=_elsewhere(_expert_scales)),
        ("'block_scales'", "device (cpu|meta)", "the device of 'a'"),
    ),
)


def _kv_quantize(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_kv_quantize, M = 4 and K = 64, with changes."""
    buffers = {"fp4_output": _bytes(4, 32), "block_scales": _bytes(4, 4)}
    arguments = {"input": _bytes(4, 64, dtype=torch.bfloat16), "global_scale": _scale}
    return _call(**{**arguments, **(buffers if out else {}), **changes})


KV_QUANTIZE = (
    BadInput(
        "dtype",
        "nvfp4_kv_quantize",
        _kv_quantize(input=_bytes(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        "nvfp4_kv_quantize",
        _kv_quantize(input=_bytes(5, 4, 2, 64, dtype=_HALF)),
        ("'input'", r"\[5, 4, 2, 64\]", "2 dimensions"),
    ),
    BadInput(
        "columns",
        "nvfp4_kv_quantize",
        _kv_quantize(input=_bytes(4, 40, dtype=_HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too long a row",
        "nvfp4_kv_quantize",
        _kv_quantize(input=lambda d: _empty(d, 1, 1, dtype=_HALF).expand(1, 2**31)),
        ("'input'", "number of columns of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_kv_quantize",
        _kv_quantize(global_scale=lambda device: _scale(device, dtype=torch.bfloat16)),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale for each row",
        "nvfp4_kv_quantize",
        _kv_quantize(global_scale=lambda device: _scale(device, 4)),
        ("'global_scale'", r"\[4\]", "one element"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_kv_quantize",
        _kv_quantize(global_scale=_elsewhere(_scale)),
        ("'global_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "values of the wrong shape",
        "nvfp4_kv_quantize.out",
        _kv_quantize(out=True, fp4_output=_bytes(4, 64)),
        ("'fp4_output'", r"\[4, 64\]", r"\[4, 32\]"),
    ),
    BadInput(
        "swizzled scales",
        "nvfp4_kv_quantize.out",
        _kv_quantize(out=True, block_scales=_bytes(128, 4)),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]"),
    ),
    BadInput(
        "scales as float8",
        "nvfp4_kv_quantize.out",
        _kv_quantize(out=True, block_scales=_bytes(4, 4, dtype=torch.float8_e4m3fn)),
        ("'block_scales'", "float8_e4m3fn", "uint8"),
    ),
)

# Calls that must be accepted: the bad ones differ from these in one point.
ACCEPTED: tuple[tuple[str, Callable[[str], Arguments]], ...] = (
    ("fp4_quantize", _quantize()),
    ("fp4_quantize", _quantize(sf_vec_size=32, sf_use_ue8m0=True, global_scale=None)),
    ("fp4_quantize", _quantize(global_scale=lambda device: _scale(device, 4))),
    ("fp4_quantize", _quantize(global_scale=lambda device: torch.ones((), device=device))),
    ("fp4_quantize.out", _quantize_out()),
    ("fp4_quantize.out", _quantize_out(is_sf_8x4_layout=True, block_scales=_bytes(8, 4))),
    ("fp4_quantize.out", _quantize_out(is_sf_swizzled_layout=False, block_scales=_bytes(4, 4))),
    (
        "fp4_quantize.out",
        _quantize_out(
            input=lambda device: _empty(device, 4, 64, dtype=_HALF).t(),
            values=lambda device: _empty(device, 4, 32).t(),
            block_scales=lambda device: _empty(device, 128, 4).t(),
        ),
    ),
    ("block_scale_interleave", _call(_bytes(4, 4))),
    ("block_scale_interleave", _call(_bytes(2, 4, 4, dtype=torch.bfloat16))),
    ("block_scale_interleave.out", _call(_bytes(4, 4), out=_bytes(512))),
    ("block_scale_interleave_reverse", _call(_bytes(2, 128, 4))),
    ("block_scale_interleave_reverse.out", _call(_bytes(128, 4), out=_bytes(128, 4))),
    ("e2m1_and_ufp8sf_scale_to_float", _call(*_NVFP4)),
    ("e2m1_and_ufp8sf_scale_to_float.out", _call(*_NVFP4, out=_bytes(4, 64, dtype=torch.float32))),
    ("mxfp4_dequantize", _call(_bytes(4, 32), _bytes(8, 4), 1)),
    (
        "mxfp4_dequantize.out",
        _call(_bytes(4, 32), _bytes(128, 4), out=_bytes(4, 64, dtype=torch.float32)),
    ),
    ("fp4_quantize", _quantize(nvfp4_4over6=23)),
    ("nvfp4_quantize_per_token", _per_token()),
    ("nvfp4_quantize_per_token", _per_token(sf_layout=2, nvfp4_4over6=1)),
    ("nvfp4_quantize_per_token", _per_token(expanded_idx_to_permuted_idx=_index(9))),
    ("nvfp4_quantize_per_token", _per_token(input=_column_major(4, 64, dtype=_HALF))),
    ("nvfp4_quantize_per_token.out", _per_token(out=True)),
    (
        "nvfp4_quantize_per_token.out",
        _per_token(out=True, sf_layout=1, block_scales=_bytes(8, 4), nvfp4_4over6=7),
    ),
    ("nvfp4_batched_quantize", _batched()),
    ("nvfp4_batched_quantize", _batched(a_global_sf=lambda device: _scale(device, 4))),
    ("nvfp4_batched_quantize", _batched(a=_bytes(2, 4, 64, dtype=torch.float8_e4m3fn))),
    ("nvfp4_batched_quantize.out", _batched(out=True, nvfp4_4over6=5)),
    (_GROUPED, _experts()),
    (
        _GROUPED,
        _experts(
            a=_bytes(0, 4, 64, dtype=_HALF),
            mask=_index(0),
            a_global_sf=_bytes(0, dtype=torch.float32),
        ),
    ),
    (f"{_GROUPED}.out", _experts(out=True, nvfp4_4over6=3)),
    (_FUSED, _experts(128)),
    (f"{_FUSED}.out", _experts(128, out=True, nvfp4_4over6=17)),
    ("nvfp4_kv_quantize", _kv_quantize()),
    ("nvfp4_kv_quantize", _kv_quantize(global_scale=lambda d: torch.ones((), device=d))),
    ("nvfp4_kv_quantize.out", _kv_quantize(out=True)),
    ("nvfp4_kv_dequantize", _call(*_KV, torch.bfloat16)),
    ("nvfp4_kv_dequantize.out", _call(*_KV, out=_bytes(4, 64, dtype=_HALF))),
    ("nvfp4_kv_dequantize_paged", _paged()),
    ("nvfp4_kv_dequantize_paged.out", _paged(out=True)),
    ("mm_fp4", _multiply()),
    ("mm_fp4", _multiply(batch=(2,), out_dtype=_HALF, tactic=3)),
    ("mm_fp4", _multiply(a=_bytes(0, 32), a_descale=_bytes(0, 4))),
    ("mm_fp4", _multiply(batch=(0,))),
    ("mm_fp4", _multiply(a=_viewed(torch.float4_e2m1fn_x2, 4, 32))),
    ("mm_fp4", _multiply(a=_every_other(4, 32), alpha=lambda d: torch.ones((), device=d))),
    ("mm_fp4", _multiply(a_descale=_bytes(512), b_descale=_column_major(4, 128))),
    ("mm_fp4", _multiply(batch=(2,), b_descale=_column_major(2, 4, 128))),
    ("mm_fp4.out", _multiply_into()),
    ("mm_fp4.out", _multiply_into(batch=(2,), out=_bytes(2, 4, 96, dtype=_HALF))),
)

# For any device; the host function's are separate because it has no other device.
EVERY_DEVICE = (
    QUANTIZE
    + INTERLEAVE
    + DEQUANTIZE
    + KV_CACHE
    + PAGED
    + GEMM
    + PER_TOKEN
    + BATCHED
    + EXPERTS
    + KV_QUANTIZE
)
