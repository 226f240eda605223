"""`mm_fp4`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, every_other, scale, uint8, viewed
from bad_inputs.calls import Arguments, call, refused, wrong_results


def _factors(batch: tuple[int, ...]) -> dict[str, Any]:
    """Make what both forms of mm_fp4 take: M = 4, K = 64, N = 96."""
    return {
        "a": uint8(*batch, 4, 32),
        "b": column_major(*batch, 32, 96),
        "a_descale": uint8(*batch, 128, 4),
        "b_descale": uint8(*batch, 128, 4),
        "alpha": scale(),
    }


def multiply(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4 with arguments replaced."""
    return call(**{**_factors(batch), "out_dtype": torch.bfloat16, **changes})


def multiply_into(batch: tuple[int, ...] = (), **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of mm_fp4.out with arguments replaced."""
    out = uint8(*batch, 4, 96, dtype=torch.bfloat16)
    return call(**{**_factors(batch), "out": out, **changes})


REFUSED = refused(
    "mm_fp4",
    (
        "E8M0 scales",
        multiply(a_descale=viewed(torch.float8_e8m0fnu, 512)),
        ("'a_descale': got dtype .*float8_e8m0fnu", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "dtype of a",
        multiply(a=uint8(4, 32, dtype=torch.int8)),
        ("'a': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2", "convert"),
    ),
    ("rank of a", multiply(a=uint8(32)), ("'a': got shape", r"\[32\]", "2 or 3 dimensions")),
    (
        "dtype of b",
        multiply(b=column_major(32, 96, dtype=torch.bfloat16)),
        ("'b': got dtype .*bfloat16", "uint8 or .*float4_e2m1fn_x2"),
    ),
    (
        "matrix and batch",
        multiply(b=column_major(1, 32, 96)),
        ("'b': got shape", r"\[1, 32, 96\]", "expected 2 dimensions"),
    ),
    (
        "batch and matrix",
        multiply(batch=(2,), b=column_major(32, 96)),
        ("'b': got shape", r"\[32, 96\]", "expected 3 dimensions"),
    ),
    (
        "b elsewhere",
        multiply(b=elsewhere(column_major(32, 96))),
        ("'b': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "batches that differ",
        multiply(batch=(2,), b=column_major(3, 32, 96)),
        ("'b': got shape", r"\[3, 32, 96\]", r"2 matrices, as in a of shape \[2, 4, 32\]"),
    ),
    (
        "weight that is not transposed",
        multiply(b=uint8(96, 32)),
        ("'b': got shape", r"\[96, 32\]", r"32 rows \(K / 2\)", r"\[4, 32\]", r"weight\.T"),
    ),
    (
        "weights that are not transposed",
        multiply(batch=(2,), b=uint8(2, 96, 32)),
        ("'b': got shape", r"\[2, 96, 32\]", r"32 rows", r"weight\.transpose\(-2, -1\)"),
    ),
    (
        "K",
        multiply(a=uint8(4, 24), b=column_major(24, 96)),
        ("'a': got shape", r"\[4, 24\] \(48 values a row\)", "positive multiple of 32 values"),
    ),
    (
        "K of 0",
        multiply(a=uint8(4, 0), b=column_major(0, 96)),
        ("'a': got shape", r"\[4, 0\] \(0 values a row\)", "positive multiple of 32 values"),
    ),
    (
        "N",
        multiply(b=column_major(32, 48)),
        ("'b': got shape", r"\[32, 48\] \(48 columns\)", "positive multiple of 32 columns"),
    ),
    (
        "N of 0",
        multiply(b=column_major(32, 0)),
        ("'b': got shape", r"\[32, 0\] \(0 columns\)", "positive multiple of 32 columns"),
    ),
    (
        "too many rows",
        multiply(a=uint8(1, 32, stretch=2**31)),
        ("'a': got a number of rows of 2147483648", r"2\*\*31"),
    ),
    (
        "too many matrices",
        multiply(a=uint8(1, 4, 32, stretch=2**31), b=column_major(1, 32, 96, stretch=2**31)),
        ("'a': got a number of matrices of 2147483648", r"2\*\*31"),
    ),
    (
        "row-major b",
        multiply(b=uint8(32, 96)),
        ("'b': got shape", r"strides \[96, 1\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    (
        "columns of a wider b",
        multiply(b=lambda device: uint8(96, 64)(device).as_strided((32, 96), (1, 64))),
        ("'b': got shape", r"strides \[1, 64\]", r"strides \[1, 32\]", r"weight\.T of a contig"),
    ),
    (
        "row-major batch",
        multiply(batch=(2,), b=uint8(2, 32, 96)),
        ("'b'", r"strides \[3072, 96, 1\]", r"\[3072, 1, 32\]", r"weight\.transpose\(-2, -1\)"),
    ),
    (
        "dtype of the scales of a",
        multiply(a_descale=uint8(128, 4, dtype=torch.float32)),
        ("'a_descale': got dtype .*float32", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "scales of a elsewhere",
        multiply(a_descale=elsewhere(uint8(128, 4))),
        ("'a_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "strides of the scales of a",
        multiply(a_descale=column_major(128, 4)),
        ("'a_descale': got shape", r"strides \[1, 128\]", "contiguous scales;", "quantizer"),
    ),
    (
        "linear scales of a",
        multiply(a_descale=uint8(4, 4)),
        (
            "'a_descale': got 16 scales, as many as layout_linear has",
            r"512 \(layout_128x4 for 4 rows of 64 values\)",
            "quantize with the 128x4 layout$",
        ),
    ),
    (
        "8x4 scales of a",
        multiply(a_descale=uint8(8, 4)),
        ("'a_descale': got 32 scales, as many as layout_8x4 has", "expected 512"),
    ),
    (
        "scales of a batch in one piece",
        multiply(batch=(2,), a_descale=uint8(128, 4)),
        (
            "'a_descale': got 512 scales, expected 1024",
            "layout_128x4 for each of 2 matrices with 4 rows of 64 values",
            "128x4 layout, each matrix by itself",
        ),
    ),
    (
        "dtype of the scales of b",
        multiply(b_descale=uint8(128, 4, dtype=torch.int8)),
        ("'b_descale': got dtype .*int8", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "scales of b elsewhere",
        multiply(b_descale=elsewhere(uint8(128, 4))),
        ("'b_descale': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "strides of the scales of b",
        multiply(b_descale=every_other(128, 4)),
        ("'b_descale'", r"strides \[8, 2\]", "contiguous scales or their transpose"),
    ),
    (
        "linear scales of b",
        multiply(b_descale=uint8(96, 4)),
        ("'b_descale': got 384 scales, as many as", r"512 \(layout_128x4 for 96 rows of 64 values"),
    ),
    (
        "no alpha",
        multiply(alpha=None),
        ("'alpha': got None", "float32", r"1 / \(a_global_sf \* b_global_sf\)"),
    ),
    (
        "dtype of alpha",
        multiply(alpha=scale(dtype=torch.bfloat16)),
        ("'alpha': got dtype .*bfloat16", "float32"),
    ),
    (
        "alpha for each row",
        multiply(alpha=scale(4)),
        ("'alpha': got shape", r"\[4\]", "one element", "each row", "scale the rows of the result"),
    ),
    (
        "alpha elsewhere",
        multiply(alpha=elsewhere(scale())),
        ("'alpha': got device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "negative tactic",
        multiply(tactic=-2),
        ("'tactic': got -2", "the number of a tactic", "pass -1"),
    ),
    (
        "output dtype",
        multiply(out_dtype=torch.float32),
        ("'out_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
)
REFUSED += refused(
    "mm_fp4.out",
    ("no alpha for the out form", multiply_into(alpha=None), ("'alpha': got None", "float32")),
    (
        "out of the wrong dtype",
        multiply_into(out=uint8(4, 96, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
    (
        "out without its batch",
        multiply_into(batch=(1,), out=uint8(4, 96, dtype=HALF)),
        ("'out': got shape", r"\[4, 96\]", r"\[1, 4, 96\]"),
    ),
    *wrong_results(multiply_into, 4, 96, "a"),
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
