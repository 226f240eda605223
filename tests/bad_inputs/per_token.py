"""`nvfp4_quantize_per_token`."""

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
    uint8,
)


def per_token(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_quantize_per_token, M = 4 and K = 64, with changes."""
    buffers = {
        "values": uint8(4, 32),
        "block_scales": uint8(128, 4),
        "per_token_scale": uint8(4, dtype=torch.float32),
    }
    arguments = {"input": uint8(4, 64, dtype=torch.bfloat16), "scale_inv": 1 / 2688}
    return call(**{**arguments, **(buffers if out else {}), **changes})


def index(*shape: int, **options: Any) -> Callable[[str], torch.Tensor]:
    return uint8(*shape, **{"dtype": torch.int32, **options})


REFUSED = (
    BadInput(
        "input dtype",
        "nvfp4_quantize_per_token",
        per_token(input=uint8(4, 64, dtype=torch.float8_e4m3fn)),
        ("'input': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "input rank",
        "nvfp4_quantize_per_token",
        per_token(input=uint8(1, 4, 64, dtype=HALF)),
        ("'input'", r"\[1, 4, 64\]", "2 dimensions"),
    ),
    BadInput(
        "layout number",
        "nvfp4_quantize_per_token",
        per_token(sf_layout=3),
        ("'sf_layout'", "got 3", "linear"),
    ),
    BadInput(
        "recipe",
        "nvfp4_quantize_per_token",
        per_token(nvfp4_4over6=-1),
        ("'nvfp4_4over6': got -1", "4-over-6"),
    ),
    BadInput(
        "columns",
        "nvfp4_quantize_per_token",
        per_token(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_quantize_per_token",
        per_token(input=uint8(1, 16, dtype=HALF, stretch=2**31)),
        ("'input'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many blocks",
        "nvfp4_quantize_per_token",
        per_token(input=uint8(1, 32, dtype=HALF, stretch=2**30)),
        ("'input'", "number of blocks of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "index dtype",
        "nvfp4_quantize_per_token",
        per_token(expanded_idx_to_permuted_idx=index(4, dtype=torch.int64)),
        ("'expanded_idx_to_permuted_idx'", "int64", "int32"),
    ),
    BadInput(
        "index rank",
        "nvfp4_quantize_per_token",
        per_token(expanded_idx_to_permuted_idx=index(4, 1)),
        ("'expanded_idx_to_permuted_idx'", r"\[4, 1\]", "1 dimensions"),
    ),
    BadInput(
        "index too short",
        "nvfp4_quantize_per_token",
        per_token(expanded_idx_to_permuted_idx=index(3)),
        ("'expanded_idx_to_permuted_idx'", r"\[3\]", "4 elements or more"),
    ),
    BadInput(
        "index elsewhere",
        "nvfp4_quantize_per_token",
        per_token(expanded_idx_to_permuted_idx=elsewhere(index(4))),
        ("'expanded_idx_to_permuted_idx'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "values of the wrong shape",
        "nvfp4_quantize_per_token.out",
        per_token(out=True, values=uint8(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    BadInput(
        "scales of another layout",
        "nvfp4_quantize_per_token.out",
        per_token(out=True, sf_layout=1),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    BadInput(
        "per-token scales of the wrong dtype",
        "nvfp4_quantize_per_token.out",
        per_token(out=True, per_token_scale=uint8(4, dtype=HALF)),
        ("'per_token_scale'", "float16", "float32"),
    ),
    BadInput(
        "per-token scales of the wrong shape",
        "nvfp4_quantize_per_token.out",
        per_token(out=True, per_token_scale=uint8(4, 1, dtype=torch.float32)),
        ("'per_token_scale'", r"\[4, 1\]", r"\[4\]"),
    ),
    BadInput(
        "per-token scales elsewhere",
        "nvfp4_quantize_per_token.out",
        per_token(out=True, per_token_scale=elsewhere(uint8(4, dtype=torch.float32))),
        ("'per_token_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
)

ACCEPTED = (
    ("nvfp4_quantize_per_token", per_token()),
    ("nvfp4_quantize_per_token", per_token(sf_layout=2, nvfp4_4over6=1)),
    ("nvfp4_quantize_per_token", per_token(expanded_idx_to_permuted_idx=index(9))),
    ("nvfp4_quantize_per_token", per_token(input=column_major(4, 64, dtype=HALF))),
    ("nvfp4_quantize_per_token.out", per_token(out=True)),
    (
        "nvfp4_quantize_per_token.out",
        per_token(out=True, sf_layout=1, block_scales=uint8(8, 4), nvfp4_4over6=7),
    ),
)
