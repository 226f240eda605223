"""The KV cache operators."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, empty, every_other, scale, uint8
from bad_inputs.calls import call, refused, wrong_global_scales

KV = (uint8(4, 32), uint8(4, 4), scale())
_PAGES = {
    "paged_k_cache": uint8(5, 4, 2, 16),
    "paged_v_cache": uint8(5, 4, 2, 16),
    "k_block_scales": uint8(5, 4, 2, 2),
    "v_block_scales": uint8(5, 4, 2, 2),
    "block_tables": uint8(3, 2, dtype=torch.int32),
    "seq_lens": uint8(3, dtype=torch.int32),
    "k_scale": scale(),
    "v_scale": scale(),
    "kv_layout": 0,
}
paged = partial(call, **_PAGES, max_seq_len=8, output_dtype=torch.bfloat16)
"""Builds a valid paged call (5 pages of 4 tokens, 2 heads of 32) with arguments replaced."""
_OUTPUT = uint8(3, 8, 2, 32, dtype=torch.bfloat16)
paged_into = partial(call, **_PAGES, output_k=_OUTPUT, output_v=_OUTPUT)
"""Builds one of the overload with outputs."""
kv_quantize = partial(call, input=uint8(4, 64, dtype=torch.bfloat16), global_scale=scale())
"""Builds a valid call of nvfp4_kv_quantize, M = 4 and K = 64, with changes."""
kv_quantize_into = partial(kv_quantize, fp4_output=uint8(4, 32), block_scales=uint8(4, 4))
"""Builds one of nvfp4_kv_quantize.out."""

REFUSED = refused(
    "nvfp4_kv_dequantize",
    (
        "data dtype",
        call(uint8(4, 32, dtype=torch.int8), *KV[1:], torch.bfloat16),
        ("'fp4_data'", "int8", "uint8"),
    ),
    (
        "data rank",
        call(uint8(2, 4, 32), *KV[1:], torch.bfloat16),
        ("'fp4_data'", r"\[2, 4, 32\]", "2 dimensions"),
    ),
    (
        "columns",
        call(uint8(4, 20), *KV[1:], torch.bfloat16),
        ("'fp4_data'", "40 values", "multiple of 16"),
    ),
    (
        "swizzled scales",
        call(KV[0], uint8(128, 4), scale(), torch.bfloat16),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]", "linear"),
    ),
    (
        "scale dtype",
        call(KV[0], uint8(4, 4, dtype=torch.float32), scale(), torch.bfloat16),
        ("'block_scales'", "float32", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "global scale dtype",
        call(*KV[:2], scale(dtype=torch.bfloat16), torch.bfloat16),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    (
        "global scale elsewhere",
        call(*KV[:2], elsewhere(scale()), torch.bfloat16),
        ("'global_scale'", "device (cpu|meta)", "'fp4_data'"),
    ),
    (
        "global scale of two elements",
        call(*KV[:2], scale(2), torch.bfloat16),
        ("'global_scale'", r"\[2\]", "one element"),
    ),
    (
        "output dtype",
        call(*KV, torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    (
        "too many values",
        call(uint8(1, 8, stretch=2**27), uint8(1, 1, stretch=2**27), scale(), torch.bfloat16),
        ("'fp4_data'", "2147483648", r"2\*\*31"),
    ),
    (
        "too long a row",
        call(uint8(1, 49149 * 8), uint8(1, 49149), scale(), torch.bfloat16),
        ("'fp4_data'", "786384", "at most 786368", "shared memory"),
    ),
)
REFUSED += refused(
    "nvfp4_kv_dequantize.out",
    (
        "out dtype",
        call(*KV, out=uint8(4, 64, dtype=torch.float32)),
        ("'out'", "float32", "bfloat16 or .*float16"),
    ),
    (
        "out strides",
        call(*KV, out=column_major(4, 64, dtype=HALF)),
        ("'out'", r"strides \[1, 4\]", r"strides \[64, 1\]"),
    ),
)


REFUSED += refused(
    "nvfp4_kv_dequantize_paged",
    (
        "cache dtype",
        paged(paged_v_cache=uint8(5, 4, 2, 16, dtype=torch.int8)),
        ("'paged_v_cache'", "int8", "uint8"),
    ),
    (
        "cache rank",
        paged(paged_k_cache=uint8(5, 4, 16)),
        ("'paged_k_cache'", r"\[5, 4, 16\]", "4 dimensions"),
    ),
    (
        "head size",
        paged(paged_k_cache=uint8(5, 4, 2, 12)),
        ("'paged_k_cache'", "head_dim 24", "multiple of 16"),
    ),
    (
        "caches that differ",
        paged(paged_v_cache=uint8(5, 4, 3, 16)),
        ("'paged_v_cache'", r"\[5, 4, 3, 16\]", r"\[5, 4, 2, 16\]"),
    ),
    (
        "scales of other pages",
        paged(k_block_scales=uint8(4, 4, 2, 2)),
        ("'k_block_scales'", r"\[4, 4, 2, 2\]", "paged_k_cache"),
    ),
    (
        "scales of another head size",
        paged(v_block_scales=uint8(5, 4, 2, 4)),
        ("'v_block_scales'", r"\[5, 4, 2, 4\]", "2 scales a head"),
    ),
    (
        "scale dtype",
        paged(v_block_scales=uint8(5, 4, 2, 2, dtype=torch.int8)),
        ("'v_block_scales'", "int8", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "last dimension of the cache",
        paged(paged_k_cache=every_other(5, 4, 2, 16)),
        ("'paged_k_cache'", "stride 2", "last dimension"),
    ),
    (
        "last dimension of the scales",
        paged(v_block_scales=every_other(5, 4, 2, 2)),
        ("'v_block_scales'", "stride 2", "last dimension"),
    ),
    (
        "scales elsewhere",
        paged(k_block_scales=elsewhere(uint8(5, 4, 2, 2))),
        ("'k_block_scales'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    (
        "block table dtype",
        paged(block_tables=uint8(3, 2, dtype=torch.int16)),
        ("'block_tables'", "int16", "int32 or .*int64"),
    ),
    (
        "block table too narrow",
        paged(max_seq_len=9),
        ("'block_tables'", r"\[3, 2\]", "pages of 4", "9 tokens"),
    ),
    (
        "block table elsewhere",
        paged(block_tables=elsewhere(uint8(3, 2, dtype=torch.int32))),
        ("'block_tables'", "device (cpu|meta)", "'paged_k_cache'"),
    ),
    (
        "sequence length dtype",
        paged(seq_lens=uint8(3, dtype=torch.int64)),
        ("'seq_lens'", "int64", "int32"),
    ),
    (
        "sequence length batch",
        paged(seq_lens=uint8(2, dtype=torch.int32)),
        ("'seq_lens'", r"\[2\]", r"\[3\]"),
    ),
    ("k scale dtype", paged(k_scale=scale(dtype=HALF)), ("'k_scale'", "float16", "float32")),
    ("v scale of two elements", paged(v_scale=scale(2)), ("'v_scale'", r"\[2\]", "one element")),
    ("negative length", paged(max_seq_len=-1), ("'max_seq_len'", "got -1", "0 or more")),
    (
        "output dtype",
        paged(output_dtype=torch.float32),
        ("'output_dtype'", "float32", "bfloat16 or .*float16"),
    ),
    ("layout number", paged(kv_layout=2), ("'kv_layout'", "got 2", "NHD", "HND")),
    (
        "too many rows",
        paged(
            block_tables=uint8(1, 2**14, dtype=torch.int32, stretch=2**16),
            seq_lens=uint8(1, dtype=torch.int32, stretch=2**16),
            max_seq_len=2**14,
        ),
        ("'max_seq_len'", "2147483648", r"2\*\*31"),
    ),
)
REFUSED += refused(
    "nvfp4_kv_dequantize_paged.out",
    (
        "output of the wrong dtype",
        paged_into(output_k=uint8(3, 8, 2, 32, dtype=torch.float32)),
        ("'output_k'", "float32", "bfloat16 or .*float16"),
    ),
    (
        "outputs of two dtypes",
        paged_into(output_v=uint8(3, 8, 2, 32, dtype=HALF)),
        ("'output_v'", "float16", "bfloat16"),
    ),
    (
        "output of the wrong shape",
        paged_into(output_v=uint8(3, 8, 2, 48, dtype=torch.bfloat16)),
        ("'output_v'", r"\[3, 8, 2, 48\]", r"\[3, 8, 2, 32\]"),
    ),
    (
        "output of the wrong strides",
        paged_into(
            output_k=lambda device: empty(device, 3, 2, 8, 32, dtype=torch.bfloat16).transpose(1, 2)
        ),
        ("'output_k'", r"strides \[512, 32, 256, 1\]", r"strides \[512, 64, 32, 1\]"),
    ),
    (
        "output longer than the block table",
        paged_into(
            output_k=uint8(3, 9, 2, 32, dtype=torch.bfloat16),
            output_v=uint8(3, 9, 2, 32, dtype=torch.bfloat16),
        ),
        ("'block_tables'", "9 tokens"),
    ),
)


REFUSED += refused(
    "nvfp4_kv_quantize",
    (
        "dtype",
        kv_quantize(input=uint8(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    (
        "rank",
        kv_quantize(input=uint8(5, 4, 2, 64, dtype=HALF)),
        ("'input'", r"\[5, 4, 2, 64\]", "2 dimensions"),
    ),
    (
        "columns",
        kv_quantize(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    (
        "too long a row",
        kv_quantize(input=lambda d: empty(d, 1, 1, dtype=HALF).expand(1, 2**31)),
        ("'input'", "number of columns of 2147483648", r"2\*\*31"),
    ),
    (
        "global scale for each row",
        kv_quantize(global_scale=scale(4)),
        ("'global_scale'", r"\[4\]", "one element"),
    ),
    *wrong_global_scales(kv_quantize, "global_scale", "input"),
)
REFUSED += refused(
    "nvfp4_kv_quantize.out",
    (
        "values of the wrong shape",
        kv_quantize_into(fp4_output=uint8(4, 64)),
        ("'fp4_output'", r"\[4, 64\]", r"\[4, 32\]"),
    ),
    (
        "swizzled scales",
        kv_quantize_into(block_scales=uint8(128, 4)),
        ("'block_scales'", r"\[128, 4\]", r"\[4, 4\]"),
    ),
    (
        "scales as float8",
        kv_quantize_into(block_scales=uint8(4, 4, dtype=torch.float8_e4m3fn)),
        ("'block_scales'", "float8_e4m3fn", "uint8"),
    ),
)

ACCEPTED = (
    ("nvfp4_kv_quantize", kv_quantize()),
    ("nvfp4_kv_quantize", kv_quantize(global_scale=lambda d: torch.ones((), device=d))),
    ("nvfp4_kv_quantize.out", kv_quantize_into()),
    ("nvfp4_kv_dequantize", call(*KV, torch.bfloat16)),
    ("nvfp4_kv_dequantize.out", call(*KV, out=uint8(4, 64, dtype=HALF))),
    ("nvfp4_kv_dequantize_paged", paged()),
    ("nvfp4_kv_dequantize_paged.out", paged_into()),
)
