"""`nvfp4_batched_quantize`."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, scale, uint8
from bad_inputs.calls import call, refused, wrong_global_scales

batched = partial(call, a=uint8(2, 4, 64, dtype=torch.bfloat16), a_global_sf=scale())
"""Builds a valid call of nvfp4_batched_quantize, B = 2, M = 4 and K = 64, with changes."""
batched_into = partial(batched, values=uint8(2, 4, 32), block_scales=uint8(2, 512))
"""Builds one of nvfp4_batched_quantize.out."""

REFUSED = refused(
    "nvfp4_batched_quantize",
    (
        "dtype",
        batched(a=uint8(2, 4, 64, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    ("rank", batched(a=uint8(4, 64, dtype=HALF)), ("'a'", r"\[4, 64\]", "3 dimensions")),
    ("block size", batched(sf_vec_size=32), ("'sf_vec_size': got 32, expected 16",)),
    ("recipe", batched(nvfp4_4over6=64), ("'nvfp4_4over6': got 64", "4-over-6")),
    (
        "recipe of float8",
        batched(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'a' of .*float8_e4m3fn", "expected 0"),
    ),
    ("columns", batched(a=uint8(2, 4, 40, dtype=HALF)), ("'a'", "40 values", "multiple of 16")),
    (
        "too many rows",
        batched(a=uint8(1, 128, 16, dtype=HALF, stretch=2**24)),
        ("'a'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    (
        "too many scales",
        batched(a=uint8(1, 1, 16, dtype=HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    (
        "global scale of neither one nor M elements",
        batched(a_global_sf=scale(2)),
        ("'a_global_sf'", r"\[2\]", "one per row: 4"),
    ),
    *wrong_global_scales(batched, "a_global_sf", "a"),
)
REFUSED += refused(
    "nvfp4_batched_quantize.out",
    (
        "values of the wrong strides",
        batched_into(values=column_major(2, 4, 32)),
        ("'values'", r"strides \[128, 1, 4\]", r"strides \[128, 32, 1\]"),
    ),
    (
        "scales that are not flat",
        batched_into(block_scales=uint8(2, 128, 4)),
        ("'block_scales'", r"\[2, 128, 4\]", r"\[2, 512\]"),
    ),
)

ACCEPTED = (
    ("nvfp4_batched_quantize", batched()),
    ("nvfp4_batched_quantize", batched(a_global_sf=scale(4))),
    ("nvfp4_batched_quantize", batched(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn))),
    ("nvfp4_batched_quantize.out", batched_into(nvfp4_4over6=5)),
)
