"""`block_scale_interleave` and its reverse."""

from __future__ import annotations

import torch

from bad_inputs.arguments import elsewhere, uint8
from bad_inputs.calls import call, refused

REFUSED = refused(
    "block_scale_interleave",
    (
        "dtype",
        call(uint8(4, 4, dtype=torch.float16)),
        ("'unswizzled_sf'", "float16", "uint8 or .*bfloat16"),
    ),
    ("rank", call(uint8(4)), ("'unswizzled_sf'", r"\[4\]", "2 or 3 dimensions")),
    (
        "too many scales",
        call(uint8(1, 128, 4, stretch=2**22)),
        ("'unswizzled_sf'", "2147483648", r"2\*\*31"),
    ),
)
REFUSED += refused(
    "block_scale_interleave.out",
    ("out of the wrong shape", call(uint8(4, 4), out=uint8(16)), ("'out'", r"\[16\]", r"\[512\]")),
    (
        "out of the wrong dtype",
        call(uint8(4, 4, dtype=torch.bfloat16), out=uint8(512)),
        ("'out'", "uint8", "bfloat16"),
    ),
    (
        "out elsewhere",
        call(uint8(4, 4), out=elsewhere(uint8(512))),
        ("'out'", "device (cpu|meta)", "'unswizzled_sf'"),
    ),
)
REFUSED += refused(
    "block_scale_interleave_reverse",
    (
        "dtype of the reverse",
        call(uint8(128, 4, dtype=torch.bfloat16)),
        ("'interleaved_sf'", "bfloat16", "uint8"),
    ),
    ("flat buffer", call(uint8(512)), ("'interleaved_sf'", r"\[512\]", "2 or 3 dimensions")),
    ("unpadded rows", call(uint8(100, 4)), ("'interleaved_sf'", r"\[100, 4\]", "divisible by 128")),
    (
        "unpadded columns",
        call(uint8(2, 128, 6)),
        ("'interleaved_sf'", r"\[2, 128, 6\]", "divisible by 4"),
    ),
)
REFUSED += refused(
    "block_scale_interleave_reverse.out",
    (
        "out of the reverse",
        call(uint8(128, 4), out=uint8(512)),
        ("'out'", r"\[512\]", r"\[128, 4\]"),
    ),
)

ACCEPTED = (
    ("block_scale_interleave", call(uint8(4, 4))),
    ("block_scale_interleave", call(uint8(2, 4, 4, dtype=torch.bfloat16))),
    ("block_scale_interleave.out", call(uint8(4, 4), out=uint8(512))),
    ("block_scale_interleave_reverse", call(uint8(2, 128, 4))),
    ("block_scale_interleave_reverse.out", call(uint8(128, 4), out=uint8(128, 4))),
)
