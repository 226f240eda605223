"""The two operators that quantize by expert."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, elsewhere, empty, scale, uint8
from bad_inputs.calls import call, refused

GROUPED = "scaled_fp4_grouped_quantize"
FUSED = "silu_and_mul_scaled_nvfp4_experts_quantize"


def _expert_scales(device: str, rows: int = 1, batch: int = 2) -> torch.Tensor:
    scales = empty(device, batch, rows, 1, 32, 4, 4, dtype=torch.float8_e4m3fn)
    return scales.permute(3, 4, 1, 5, 2, 0)


grouped = partial(
    call,
    a=uint8(2, 4, 64, dtype=torch.bfloat16),
    mask=uint8(2, dtype=torch.int32),
    a_global_sf=scale(2),
)
"""Builds a valid call of scaled_fp4_grouped_quantize, B = 2, M = 4 and K = 64, with changes."""
grouped_into = partial(
    grouped,
    values=lambda device: empty(device, 2, 4, 32).permute(1, 2, 0),
    block_scales=_expert_scales,
)
_TWO_FACTORS = uint8(2, 4, 128, dtype=torch.bfloat16)
fused = partial(grouped, a=_TWO_FACTORS)
"""Builds a valid call of silu_and_mul_scaled_nvfp4_experts_quantize: a row has two factors."""
fused_into = partial(grouped_into, a=_TWO_FACTORS)

REFUSED = refused(
    GROUPED,
    (
        "dtype",
        grouped(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn)),
        ("'a': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    ("rank", grouped(a=uint8(4, 64, dtype=HALF)), ("'a'", r"\[4, 64\]", "3 dimensions")),
    ("recipe", grouped(nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")),
    ("columns", grouped(a=uint8(2, 4, 40, dtype=HALF)), ("'a'", "40 values", "multiple of 16")),
    (
        "too much work",
        grouped(a=uint8(1, 128, 128, dtype=HALF, stretch=2**20)),
        ("'a'", "number of groups of 8 values of 2147483648", r"2\*\*31"),
    ),
    ("mask dtype", grouped(mask=uint8(2, dtype=torch.int64)), ("'mask'", "int64", "int32")),
    (
        "mask shape",
        grouped(mask=uint8(2, 4, dtype=torch.int32)),
        ("'mask'", r"\[2, 4\]", r"\[2\], the batch of 'a'"),
    ),
    (
        "mask elsewhere",
        grouped(mask=elsewhere(uint8(2, dtype=torch.int32))),
        ("'mask'", "device (cpu|meta)", "the device of 'a'"),
    ),
    (
        "global scale dtype",
        grouped(a_global_sf=uint8(2, dtype=HALF)),
        ("'a_global_sf'", "float16", "float32"),
    ),
)
REFUSED += refused(
    FUSED,
    (
        "dtype",
        fused(a=uint8(2, 4, 128, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16"),
    ),
    ("recipe", fused(nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")),
    ("columns", fused(a=uint8(2, 4, 48, dtype=HALF)), ("'a'", "48 values", "multiple of 32")),
    (
        "too many scales",
        fused(a=uint8(1, 1, 32, dtype=HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    (
        "mask length",
        fused(mask=uint8(3, dtype=torch.int32)),
        ("'mask'", r"\[3\]", r"\[2\], the batch of 'a'"),
    ),
    (
        "one global scale for all",
        fused(a_global_sf=scale()),
        ("'a_global_sf'", r"\[1\]", r"\[2\], the batch of 'a'"),
    ),
    (
        "global scale elsewhere",
        fused(a_global_sf=elsewhere(scale(2))),
        ("'a_global_sf'", "device (cpu|meta)", "the device of 'a'"),
    ),
)
REFUSED += refused(
    f"{GROUPED}.out",
    (
        "values before permuting",
        grouped_into(values=uint8(2, 4, 32)),
        ("'values'", r"\[2, 4, 32\]", r"shape \[4, 32, 2\] with strides \[32, 1, 128\]"),
    ),
    (
        "scales as bytes",
        grouped_into(block_scales=lambda d: _expert_scales(d).view(torch.uint8)),
        ("'block_scales'", "uint8", "float8_e4m3fn"),
    ),
    (
        "scales elsewhere",
        grouped_into(block_scales=elsewhere(_expert_scales)),
        ("'block_scales'", "device (cpu|meta)", "the device of 'a'"),
    ),
)
REFUSED += refused(
    f"{FUSED}.out",
    (
        "contiguous values",
        fused_into(values=uint8(4, 32, 2)),
        ("'values'", r"strides \[64, 2, 1\]", r"strides \[32, 1, 128\]"),
    ),
    (
        "scales of more rows",
        fused_into(block_scales=lambda d: _expert_scales(d, rows=2)),
        (
            "'block_scales'",
            r"\[32, 4, 2, 4, 1, 2\]",
            r"shape \[32, 4, 1, 4, 1, 2\] with strides \[16, 4, 512, 1, 512, 512\]",
        ),
    ),
)

ACCEPTED = (
    (GROUPED, grouped()),
    (
        GROUPED,
        grouped(
            a=uint8(0, 4, 64, dtype=HALF),
            mask=uint8(0, dtype=torch.int32),
            a_global_sf=uint8(0, dtype=torch.float32),
        ),
    ),
    (f"{GROUPED}.out", grouped_into(nvfp4_4over6=3)),
    (FUSED, fused()),
    (f"{FUSED}.out", fused_into(nvfp4_4over6=17)),
)
