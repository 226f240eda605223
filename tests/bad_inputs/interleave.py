"""`block_scale_interleave` and its reverse."""

from __future__ import annotations

import torch

from bad_inputs.arguments import BadInput, call, elsewhere, uint8

REFUSED = (
    BadInput(
        "dtype",
        "block_scale_interleave",
        call(uint8(4, 4, dtype=torch.float16)),
        ("'unswizzled_sf'", "float16", "uint8 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        "block_scale_interleave",
        call(uint8(4)),
        ("'unswizzled_sf'", r"\[4\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "too many scales",
        "block_scale_interleave",
        call(uint8(1, 128, 4, stretch=2**22)),
        ("'unswizzled_sf'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "out of the wrong shape",
        "block_scale_interleave.out",
        call(uint8(4, 4), out=uint8(16)),
        ("'out'", r"\[16\]", r"\[512\]"),
    ),
    BadInput(
        "out of the wrong dtype",
        "block_scale_interleave.out",
        call(uint8(4, 4, dtype=torch.bfloat16), out=uint8(512)),
        ("'out'", "uint8", "bfloat16"),
    ),
    BadInput(
        "out elsewhere",
        "block_scale_interleave.out",
        call(uint8(4, 4), out=elsewhere(uint8(512))),
        ("'out'", "device (cpu|meta)", "'unswizzled_sf'"),
    ),
    BadInput(
        "dtype of the reverse",
        "block_scale_interleave_reverse",
        call(uint8(128, 4, dtype=torch.bfloat16)),
        ("'interleaved_sf'", "bfloat16", "uint8"),
    ),
    BadInput(
        "flat buffer",
        "block_scale_interleave_reverse",
        call(uint8(512)),
        ("'interleaved_sf'", r"\[512\]", "2 or 3 dimensions"),
    ),
    BadInput(
        "unpadded rows",
        "block_scale_interleave_reverse",
        call(uint8(100, 4)),
        ("'interleaved_sf'", r"\[100, 4\]", "divisible by 128"),
    ),
    BadInput(
        "unpadded columns",
        "block_scale_interleave_reverse",
        call(uint8(2, 128, 6)),
        ("'interleaved_sf'", r"\[2, 128, 6\]", "divisible by 4"),
    ),
    BadInput(
        "out of the reverse",
        "block_scale_interleave_reverse.out",
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
