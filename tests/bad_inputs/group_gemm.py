"""`group_gemm_nvfp4_nt_groupwise` and `group_gemm_mxfp8_mxfp4_nt_groupwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import (
    HALF,
    Arguments,
    BadInput,
    call,
    column_major,
    elsewhere,
    every_other,
    scale,
    uint8,
    viewed,
)

GROUP_NVFP4 = "group_gemm_nvfp4_nt_groupwise"
GROUP_MXFP4 = "group_gemm_mxfp8_mxfp4_nt_groupwise"


def segments(groups: int) -> Callable[[str], torch.Tensor]:
    """Make the boundaries of segments of four rows."""
    return lambda device: torch.arange(0, 4 * groups + 1, 4, dtype=torch.int32, device=device)


# M = 8 in two groups, K = 128, N = 16.
_SHARED = {"b": uint8(2, 16, 64), "m_indptr": segments(2)}
_NVFP4 = {
    **_SHARED,
    "a": uint8(8, 64),
    "a_scale": uint8(256, 8),
    "b_scale": uint8(2, 128, 8),
    "alpha": None,
}
_MXFP4 = {
    **_SHARED,
    "a": uint8(8, 128, dtype=torch.float8_e4m3fn),
    "a_scale": uint8(256, 4),
    "b_scale": uint8(2, 128, 4),
}


def nvfp4(into: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of group_gemm_nvfp4_nt_groupwise with arguments replaced."""
    return _call(_NVFP4, into, changes)


