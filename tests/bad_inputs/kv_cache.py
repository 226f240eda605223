"""The KV cache operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import (
    HALF,
    Arguments,
    BadInput,
    call,
    elsewhere,
    empty,
    every_other,
    scale,
    uint8,
)


def paged(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid paged call (5 pages of 4 tokens, 2 heads of 32) with arguments replaced."""

    def build(device: str) -> Arguments:
        arguments: dict[str, Any] = {
            "paged_k_cache": uint8(5, 4, 2, 16),
            "paged_v_cache": uint8(5, 4, 2, 16),
            "k_block_scales": uint8(5, 4, 2, 2),
            "v_block_scales": uint8(5, 4, 2, 2),
            "block_tables": uint8(3, 2, dtype=torch.int32),
            "seq_lens": uint8(3, dtype=torch.int32),
            "k_scale": scale,
            "v_scale": scale,
            "kv_layout": 0,
        }
        if out:
            arguments["output_k"] = uint8(3, 8, 2, 32, dtype=torch.bfloat16)
            arguments["output_v"] = uint8(3, 8, 2, 32, dtype=torch.bfloat16)
        else:
            arguments["max_seq_len"] = 8
            arguments["output_dtype"] = torch.bfloat16
        arguments.update(changes)
        return (), {
            name: value(device) if callable(value) else value for name, value in arguments.items()
        }

    return build


KV = (uint8(4, 32), uint8(4, 4), scale)


