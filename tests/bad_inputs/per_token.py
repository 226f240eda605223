"""`nvfp4_quantize_per_token`."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, uint8
from bad_inputs.calls import call, refused

per_token = partial(call, input=uint8(4, 64, dtype=torch.bfloat16), scale_inv=1 / 2688)
"""Builds a valid call of nvfp4_quantize_per_token, M = 4 and K = 64, with changes."""
per_token_into = partial(
    per_token,
    values=uint8(4, 32),
    block_scales=uint8(128, 4),
    per_token_scale=uint8(4, dtype=torch.float32),
)
"""Builds one of nvfp4_quantize_per_token.out."""
index = partial(uint8, dtype=torch.int32)

REFUSED = refused(
    "nvfp4_quantize_per_token",
    (
        "input dtype",
        per_token(input=uint8(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    (
        "input rank",
        per_token(input=uint8(1, 4, 64, dtype=HALF)),
        ("'input'", r"\[1, 4, 64\]", "2 dimensions"),
    ),
    ("layout number", per_token(sf_layout=3), ("'sf_layout'", "got 3", "linear")),
    ("recipe", per_token(nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")),
    (
        "columns",
        per_token(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    (
        "too many rows",
        per_token(input=uint8(1, 16, dtype=HALF, stretch=2**31)),
        ("'input'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    (
        "too many blocks",
        per_token(input=uint8(1, 32, dtype=HALF, stretch=2**30)),
        ("'input'", "number of blocks of 2147483648", r"2\*\*31"),
    ),
    (
        "index dtype",
        per_token(expanded_idx_to_permuted_idx=index(4, dtype=torch.int64)),
        ("'expanded_idx_to_permuted_idx'", "int64", "int32"),
    ),
    (
        "index rank",
        per_token(expanded_idx_to_permuted_idx=index(4, 1)),
        ("'expanded_idx_to_permuted_idx'", r"\[4, 1\]", "1 dimensions"),
    ),
    (
        "index too short",
        per_token(expanded_idx_to_permuted_idx=index(3)),
        ("'expanded_idx_to_permuted_idx'", r"\[3\]", "4 elements or more"),
    ),
    (
        "index elsewhere",
        per_token(expanded_idx_to_permuted_idx=elsewhere(index(4))),
        ("'expanded_idx_to_permuted_idx'", "device (cpu|meta)", "the device of 'input'"),
    ),
)
REFUSED += refused(
    "nvfp4_quantize_per_token.out",
    (
        "values of the wrong shape",
        per_token_into(values=uint8(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    (
        "scales of another layout",
        per_token_into(sf_layout=1),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    (
        "per-token scales of the wrong dtype",
        per_token_into(per_token_scale=uint8(4, dtype=HALF)),
        ("'per_token_scale'", "float16", "float32"),
    ),
    (
        "per-token scales of the wrong shape",
        per_token_into(per_token_scale=uint8(4, 1, dtype=torch.float32)),
        ("'per_token_scale'", r"\[4, 1\]", r"\[4\]"),
    ),
    (
        "per-token scales elsewhere",
        per_token_into(per_token_scale=elsewhere(uint8(4, dtype=torch.float32))),
        ("'per_token_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
)

ACCEPTED = (
    ("nvfp4_quantize_per_token", per_token()),
    ("nvfp4_quantize_per_token", per_token(sf_layout=2, nvfp4_4over6=1)),
    ("nvfp4_quantize_per_token", per_token(expanded_idx_to_permuted_idx=index(9))),
    ("nvfp4_quantize_per_token", per_token(input=column_major(4, 64, dtype=HALF))),
    ("nvfp4_quantize_per_token.out", per_token_into()),
    (
        "nvfp4_quantize_per_token.out",
        per_token_into(sf_layout=1, block_scales=uint8(8, 4), nvfp4_4over6=7),
    ),
)
