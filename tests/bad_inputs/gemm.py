"""`mm_fp4`."""

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
    empty,
    every_other,
    scale,
    uint8,
    viewed,
)


def _factors(batch: tuple[int, ...]) -> dict[str, Any]:
    """Make what both forms of mm_fp4 take: M = 4, K = 64, N = 96."""
    return {
        "a": uint8(*batch, 4, 32),
        "b": column_major(*batch, 32, 96),
        "a_descale": uint8(*batch, 128, 4),
        "b_descale": uint8(*batch, 128, 4),
        "alpha": scale,
    }


def multiply(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4 with arguments replaced."""
    return call(**{**_factors(batch), "out_dtype": torch.bfloat16, **changes})


def multiply_into(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4.out with arguments replaced."""
    out = uint8(*batch, 4, 96, dtype=torch.bfloat16)
    return call(**{**_factors(batch), "out": out, **changes})


REFUSED = (
    BadInput(
        "E8M0 scales",
        "mm_fp4",
        multiply(a_descale=viewed(torch.float8_e8m0fnu, 512)),
        ("'a_descale': got dtype .*float8_e8m0fnu", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "dtype of a",
        "mm_fp4",
        multiply(a=uint8(4, 32, dtype=torch.int8)),
        ("'a': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2", "convert"),
    ),
    BadInput(
        "rank of a",
        "mm_fp4",
        multiply(a=uint8(32)),
        ("'a': got shape", r"\[32\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "dtype of b",
        "mm_fp4",
        multiply(b=column_major(32, 96, dtype=torch.bfloat16)),
        ("'b': got dtype .*bfloat16", "uint8 or .*float4_e2m1fn_x2"),
    ),
    BadInput(
        "matrix and batch",
        "mm_fp4",
        multiply(b=column_major(1, 32, 96)),
        ("'b': got shape", r"\[1, 32, 96\]", "expected 2 dimensions"),
    ),
    BadInput(
        "batch and matrix",
        "mm_fp4",
        multiply(batch=(2,), b=column_major(32, 96)),
        ("'b': got shape", r"\[32, 96\]", "expected 3 dimensions"),
    ),
    BadInput(
        "b elsewhere",
        "mm_fp4",
        multiply(b=elsewhere(column_major(32, 96))),
        ("'b': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "batches that differ",
        "mm_fp4",
        multiply(batch=(2,), b=column_major(3, 32, 96)),
        ("'b': got shape", r"\[3, 32, 96\]", r"2 matrices, as in a of shape \[2, 4, 32\]"),
    ),
    BadInput(
        "weight that is not transposed",
        "mm_fp4",
        multiply(b=uint8(96, 32)),
        ("'b': got shape", r"\[96, 32\]", r"32 rows \(K / 2\)", r"\[4, 32\]", r"weight\.T"),
    ),
    BadInput(
        "weights that are not transposed",
        "mm_fp4",
        multiply(batch=(2,), b=uint8(2, 96, 32)),
        ("'b': got shape", r"\[2, 96, 32\]", r"32 rows", r"weight\.transpose\(-2, -1\)"),
    ),
    BadInput(
        "K",
        "mm_fp4",
        multiply(a=uint8(4, 24), b=column_major(24, 96)),
        ("'a': got shape", r"\[4, 24\] \(48 values a row\)", "positive multiple of 32 values"),
    ),
    BadInput(
        "K of 0",
        "mm_fp4",
        multiply(a=uint8(4, 0), b=column_major(0, 96)),
        ("'a': got shape", r"\[4, 0\] \(0 values a row\)", "positive multiple of 32 values"),
    ),
    BadInput(
        "N",
        "mm_fp4",
        multiply(b=column_major(32, 48)),
        ("'b': got shape", r"\[32, 48\] \(48 columns\)", "positive multiple of 32 columns"),
    ),
    BadInput(
        "N of 0",
        "mm_fp4",
        multiply(b=column_major(32, 0)),
        ("'b': got shape", r"\[32, 0\] \(0 columns\)", "positive multiple of 32 columns"),
    ),
    BadInput(
        "too many rows",
        "mm_fp4",
        multiply(a=uint8(1, 32, stretch=2**31)),
        ("'a': got a number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many matrices",
        "mm_fp4",
        multiply(
            a=uint8(1, 4, 32, stretch=2**31),
            b=lambda device: empty(device, 1, 96, 32, stretch=2**31).transpose(-2, -1),
        ),
        ("'a': got a number of matrices of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "row-major b",
        "mm_fp4",
        multiply(b=uint8(32, 96)),
        ("'b': got shape", r"strides \[96, 1\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    BadInput(
        "columns of a wider b",
        "mm_fp4",
        multiply(b=lambda device: empty(device, 96, 64).as_strided((32, 96), (1, 64))),
        ("'b': got shape", r"strides \[1, 64\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    BadInput(
        "row-major batch",
        "mm_fp4",
        multiply(batch=(2,), b=uint8(2, 32, 96)),
        ("'b'", r"strides \[3072, 96, 1\]", r"\[3072, 1, 32\]", r"weight\.transpose\(-2, -1\)"),
    ),
    BadInput(
        "dtype of the scales of a",
        "mm_fp4",
        multiply(a_descale=uint8(128, 4, dtype=torch.float32)),
        ("'a_descale': got dtype .*float32", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "scales of a elsewhere",
        "mm_fp4",
        multiply(a_descale=elsewhere(uint8(128, 4))),
        ("'a_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "strides of the scales of a",
        "mm_fp4",
        multiply(a_descale=column_major(128, 4)),
        ("'a_descale': got shape", r"strides \[1, 128\]", "contiguous scales;", "quantizer"),
    ),
    BadInput(
        "linear scales of a",
        "mm_fp4",
        multiply(a_descale=uint8(4, 4)),
        (
            "'a_descale': got 16 scales, as many as layout_linear has",
            r"512 \(layout_128x4 for 4 rows of 64 values\)",
            "quantize with the 128x4 layout$",
        ),
    ),
    BadInput(
        "8x4 scales of a",
        "mm_fp4",
        multiply(a_descale=uint8(8, 4)),
        ("'a_descale': got 32 scales, as many as layout_8x4 has", "expected 512"),
    ),
    BadInput(
        "scales of a batch in one piece",
        "mm_fp4",
        multiply(batch=(2,), a_descale=uint8(128, 4)),
        (
            "'a_descale': got 512 scales, expected 1024",
            "layout_128x4 for each of 2 matrices with 4 rows of 64 values",
            "128x4 layout, each matrix by itself",
        ),
    ),
    BadInput(
        "dtype of the scales of b",
        "mm_fp4",
        multiply(b_descale=uint8(128, 4, dtype=torch.int8)),
        ("'b_descale': got dtype .*int8", "uint8 or .*float8_e4m3fn"),
    ),
    BadInput(
        "scales of b elsewhere",
        "mm_fp4",
        multiply(b_descale=elsewhere(uint8(128, 4))),
        ("'b_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "strides of the scales of b",
        "mm_fp4",
        multiply(b_descale=every_other(128, 4)),
        ("'b_descale'", r"strides \[8, 2\]", "contiguous scales or their transpose"),
    ),
    BadInput(
        "linear scales of b",
        "mm_fp4",
        multiply(b_descale=uint8(96, 4)),
        ("'b_descale': got 384 scales, as many as", r"512 \(layout_128x4 for 96 rows of 64 values"),
    ),
    BadInput(
        "no alpha",
        "mm_fp4",
        multiply(alpha=None),
        ("'alpha': got None", "float32", r"1 / \(a_global_sf \* b_global_sf\)"),
    ),
    BadInput(
        "dtype of alpha",
        "mm_fp4",
        multiply(alpha=lambda device: scale(device, dtype=torch.bfloat16)),
        ("'alpha': got dtype .*bfloat16", "float32"),
    ),
    BadInput(
        "alpha for each row",
        "mm_fp4",
        multiply(alpha=lambda device: scale(device, 4)),
        ("'alpha': got shape", r"\[4\]", "one element", "each row", "scale the rows of the result"),
    ),
    BadInput(
        "alpha elsewhere",
        "mm_fp4",
        multiply(alpha=elsewhere(scale)),
        ("'alpha': got device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "negative tactic",
        "mm_fp4",
        multiply(tactic=-2),
        ("'tactic': got -2", "the number of a tactic", "pass -1"),
    ),
    BadInput(
        "output dtype",
        "mm_fp4",
        multiply(out_dtype=torch.float32),
        ("'out_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "no alpha for the out form",
        "mm_fp4.out",
        multiply_into(alpha=None),
        ("'alpha': got None", "float32"),
    ),
    BadInput(
        "out of the wrong dtype",
        "mm_fp4.out",
        multiply_into(out=uint8(4, 96, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
    BadInput(
        "out of the wrong shape",
        "mm_fp4.out",
        multiply_into(out=uint8(96, 4, dtype=HALF)),
        ("'out': got shape", r"\[96, 4\]", r"\[4, 96\]", "functional form"),
    ),
    BadInput(
        "out of the wrong strides",
        "mm_fp4.out",
        multiply_into(out=column_major(4, 96, dtype=HALF)),
        ("'out': got shape", r"strides \[1, 4\]", r"strides \[96, 1\]"),
    ),
    BadInput(
        "out without its batch",
        "mm_fp4.out",
        multiply_into(batch=(1,), out=uint8(4, 96, dtype=HALF)),
        ("'out': got shape", r"\[4, 96\]", r"\[1, 4, 96\]"),
    ),
    BadInput(
        "out elsewhere",
        "mm_fp4.out",
        multiply_into(out=elsewhere(uint8(4, 96, dtype=HALF))),
        ("'out': got device (cpu|meta)", "the device of 'a'"),
    ),
)

ACCEPTED = (
    ("mm_fp4", multiply()),
    ("mm_fp4", multiply(batch=(2,), out_dtype=HALF, tactic=3)),
    ("mm_fp4", multiply(a=uint8(0, 32), a_descale=uint8(0, 4))),
    ("mm_fp4", multiply(batch=(0,))),
    ("mm_fp4", multiply(a=viewed(torch.float4_e2m1fn_x2, 4, 32))),
    ("mm_fp4", multiply(a=every_other(4, 32), alpha=lambda d: torch.ones((), device=d))),
    ("mm_fp4", multiply(a_descale=uint8(512), b_descale=column_major(4, 128))),
    ("mm_fp4", multiply(batch=(2,), b_descale=column_major(2, 4, 128))),
    ("mm_fp4.out", multiply_into()),
    ("mm_fp4.out", multiply_into(batch=(2,), out=uint8(2, 4, 96, dtype=HALF))),
)