def mxfp4(into: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of group_gemm_mxfp8_mxfp4_nt_groupwise with arguments replaced."""
    return _call(_MXFP4, into, changes)


def _call(
    factors: dict[str, Any], into: bool, changes: dict[str, Any]
) -> Callable[[str], Arguments]:
    results = {"out": uint8(8, 16, dtype=HALF)} if into else {"out_dtype": torch.bfloat16}
    return call(**{**factors, **results, **changes})


ACCEPTED: tuple[tuple[str, Callable[[str], Arguments]], ...] = (
    (GROUP_NVFP4, nvfp4()),
    (GROUP_NVFP4, nvfp4(alpha=lambda device: scale(device, 2), out_dtype=HALF)),
    (GROUP_NVFP4, nvfp4(alpha=uint8(0, dtype=torch.float32), swap_ab=False, tile_n=32)),
    (GROUP_NVFP4, nvfp4(a=every_other(8, 64), a_scale=uint8(4096), tile_k=256)),
    (GROUP_NVFP4, nvfp4(a=viewed(torch.float4_e2m1fn_x2, 8, 64))),
    (GROUP_NVFP4, nvfp4(a_scale=viewed(torch.float8_e4m3fn, 256, 8))),
    (
        GROUP_NVFP4,
        nvfp4(a=uint8(0, 64), a_scale=uint8(128, 8), m_indptr=uint8(3, dtype=torch.int32)),
    ),
    (f"{GROUP_NVFP4}.out", nvfp4(into=True)),
    (GROUP_MXFP4, mxfp4()),
    (GROUP_MXFP4, mxfp4(a=viewed(torch.float8_e5m2, 8, 128), out_dtype=HALF)),
    (GROUP_MXFP4, mxfp4(b_scale=viewed(torch.float8_e8m0fnu, 2, 128, 4), swap_ab=False)),
    (f"{GROUP_MXFP4}.out", mxfp4(into=True)),
)
"""Every device that has kernels takes these: the tiles are those of all."""


REFUSED = (
    BadInput(
        "dtype of a",
        GROUP_NVFP4,
        nvfp4(a=uint8(8, 64, dtype=torch.int8)),
        ("'a': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2", "convert"),
    ),
    BadInput(
        "rank of a",
        GROUP_NVFP4,
        nvfp4(a=uint8(1, 8, 64)),
        ("'a': got shape", r"\[1, 8, 64\]", "2 dimensions"),
    ),
    BadInput(
        "dtype of b",
        GROUP_NVFP4,
        nvfp4(b=uint8(2, 16, 64, dtype=torch.bfloat16)),
        ("'b': got dtype .*bfloat16", "uint8 or .*float4_e2m1fn_x2"),
    ),
    BadInput(
        "rank of b",
        GROUP_NVFP4,
        nvfp4(b=uint8(16, 64)),
        ("'b': got shape", r"\[16, 64\]", "3 dimensions"),
    ),
    BadInput(
        "b elsewhere",
        GROUP_NVFP4,
        nvfp4(b=elsewhere(uint8(2, 16, 64))),
        ("'b': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "no groups",
        GROUP_NVFP4,
        nvfp4(b=uint8(0, 16, 64), m_indptr=uint8(1, dtype=torch.int32)),
        ("'b': got shape", r"\[0, 16, 64\]", "at least one matrix", "one matrix for each group"),
    ),
    BadInput(
        "b of another K",
        GROUP_NVFP4,
        nvfp4(b=uint8(2, 64, 16)),
        ("'b': got shape", r"\(32 values a row\)", r"128 values a row.*\[8, 64\]", "N, K / 2"),
    ),
    BadInput(
        "K",
        GROUP_NVFP4,
        nvfp4(a=uint8(8, 96), b=uint8(2, 16, 96)),
        ("'a': got shape", r"\(192 values a row\)", "positive multiple of 128 values"),
    ),
    BadInput(
        "K of 0",
        GROUP_NVFP4,
        nvfp4(a=uint8(8, 0), b=uint8(2, 16, 0)),
        ("'a': got shape", r"\(0 values a row\)", "positive multiple of 128 values"),
    ),
    BadInput(
        "N",
        GROUP_NVFP4,
        nvfp4(b=uint8(2, 12, 64)),
        ("'b': got shape", r"\(12 rows\)", "positive multiple of 8 rows"),
    ),
    BadInput(
        "N of 0",
        GROUP_NVFP4,
        nvfp4(b=uint8(2, 0, 64)),
        ("'b': got shape", r"\(0 rows\)", "positive multiple of 8 rows"),
    ),
    BadInput(
        "too many rows",
        GROUP_NVFP4,
        nvfp4(a=uint8(1, 64, stretch=2**31)),
        ("'a': got a number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "transposed b",
        GROUP_NVFP4,
        nvfp4(b=column_major(2, 16, 64)),
        ("'b'", r"strides \[1024, 1, 16\]", r"strides \[1024, 64, 1\]", "make it contiguous once"),
    ),
    BadInput(
        "scales of a elsewhere",
        GROUP_NVFP4,
        nvfp4(a_scale=elsewhere(uint8(256, 8))),
        ("'a_scale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "dtype of the scales of a",
        GROUP_NVFP4,
        nvfp4(a_scale=viewed(torch.float8_e8m0fnu, 256, 8)),
        ("'a_scale': got dtype .*float8_e8m0fnu", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "strides of the scales of a",
        GROUP_NVFP4,
        nvfp4(a_scale=column_major(256, 8)),
        ("'a_scale'", r"strides \[1, 256\]", "contiguous scales;"),
    ),
    BadInput(
        "scales of a in one piece",
        GROUP_NVFP4,
        nvfp4(a_scale=uint8(128, 8)),
        (
            "'a_scale': got 1024 scales, expected at least 2048",
            r"\(8 rows \+ 127 \* 2 groups\) / 128 \* 128 rows of 8",
            r"row \(m_indptr\[i\] \+ 127 \* i\) / 128 \* 128",
        ),
    ),
    BadInput(
        "dtype of the scales of b",
        GROUP_NVFP4,
        nvfp4(b_scale=uint8(2, 128, 8, dtype=torch.float32)),
        ("'b_scale': got dtype .*float32", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "scales of b elsewhere",
        GROUP_NVFP4,
        nvfp4(b_scale=elsewhere(uint8(2, 128, 8))),
        ("'b_scale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "strides of the scales of b",
        GROUP_NVFP4,
        nvfp4(b_scale=every_other(2, 128, 8)),
        ("'b_scale'", r"strides \[2048, 16, 2\]", "contiguous scales;"),
    ),
    BadInput(
        "linear scales of b",
        GROUP_NVFP4,
        nvfp4(b_scale=uint8(2, 16, 8)),
        (
            "'b_scale': got 256 scales, expected 2048",
            "layout_128x4 for each of 2 matrices with 16 rows of 128 values",
            "each matrix by itself",
        ),
    ),
    BadInput(
        "dtype of the segments",
        GROUP_NVFP4,
        nvfp4(m_indptr=uint8(3, dtype=torch.int64)),
        ("'m_indptr': got dtype .*int64", "int32"),
    ),
    BadInput(
        "lengths of the segments",
        GROUP_NVFP4,
        nvfp4(m_indptr=segments(1)),
        ("'m_indptr': got shape", r"\[2\]", r"\[3\], for 2 matrices of 'b'", "first row of each"),
    ),
    BadInput(
        "rank of the segments",
        GROUP_NVFP4,
        nvfp4(m_indptr=uint8(3, 1, dtype=torch.int32)),
        ("'m_indptr': got shape", r"\[3, 1\]", r"\[3\]"),
    ),
    BadInput(
        "segments elsewhere",
        GROUP_NVFP4,
        nvfp4(m_indptr=elsewhere(segments(2))),
        ("'m_indptr': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "dtype of alpha",
        GROUP_NVFP4,
        nvfp4(alpha=lambda device: scale(device, 2, dtype=torch.bfloat16)),
        ("'alpha': got dtype .*bfloat16", "float32"),
    ),
    BadInput(
        "one alpha for two groups",
        GROUP_NVFP4,
        nvfp4(alpha=scale),
        ("'alpha': got shape", r"\[1\]", r"\[2\], for 2 matrices", "None for 1"),
    ),
    BadInput(
        "rank of alpha",
        GROUP_NVFP4,
        nvfp4(alpha=lambda device: scale(device, 2, 1)),
        ("'alpha': got shape", r"\[2, 1\]", r"\[2\]"),
    ),
    BadInput(
        "alpha elsewhere",
        GROUP_NVFP4,
        nvfp4(alpha=elsewhere(lambda device: scale(device, 2))),
        ("'alpha': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "tile of M",
        GROUP_NVFP4,
        nvfp4(tile_m=64),
        ("'tile_m': got 64, expected 128; leave the default",),
    ),
    BadInput(
        "tile of N",
        GROUP_NVFP4,
        nvfp4(tile_n=256),
        ("'tile_n': got 256, expected 32, 64 or 128; leave the default",),
    ),
    BadInput(
        "tile of K",
        GROUP_NVFP4,
        nvfp4(tile_k=64),
        ("'tile_k': got 64, expected 128 or 256; leave the default",),
    ),
    BadInput(
        "output dtype",
        GROUP_NVFP4,
        nvfp4(out_dtype=torch.float32),
        ("'out_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "tile of N for the out form",
        f"{GROUP_NVFP4}.out",
        nvfp4(into=True, tile_n=96),
        ("'tile_n': got 96",),
    ),
    BadInput(
        "out of the wrong dtype",
        f"{GROUP_NVFP4}.out",
        nvfp4(into=True, out=uint8(8, 16, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "dtype of a",
        GROUP_MXFP4,
        mxfp4(a=uint8(8, 128)),
        ("'a': got dtype .*uint8", "float8_e4m3fn or .*float8_e5m2"),
    ),
    BadInput(
        "a of the K of NVFP4",
        GROUP_MXFP4,
        mxfp4(a=uint8(8, 64, dtype=torch.float8_e4m3fn)),
        ("'b': got shape", r"\(128 values a row\), expected 64 values a row"),
    ),
    BadInput(
        "E4M3 scales",
        GROUP_MXFP4,
        mxfp4(a_scale=viewed(torch.float8_e4m3fn, 256, 4)),
        ("'a_scale': got dtype .*float8_e4m3fn", "uint8 or .*float8_e8m0fnu"),
    ),
    BadInput(
        "scales of a in one piece",
        GROUP_MXFP4,
        mxfp4(a_scale=uint8(128, 4)),
        ("'a_scale': got 512 scales, expected at least 1024", "rows of 4"),
    ),
    BadInput(
        "E4M3 scales of b",
        GROUP_MXFP4,
        mxfp4(b_scale=viewed(torch.float8_e4m3fn, 2, 128, 4)),
        ("'b_scale': got dtype .*float8_e4m3fn", "uint8 or .*float8_e8m0fnu"),
    ),
    BadInput(
        "scales of b for blocks of 16",
        GROUP_MXFP4,
        mxfp4(b_scale=uint8(2, 128, 8)),
        ("'b_scale': got 2048 scales, expected 1024",),
    ),
    BadInput(
        "multiprocessors",
        GROUP_MXFP4,
        mxfp4(mma_sm=4),
        ("'mma_sm': got 4, expected 1 or 2; leave the default",),
    ),
    BadInput(
        "tile of N",
        GROUP_MXFP4,
        mxfp4(tile_n=96),
        ("'tile_n': got 96, expected 32, 64, 128, 192 or 256; leave the default",),
    ),
    BadInput(
        "output dtype",
        GROUP_MXFP4,
        mxfp4(out_dtype=torch.float8_e4m3fn),
        ("'out_dtype': got .*float8_e4m3fn", "bfloat16 or .*float16"),
    ),
    BadInput(
        "multiprocessors for the out form",
        f"{GROUP_MXFP4}.out",
        mxfp4(into=True, mma_sm=0),
        ("'mma_sm': got 0",),
    ),
    BadInput(
        "out of the wrong shape",
        f"{GROUP_MXFP4}.out",
        mxfp4(into=True, out=uint8(16, 8, dtype=HALF)),
        ("'out': got shape", r"\[16, 8\]", r"\[8, 16\]", "functional form"),
    ),
    BadInput(
        "out of the wrong strides",
        f"{GROUP_MXFP4}.out",
        mxfp4(into=True, out=column_major(8, 16, dtype=HALF)),
        ("'out': got shape", r"strides \[1, 8\]", r"strides \[16, 1\]"),
    ),
    BadInput(
        "out elsewhere",
        f"{GROUP_MXFP4}.out",
        mxfp4(into=True, out=elsewhere(uint8(8, 16, dtype=HALF))),
        ("'out': got device (cpu|meta)", "the device of 'a'"),
    ),
)