KV_CACHE = (
    BadInput(
        "data dtype",
        "nvfp4_kv_dequantize",
        call(uint8(4, 32, dtype=torch.int8), *KV[1:], torch.bfloat16),
        ("'fp4_data'", "int8", "uint8"),
    ),
    BadInput(
        "data rank",
        "nvfp4_kv_dequantize",
        call(uint8(2, 4, 32), *KV[1:], torch.bfloat16),
        ("'fp4_data'", r"\[2, 4, 32\]", "2 dimensions"),
    ),
    BadInput(
        "columns",
        "nvfp4_kv_dequantize",
        call(uint8(4, 20), *KV[1:], torch.bfloat16),
        ("'fp4_data'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "swizzled scales",
        "nvfp4_kv_dequantize",
        call(KV[0], uint8(128, 4), scale, torch.bfloat16),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]", "linear"),
    ),
    BadInput(
        "scale dtype",
        "nvfp4_kv_dequantize",
        call(KV[0], uint8(4, 4, dtype=torch.float32), scale, torch.bfloat16),
        ("'block_scales'", "float32", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_kv_dequantize",
        call(*KV[:2], lambda device: scale(device, dtype=torch.bfloat16), torch.bfloat16),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_kv_dequantize",
        call(*KV[:2], elsewhere(scale), torch.bfloat16),
        ("'global_scale'", "device (cpu|meta)", "'fp4_data'"),
    ),
    BadInput(
        "global scale of two elements",
        "nvfp4_kv_dequantize",
        call(*KV[:2], lambda device: scale(device, 2), torch.bfloat16),
        ("'global_scale'", r"\[2\]", "one element"),
    ),
    BadInput(
        "output dtype",
        "nvfp4_kv_dequantize",
        call(*KV, torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "too many values",
        "nvfp4_kv_dequantize",
        call(uint8(1, 8, stretch=2**27), uint8(1, 1, stretch=2**27), scale, torch.bfloat16),
        ("'fp4_data'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too long a row",
        "nvfp4_kv_dequantize",
        call(uint8(1, 49149 * 8), uint8(1, 49149), scale, torch.bfloat16),
        ("'fp4_data'", "786384", "at most 786368", "shared memory"),
    ),
    BadInput(
        "out dtype",
        "nvfp4_kv_dequantize.out",
        call(*KV, out=uint8(4, 64, dtype=torch.float32)),
        ("'out'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "out strides",
        "nvfp4_kv_dequantize.out",
        call(*KV, out=lambda device: empty(device, 64, 4, dtype=HALF).t()),
        ("'out'", r"strides \[1, 4\]", r"strides \[64, 1\]"),
    ),
)


PAGED = (
    BadInput(
        "cache dtype",
        "nvfp4_kv_dequantize_paged",
        paged(paged_v_cache=uint8(5, 4, 2, 16, dtype=torch.int8)),
        ("'paged_v_cache'", "int8", "uint8"),
    ),
    BadInput(
        "cache rank",
        "nvfp4_kv_dequantize_paged",
        paged(paged_k_cache=uint8(5, 4, 16)),
        ("'paged_k_cache'", r"\[5, 4, 16\]", "4 dimensions"),
    ),
    BadInput(
        "head size",
        "nvfp4_kv_dequantize_paged",
        paged(paged_k_cache=uint8(5, 4, 2, 12)),
        ("'paged_k_cache'", "head_dim 24", "multiple of 16"),
    ),
    BadInput(
        "caches that differ",
        "nvfp4_kv_dequantize_paged",
        paged(paged_v_cache=uint8(5, 4, 3, 16)),
        ("'paged_v_cache'", r"\[5, 4, 3, 16\]", r"\[5, 4, 2, 16\]"),
    ),
    BadInput(
        "scales of other pages",
        "nvfp4_kv_dequantize_paged",
        paged(k_block_scales=uint8(4, 4, 2, 2)),
        ("'k_block_scales'", r"\[4, 4, 2, 2\]", "paged_k_cache"),
    ),
    BadInput(
        "scales of another head size",
        "nvfp4_kv_dequantize_paged",
        paged(v_block_scales=uint8(5, 4, 2, 4)),
        ("'v_block_scales'", r"\[5, 4, 2, 4\]", "2 scales a head"),
    ),
    BadInput(
        "scale dtype",
        "nvfp4_kv_dequantize_paged",
        paged(v_block_scales=uint8(5, 4, 2, 2, dtype=torch.int8)),
        ("'v_block_scales'", "int8", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "last dimension of the cache",
        "nvfp4_kv_dequantize_paged",
        paged(paged_k_cache=every_other(5, 4, 2, 16)),
        ("'paged_k_cache'", "stride 2", "last dimension"),
    ),
    BadInput(
        "last dimension of the scales",
        "nvfp4_kv_dequantize_paged",
        paged(v_block_scales=every_other(5, 4, 2, 2)),
        ("'v_block_scales'", "stride 2", "last dimension"),
    ),
    BadInput(
        "scales elsewhere",
        "nvfp4_kv_dequantize_paged",
        paged(k_block_scales=elsewhere(uint8(5, 4, 2, 2))),
        ("'k_block_scales'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    BadInput(
        "block table dtype",
        "nvfp4_kv_dequantize_paged",
        paged(block_tables=uint8(3, 2, dtype=torch.int16)),
        ("'block_tables'", "int16", "int32 or .*int64"),
    ),
    BadInput(
        "block table too narrow",
        "nvfp4_kv_dequantize_paged",
        paged(max_seq_len=9),
        ("'block_tables'", r"\[3, 2\]", "pages of 4", "9 tokens"),
    ),
    BadInput(
        "block table elsewhere",
        "nvfp4_kv_dequantize_paged",
        paged(block_tables=elsewhere(uint8(3, 2, dtype=torch.int32))),
        ("'block_tables'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    BadInput(
        "sequence length dtype",
        "nvfp4_kv_dequantize_paged",
        paged(seq_lens=uint8(3, dtype=torch.int64)),
        ("'seq_lens'", "int64", "int32"),
    ),
    BadInput(
        "sequence length batch",
        "nvfp4_kv_dequantize_paged",
        paged(seq_lens=uint8(2, dtype=torch.int32)),
        ("'seq_lens'", r"\[2\]", r"\[3\]"),
    ),
    BadInput(
        "k scale dtype",
        "nvfp4_kv_dequantize_paged",
        paged(k_scale=lambda device: scale(device, dtype=HALF)),
        ("'k_scale'", "float16", "float32"),
    ),
    BadInput(
        "v scale of two elements",
        "nvfp4_kv_dequantize_paged",
        paged(v_scale=lambda device: scale(device, 2)),
        ("'v_scale'", r"\[2\]", "one element"),
    ),
    BadInput(
        "negative length",
        "nvfp4_kv_dequantize_paged",
        paged(max_seq_len=-1),
        ("'max_seq_len'", "got -1", "0 or more"),
    ),
    BadInput(
        "output dtype",
        "nvfp4_kv_dequantize_paged",
        paged(output_dtype=torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "layout number",
        "nvfp4_kv_dequantize_paged",
        paged(kv_layout=2),
        ("'kv_layout'", "got 2", "NHD", "HND"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_kv_dequantize_paged",
        paged(
            block_tables=uint8(1, 2**14, dtype=torch.int32, stretch=2**16),
            seq_lens=uint8(1, dtype=torch.int32, stretch=2**16),
            max_seq_len=2**14,
        ),
        ("'max_seq_len'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "output of the wrong dtype",
        "nvfp4_kv_dequantize_paged.out",
        paged(out=True, output_k=uint8(3, 8, 2, 32, dtype=torch.float32)),
        ("'output_k'", "float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "outputs of two dtypes",
        "nvfp4_kv_dequantize_paged.out",
        paged(out=True, output_v=uint8(3, 8, 2, 32, dtype=HALF)),
        ("'output_v'", "float16", "bfloat16"),
    ),
    BadInput(
        "output of the wrong shape",
        "nvfp4_kv_dequantize_paged.out",
        paged(out=True, output_v=uint8(3, 8, 2, 48, dtype=torch.bfloat16)),
        ("'output_v'", r"\[3, 8, 2, 48\]", r"\[3, 8, 2, 32\]"),
    ),
    BadInput(
        "output of the wrong strides",
        "nvfp4_kv_dequantize_paged.out",
        paged(
            out=True,
            output_k=lambda device: empty(device, 3, 2, 8, 32, dtype=torch.bfloat16).transpose(
                1, 2
            ),
        ),
        ("'output_k'", r"strides \[512, 32, 256, 1\]", r"strides \[512, 64, 32, 1\]"),
    ),
    BadInput(
        "output longer than the block table",
        "nvfp4_kv_dequantize_paged.out",
        paged(
            out=True,
            output_k=uint8(3, 9, 2, 32, dtype=torch.bfloat16),
            output_v=uint8(3, 9, 2, 32, dtype=torch.bfloat16),
        ),
        ("'block_tables'", "9 tokens"),
    ),
)


def kv_quantize(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_kv_quantize, M = 4 and K = 64, with changes."""
    buffers = {"fp4_output": uint8(4, 32), "block_scales": uint8(4, 4)}
    arguments = {"input": uint8(4, 64, dtype=torch.bfloat16), "global_scale": scale}
    return call(**{**arguments, **(buffers if out else {}), **changes})


KV_QUANTIZE = (
    BadInput(
        "dtype",
        "nvfp4_kv_quantize",
        kv_quantize(input=uint8(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        "nvfp4_kv_quantize",
        kv_quantize(input=uint8(5, 4, 2, 64, dtype=HALF)),
        ("'input'", r"\[5, 4, 2, 64\]", "2 dimensions"),
    ),
    BadInput(
        "columns",
        "nvfp4_kv_quantize",
        kv_quantize(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too long a row",
        "nvfp4_kv_quantize",
        kv_quantize(input=lambda d: empty(d, 1, 1, dtype=HALF).expand(1, 2**31)),
        ("'input'", "number of columns of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_kv_quantize",
        kv_quantize(global_scale=lambda device: scale(device, dtype=torch.bfloat16)),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale for each row",
        "nvfp4_kv_quantize",
        kv_quantize(global_scale=lambda device: scale(device, 4)),
        ("'global_scale'", r"\[4\]", "one element"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_kv_quantize",
        kv_quantize(global_scale=elsewhere(scale)),
        ("'global_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "values of the wrong shape",
        "nvfp4_kv_quantize.out",
        kv_quantize(out=True, fp4_output=uint8(4, 64)),
        ("'fp4_output'", r"\[4, 64\]", r"\[4, 32\]"),
    ),
    BadInput(
        "swizzled scales",
        "nvfp4_kv_quantize.out",
        kv_quantize(out=True, block_scales=uint8(128, 4)),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]"),
    ),
    BadInput(
        "scales as float8",
        "nvfp4_kv_quantize.out",
        kv_quantize(out=True, block_scales=uint8(4, 4, dtype=torch.float8_e4m3fn)),
        ("'block_scales'", "float8_e4m3fn", "uint8"),
    ),
)

REFUSED = (*KV_CACHE, *PAGED, *KV_QUANTIZE)
ACCEPTED = (
    ("nvfp4_kv_quantize", kv_quantize()),
    ("nvfp4_kv_quantize", kv_quantize(global_scale=lambda d: torch.ones((), device=d))),
    ("nvfp4_kv_quantize.out", kv_quantize(out=True)),
    ("nvfp4_kv_dequantize", call(*KV, torch.bfloat16)),
    ("nvfp4_kv_dequantize.out", call(*KV, out=uint8(4, 64, dtype=HALF))),
    ("nvfp4_kv_dequantize_paged", paged()),
    ("nvfp4_kv_dequantize_paged.out", paged(out=True)),
)
