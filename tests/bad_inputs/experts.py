"""The two operators that quantize by expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import HALF, Arguments, BadInput, call, elsewhere, empty, scale, uint8

GROUPED = "scaled_fp4_grouped_quantize"
FUSED = "silu_and_mul_scaled_nvfp4_experts_quantize"


def _expert_scales(device: str, rows: int = 1, batch: int = 2) -> torch.Tensor:
    scales = empty(device, batch, rows, 1, 32, 4, 4, dtype=torch.float8_e4m3fn)
    return scales.permute(3, 4, 1, 5, 2, 0)


def experts(columns: int = 64, out: bool = False, **changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of an expert operator, B = 2, M = 4 and K = 64, with changes."""
    buffers = {
        "values": lambda device: empty(device, 2, 4, 32).permute(1, 2, 0),
        "block_scales": _expert_scales,
    }
    arguments = {
        "a": uint8(2, 4, columns, dtype=torch.bfloat16),
        "mask": uint8(2, dtype=torch.int32),
        "a_global_sf": lambda device: scale(device, 2),
    }
    return call(**{**arguments, **(buffers if out else {}), **changes})


REFUSED = (
    BadInput(
        "dtype",
        GROUPED,
        experts(a=uint8(2, 4, 64, dtype=torch.float8_e4m3fn)),
        ("'a': got dtype .*float8_e4m3fn", "float16 or .*bfloat16"),
    ),
    BadInput(
        "dtype",
        FUSED,
        experts(a=uint8(2, 4, 128, dtype=torch.float32)),
        ("'a': got dtype .*float32", "float16 or .*bfloat16"),
    ),
    BadInput(
        "rank",
        GROUPED,
        experts(a=uint8(4, 64, dtype=HALF)),
        ("'a'", r"\[4, 64\]", "3 dimensions"),
    ),
    BadInput("recipe", GROUPED, experts(nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")),
    BadInput(
        "recipe", FUSED, experts(128, nvfp4_4over6=-1), ("'nvfp4_4over6': got -1", "4-over-6")
    ),
    BadInput("columns", GROUPED, experts(40), ("'a'", "40 values", "multiple of 16")),
    BadInput("columns", FUSED, experts(48), ("'a'", "48 values", "multiple of 32")),
    BadInput(
        "too much work",
        GROUPED,
        experts(a=uint8(1, 128, 128, dtype=HALF, stretch=2**20)),
        ("'a'", "number of groups of 8 values of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "too many scales",
        FUSED,
        experts(a=uint8(1, 1, 32, dtype=HALF, stretch=2**22)),
        ("'a'", "padded number of scales of 2147483648", r"2\*\*31"),
    ),
    BadInput(
        "mask dtype",
        GROUPED,
        experts(mask=uint8(2, dtype=torch.int64)),
        ("'mask'", "int64", "int32"),
    ),
    BadInput(
        "mask shape",
        GROUPED,
        experts(mask=uint8(2, 4, dtype=torch.int32)),
        ("'mask'", r"\[2, 4\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "mask length",
        FUSED,
        experts(128, mask=uint8(3, dtype=torch.int32)),
        ("'mask'", r"\[3\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "mask elsewhere",
        GROUPED,
        experts(mask=elsewhere(uint8(2, dtype=torch.int32))),
        ("'mask'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "global scale dtype",
        GROUPED,
        experts(a_global_sf=uint8(2, dtype=HALF)),
        ("'a_global_sf'", "float16", "float32"),
    ),
    BadInput(
        "one global scale for all",
        FUSED,
        experts(128, a_global_sf=scale),
        ("'a_global_sf'", r"\[1\]", r"\[2\], the batch of 'a'"),
    ),
    BadInput(
        "global scale elsewhere",
        FUSED,
        experts(128, a_global_sf=elsewhere(lambda device: scale(device, 2))),
        ("'a_global_sf'", "device (cpu|meta)", "the device of 'a'"),
    ),
    BadInput(
        "values before permuting",
        f"{GROUPED}.out",
        experts(out=True, values=uint8(2, 4, 32)),
        ("'values'", r"\[2, 4, 32\]", r"shape \[4, 32, 2\] with strides \[32, 1, 128\]"),
    ),
    BadInput(
        "contiguous values",
        f"{FUSED}.out",
        experts(128, out=True, values=uint8(4, 32, 2)),
        ("'values'", r"strides \[64, 2, 1\]", r"strides \[32, 1, 128\]"),
    ),
    BadInput(
        "scales as bytes",
        f"{GROUPED}.out",
        experts(out=True, block_scales=lambda d: _expert_scales(d).view(torch.uint8)),
        ("'block_scales'", "uint8", "float8_e4m3fn"),
    ),
    BadInput(
        "scales of more rows",
        f"{FUSED}.out",
        experts(128, out=True, block_scales=lambda d: _expert_scales(d, rows=2)),
        (
            "'block_scales'",
            r"\[32, 4, 2, 4, 1, 2\]",
            r"shape \[32, 4, 1, 4, 1, 2\] with strides \[16, 4, 512, 1, 512, 512\]",
        ),
    ),
    BadInput(
        "scales elsewhere",
        f"{GROUPED}.out",
        experts(out=True, block_scales=elsewhere(_expert_scales)),
        ("'block_scales'", "device (cpu|meta)", "the device of 'a'"),
    ),
)

ACCEPTED = (
    (GROUPED, experts()),
    (
        GROUPED,
        experts(
            a=uint8(0, 4, 64, dtype=HALF),
            mask=uint8(0, dtype=torch.int32),
            a_global_sf=uint8(0, dtype=torch.float32),
        ),
    ),
    (f"{GROUPED}.out", experts(out=True, nvfp4_4over6=3)),
    (FUSED, experts(128)),
    (f"{FUSED}.out", experts(128, out=True, nvfp4_4over6=17)),
)
