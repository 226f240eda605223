"""`group_gemm_nvfp4_nt_groupwise` and `group_gemm_mxfp8_mxfp4_nt_groupwise`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, every_other, scale, uint8, viewed
from bad_inputs.calls import call, refused, wrong_results

GROUP_NVFP4 = "group_gemm_nvfp4_nt_groupwise"
GROUP_MXFP4 = "group_gemm_mxfp8_mxfp4_nt_groupwise"


def segments(groups: int) -> Callable[[str], torch.Tensor]:
    """Make the boundaries of segments of four rows."""
    return lambda device: torch.arange(0, 4 * groups + 1, 4, dtype=torch.int32, device=device)


# M = 8 in two groups, K = 128, N = 16.
_SHARED = partial(call, b=uint8(2, 16, 64), m_indptr=segments(2))
_NVFP4 = partial(
    _SHARED, a=uint8(8, 64), a_scale=uint8(256, 8), b_scale=uint8(2, 128, 8), alpha=None
)
_MXFP4 = partial(
    _SHARED,
    a=uint8(8, 128, dtype=torch.float8_e4m3fn),
    a_scale=uint8(256, 4),
    b_scale=uint8(2, 128, 4),
)
nvfp4 = partial(_NVFP4, out_dtype=torch.bfloat16)
"""Builds a valid call of group_gemm_nvfp4_nt_groupwise with arguments replaced."""
mxfp4 = partial(_MXFP4, out_dtype=torch.bfloat16)
"""Builds a valid call of group_gemm_mxfp8_mxfp4_nt_groupwise with arguments replaced."""
nvfp4_into = partial(_NVFP4, out=uint8(8, 16, dtype=HALF))
mxfp4_into = partial(_MXFP4, out=uint8(8, 16, dtype=HALF))

ACCEPTED = (
    (GROUP_NVFP4, nvfp4()),
    (GROUP_NVFP4, nvfp4(alpha=scale(2), out_dtype=HALF)),
    (GROUP_NVFP4, nvfp4(alpha=uint8(0, dtype=torch.float32), swap_ab=False, tile_n=32)),
    (GROUP_NVFP4, nvfp4(a=every_other(8, 64), a_scale=uint8(4096), tile_k=256)),
    (GROUP_NVFP4, nvfp4(a=viewed(torch.float4_e2m1fn_x2, 8, 64))),
    (GROUP_NVFP4, nvfp4(a_scale=viewed(torch.float8_e4m3fn, 256, 8))),
    (
        GROUP_NVFP4,
        nvfp4(a=uint8(0, 64), a_scale=uint8(128, 8), m_indptr=uint8(3, dtype=torch.int32)),
    ),
    (f"{GROUP_NVFP4}.out", nvfp4_into()),
    (GROUP_MXFP4, mxfp4()),
    (GROUP_MXFP4, mxfp4(a=viewed(torch.float8_e5m2, 8, 128), out_dtype=HALF)),
    (GROUP_MXFP4, mxfp4(b_scale=viewed(torch.float8_e8m0fnu, 2, 128, 4), swap_ab=False)),
    (f"{GROUP_MXFP4}.out", mxfp4_into()),
)
"""Every device that has kernels takes these: the tiles are those of all."""


REFUSED = refused(
    GROUP_NVFP4,
    (
        "dtype of a",
        nvfp4(a=uint8(8, 64, dtype=torch.int8)),
        ("'a': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2", "convert"),
    ),
    ("rank of a", nvfp4(a=uint8(1, 8, 64)), ("'a': got shape", r"\[1, 8, 64\]", "2 dimensions")),
    (
        "dtype of b",
        nvfp4(b=uint8(2, 16, 64, dtype=torch.bfloat16)),
        ("'b': got dtype .*bfloat16", "uint8 or .*float4_e2m1fn_x2"),
    ),
    ("rank of b", nvfp4(b=uint8(16, 64)), ("'b': got shape", r"\[16, 64\]", "3 dimensions")),
    (
        "b elsewhere",
        nvfp4(b=elsewhere(uint8(2, 16, 64))),
        ("'b': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "no groups",
        nvfp4(b=uint8(0, 16, 64), m_indptr=uint8(1, dtype=torch.int32)),
        ("'b': got shape", r"\[0, 16, 64\]", "at least one matrix", "one matrix for each group"),
    ),
    (
        "b of another K",
        nvfp4(b=uint8(2, 64, 16)),
        ("'b': got shape", r"\(32 values a row\)", r"128 values a row.*\[8, 64\]", "N, K / 2"),
    ),
    (
        "K",
        nvfp4(a=uint8(8, 96), b=uint8(2, 16, 96)),
        ("'a': got shape", r"\(192 values a row\)", "positive multiple of 128 values"),
    ),
    (
        "K of 0",
        nvfp4(a=uint8(8, 0), b=uint8(2, 16, 0)),
        ("'a': got shape", r"\(0 values a row\)", "positive multiple of 128 values"),
    ),
    (
        "N",
        nvfp4(b=uint8(2, 12, 64)),
        ("'b': got shape", r"\(12 rows\)", "positive multiple of 8 rows"),
    ),
    (
        "N of 0",
        nvfp4(b=uint8(2, 0, 64)),
        ("'b': got shape", r"\(0 rows\)", "positive multiple of 8 rows"),
    ),
    (
        "too many rows",
        nvfp4(a=uint8(1, 64, stretch=2**31)),
        ("'a': got a number of rows of 2147483648", r"2\*\*31"),
    ),
    (
        "transposed b",
        nvfp4(b=column_major(2, 16, 64)),
        ("'b'", r"strides \[1024, 1, 16\]", r"strides \[1024, 64, 1\]", "make it contiguous once"),
    ),
    (
        "scales of a elsewhere",
        nvfp4(a_scale=elsewhere(uint8(256, 8))),
        ("'a_scale': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "dtype of the scales of a",
        nvfp4(a_scale=viewed(torch.float8_e8m0fnu, 256, 8)),
        ("'a_scale': got dtype .*float8_e8m0fnu", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "strides of the scales of a",
        nvfp4(a_scale=column_major(256, 8)),
        ("'a_scale'", r"strides \[1, 256\]", "contiguous scales;"),
    ),
    (
        "scales of a in one piece",
        nvfp4(a_scale=uint8(128, 8)),
        (
            "'a_scale': got 1024 scales, expected at least 2048",
            r"\(8 rows \+ 127 \* 2 groups\) / 128 \* 128 rows of 8",
            r"row \(m_indptr\[i\] \+ 127 \* i\) / 128 \* 128",
        ),
    ),
    (
        "dtype of the scales of b",
        nvfp4(b_scale=uint8(2, 128, 8, dtype=torch.float32)),
        ("'b_scale': got dtype .*float32", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "scales of b elsewhere",
        nvfp4(b_scale=elsewhere(uint8(2, 128, 8))),
        ("'b_scale': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "strides of the scales of b",
        nvfp4(b_scale=every_other(2, 128, 8)),
        ("'b_scale'", r"strides \[2048, 16, 2\]", "contiguous scales;"),
    ),
    (
        "linear scales of b",
        nvfp4(b_scale=uint8(2, 16, 8)),
        (
            "'b_scale': got 256 scales, expected 2048",
            "layout_128x4 for each of 2 matrices with 16 rows of 128 values",
            "each matrix by itself",
        ),
    ),
    (
        "dtype of the segments",
        nvfp4(m_indptr=uint8(3, dtype=torch.int64)),
        ("'m_indptr': got dtype .*int64", "int32"),
    ),
    (
        "lengths of the segments",
        nvfp4(m_indptr=segments(1)),
        ("'m_indptr': got shape", r"\[2\]", r"\[3\], for 2 matrices of 'b'", "first row of each"),
    ),
    (
        "rank of the segments",
        nvfp4(m_indptr=uint8(3, 1, dtype=torch.int32)),
        ("'m_indptr': got shape", r"\[3, 1\]", r"\[3\]"),
    ),
    (
        "segments elsewhere",
        nvfp4(m_indptr=elsewhere(segments(2))),
        ("'m_indptr': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "dtype of alpha",
        nvfp4(alpha=scale(2, dtype=torch.bfloat16)),
        ("'alpha': got dtype .*bfloat16", "float32"),
    ),
    (
        "one alpha for two groups",
        nvfp4(alpha=scale()),
        ("'alpha': got shape", r"\[1\]", r"\[2\], for 2 matrices", "None for 1"),
    ),
    ("rank of alpha", nvfp4(alpha=scale(2, 1)), ("'alpha': got shape", r"\[2, 1\]", r"\[2\]")),
    (
        "alpha elsewhere",
        nvfp4(alpha=elsewhere(scale(2))),
        ("'alpha': got device (cpu|meta)", "the device of 'a'"),
    ),
    ("tile of M", nvfp4(tile_m=64), ("'tile_m': got 64, expected 128; leave the default",)),
    (
        "tile of N",
        nvfp4(tile_n=256),
        ("'tile_n': got 256, expected 32, 64 or 128; leave the default",),
    ),
    ("tile of K", nvfp4(tile_k=64), ("'tile_k': got 64, expected 128 or 256; leave the default",)),
    (
        "output dtype",
        nvfp4(out_dtype=torch.float32),
        ("'out_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
)
REFUSED += refused(
    f"{GROUP_NVFP4}.out",
    ("tile of N for the out form", nvfp4_into(tile_n=96), ("'tile_n': got 96",)),
    (
        "out of the wrong dtype",
        nvfp4_into(out=uint8(8, 16, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
)
REFUSED += refused(
    GROUP_MXFP4,
    (
        "dtype of a",
        mxfp4(a=uint8(8, 128)),
        ("'a': got dtype .*uint8", "float8_e4m3fn or .*float8_e5m2"),
    ),
    (
        "a of the K of NVFP4",
        mxfp4(a=uint8(8, 64, dtype=torch.float8_e4m3fn)),
        ("'b': got shape", r"\(128 values a row\), expected 64 values a row"),
    ),
    (
        "E4M3 scales",
        mxfp4(a_scale=viewed(torch.float8_e4m3fn, 256, 4)),
        ("'a_scale': got dtype .*float8_e4m3fn", "uint8 or .*float8_e8m0fnu"),
    ),
    (
        "scales of a in one piece",
        mxfp4(a_scale=uint8(128, 4)),
        ("'a_scale': got 512 scales, expected at least 1024", "rows of 4"),
    ),
    (
        "E4M3 scales of b",
        mxfp4(b_scale=viewed(torch.float8_e4m3fn, 2, 128, 4)),
        ("'b_scale': got dtype .*float8_e4m3fn", "uint8 or .*float8_e8m0fnu"),
    ),
    (
        "scales of b for blocks of 16",
        mxfp4(b_scale=uint8(2, 128, 8)),
        ("'b_scale': got 2048 scales, expected 1024",),
    ),
    ("multiprocessors", mxfp4(mma_sm=4), ("'mma_sm': got 4, expected 1 or 2; leave the default",)),
    (
        "tile of N",
        mxfp4(tile_n=96),
        ("'tile_n': got 96, expected 32, 64, 128, 192 or 256; leave the default",),
    ),
    (
        "output dtype",
        mxfp4(out_dtype=torch.float8_e4m3fn),
        ("'out_dtype': got .*float8_e4m3fn", "bfloat16 or .*float16"),
    ),
)
REFUSED += refused(
    f"{GROUP_MXFP4}.out",
    ("multiprocessors for the out form", mxfp4_into(mma_sm=0), ("'mma_sm': got 0",)),
    *wrong_results(mxfp4_into, 8, 16, "a"),
)
