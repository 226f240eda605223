"""`nvfp4_batched_quantize`."""

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
    scale,
    uint8,
)


def batched(out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of nvfp4_batched_quantize, B = 2, M = 4 and K = 64, with changes."""
    buffers = {"values": uint8(2, 4, 32), "block_scales": uint8(2, 512)}
    arguments = {"a": uint8(2, 4, 64, dtype=torch.bfloat16), "a_global_sf": scale}
    return call(**{**arguments, **(buffers if out else {}), **changes})


REFUSED = (
    BadInput(
        "dtype",
        "nvfp4_batched_quantize",
        batched(a=uint8(2, 4, 64, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    BadInput(
        "rank",
        "nvfp4_batched_quantize",
        batched(a=uint8(4, 64, dtype=HALF)),
        ("'a'", r"\[4, 64\]", "3 dimensions"),
    ),
    BadInput(
        "block size",
        "nvfp4_batched_quantize",
        batched(sf_vec_size=32),
        ("'sf_vec_size': got 32, expected 16",),
    ),
    BadInput(
        "recipe",
        "nvfp4_batched_quantize",
        batched(nvfp4_4over6=64),
        ("'nvfp4_4over6': got 64", "4-over-6"),
    ),
    BadInput(
        "recipe of float8",
        "nvfp4_batched_quantize",
        batched(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'a' of .*float8_e4m3fn", "expected 0"),
    ),
    BadInput(
        "columns",
        "nvfp4_batched_quantize",
        batched(a=uint8(2, 4, 40, dtype=HALF)),
        ("'a'", "40 values", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "nvfp4_batched_quantize",
        batched(a=uint8(1, 128, 16, dtype=HALF, stretch=2**24)),
        ("'a'", "number of rows of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many scales",
        "nvfp4_batched_quantize",
        batched(a=uint8(1, 1, 16, dtype=HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "global scale dtype",
        "nvfp4_batched_quantize",
        batched(a_global_sf=lambda device: scale(device, dtype=torch.bfloat16)),
        ("'a_global_sf'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale of neither one nor M elements",
        "nvfp4_batched_quantize",
        batched(a_global_sf=lambda device: scale(device, 2)),
        ("'a_global_sf'", r"\[2\]", "one per row: 4"),
    ),
    BadInput(
        "global scale elsewhere",
        "nvfp4_batched_quantize",
        batched(a_global_sf=elsewhere(scale)),
        ("'a_global_sf'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "values of the wrong strides",
        "nvfp4_batched_quantize.out",
        batched(out=True, values=column_major(2, 4, 32)),
        ("'values'", r"strides \[128, 1, 4\]", r"strides \[128, 32, 1\]"),
    ),
    BadInput(
        "scales that are not flat",
        "nvfp4_batched_quantize.out",
        batched(out=True, block_scales=uint8(2, 128, 4)),
        ("'block_scales'", r"\[2, 128, 4\]", r"\[2, 512\]"),
    ),
)

ACCEPTED = (
    ("nvfp4_batched_quantize", batched()),
    ("nvfp4_batched_quantize", batched(a_global_sf=lambda device: scale(device, 4))),
    ("nvfp4_batched_quantize", batched(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn))),
    ("nvfp4_batched_quantize.out", batched(out=True, nvfp4_4over6=5)),
)
