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
    ("nvfp4_kv_dequantize", _call(*_KV, torch.bfloat16)),
    ("nvfp4_kv_dequantize.out", _call(*_KV, out=_bytes(4, 64, dtype=_HALF))),
    ("nvfp4_kv_dequantize_paged", _paged()),
    ("nvfp4_kv_dequantize_paged.out", _paged(out=True)),
)

# For any device; the host function's are separate because it has no other device.
EVERY_DEVICE = QUANTIZE + INTERLEAVE + DEQUANTIZE + KV_CACHE + PAGED
