"""`fp4_quantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import (
    HALF,
    Arguments,
    BadInput,
    elsewhere,
    empty,
    every_other,
    scale,
    uint8,
)


def quantize(**changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of fp4_quantize with some arguments replaced.

    A value may be a function of the device.
    """

    def build(device: str) -> Arguments:
        arguments: dict[str, Any] = {
            "input": empty(device, 4, 64, dtype=torch.bfloat16),
            "global_scale": scale(device),
        }
        arguments.update(changes)
        resolved = {
            name: value(device) if callable(value) else value for name, value in arguments.items()
        }
        return (resolved.pop("input"), resolved.pop("global_scale")), resolved

    return build


def quantize_out(**changes: Any) -> Callable[[str], Arguments]:
    def build(device: str) -> Arguments:
        buffers = {
            "values": lambda d: empty(d, 4, 32),
            "block_scales": lambda d: empty(d, 128, 4),
        }
        return quantize(**{**buffers, **changes})(device)

    return build


REFUSED = (
    BadInput(
        "input dtype",
        "fp4_quantize",
        quantize(input=uint8(4, 64, dtype=torch.float32)),
        ("'input'", "float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    BadInput(
        "input of one dimension",
        "fp4_quantize",
        quantize(input=uint8(64, dtype=HALF)),
        ("'input'", r"\[64\]", "two or more dimensions"),
    ),
    BadInput(
        "columns",
        "fp4_quantize",
        quantize(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "last dimension", "multiple of 16"),
    ),
    BadInput(
        "columns of mxfp4",
        "fp4_quantize",
        quantize(input=uint8(4, 48, dtype=HALF), sf_vec_size=32, sf_use_ue8m0=True),
        ("'input'", "48 values", "multiple of 32"),
    ),
    BadInput(
        "column-major columns",
        "fp4_quantize",
        quantize(input=lambda device: empty(device, 64, 40, dtype=HALF).t()),
        ("'input'", "40 values", "contiguous second-to-last dimension", "multiple of 16"),
    ),
    BadInput(
        "too many rows",
        "fp4_quantize",
        quantize(input=uint8(1, 16, dtype=HALF, stretch=2**31)),
        ("'input'", "2147483648", r"2\*\*31"),
    ),
    BadInput(
        "ue8m0 with blocks of 16",
        "fp4_quantize",
        quantize(sf_use_ue8m0=True),
        ("'sf_vec_size'", "16 with sf_use_ue8m0=True", "NVFP4", "MXFP4"),
    ),
    BadInput(
        "e4m3 with blocks of 32",
        "fp4_quantize",
        quantize(sf_vec_size=32),
        ("'sf_vec_size'", "32 with sf_use_ue8m0=False", "NVFP4", "MXFP4"),
    ),
    BadInput(
        "8x4 without swizzling",
        "fp4_quantize",
        quantize(is_sf_swizzled_layout=False, is_sf_8x4_layout=True),
        ("'is_sf_8x4_layout'", "is_sf_swizzled_layout=False"),
    ),
    BadInput(
        "no global scale",
        "fp4_quantize",
        quantize(global_scale=None),
        ("'global_scale'", "None", "float32"),
    ),
    BadInput(
        "inversed without a global scale",
        "fp4_quantize",
        quantize(
            global_scale=None, sf_vec_size=32, sf_use_ue8m0=True, is_global_scale_inversed=True
        ),
        ("'is_global_scale_inversed'", "without a global_scale"),
    ),
    BadInput(
        "bfloat16 global scale",
        "fp4_quantize",
        quantize(global_scale=lambda device: scale(device, dtype=torch.bfloat16)),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    BadInput(
        "global scale of neither one nor M elements",
        "fp4_quantize",
        quantize(global_scale=lambda device: scale(device, 3)),
        ("'global_scale'", r"\[3\]", "one per row: 4"),
    ),
    BadInput(
        "ignored global scale of the wrong dtype",
        "fp4_quantize",
        quantize(
            sf_vec_size=32,
            sf_use_ue8m0=True,
            global_scale=lambda device: scale(device, dtype=torch.float64),
        ),
        ("'global_scale'", "float64", "float32"),
    ),
    BadInput(
        "global scale elsewhere",
        "fp4_quantize",
        quantize(global_scale=elsewhere(scale)),
        ("'global_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "recipe from the environment",
        "fp4_quantize",
        quantize(nvfp4_4over6=-1),
        ("'nvfp4_4over6': got -1", "0 .*or the code of a 4-over-6 recipe", "nvfp4_4over6_code"),
    ),
    BadInput(
        "recipe without its first bit",
        "fp4_quantize",
        quantize(nvfp4_4over6=2),
        ("'nvfp4_4over6': got 2,", "4-over-6"),
    ),
    BadInput(
        "recipe with an unknown error mode",
        "fp4_quantize",
        quantize(nvfp4_4over6=9),
        ("'nvfp4_4over6': got 9,", "4-over-6"),
    ),
    BadInput(
        "recipe with an unknown bit",
        "fp4_quantize",
        quantize(nvfp4_4over6=33),
        ("'nvfp4_4over6': got 33,", "4-over-6"),
    ),
    BadInput(
        "recipe of float8",
        "fp4_quantize",
        quantize(input=uint8(4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'input' of .*float8_e4m3fn", "expected 0"),
    ),
    BadInput(
        "recipe of mxfp4",
        "fp4_quantize",
        quantize(sf_vec_size=32, sf_use_ue8m0=True, nvfp4_4over6=23),
        ("'nvfp4_4over6': got 23 with sf_use_ue8m0=True", "expected 0", "MXFP4"),
    ),
    BadInput(
        "values of the wrong shape",
        "fp4_quantize.out",
        quantize_out(values=uint8(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    BadInput(
        "values of the wrong dtype",
        "fp4_quantize.out",
        quantize_out(values=uint8(4, 32, dtype=torch.int8)),
        ("'values'", "int8", "uint8"),
    ),
    BadInput(
        "values of the wrong strides",
        "fp4_quantize.out",
        quantize_out(values=every_other(4, 32)),
        ("'values'", r"strides \[64, 2\]", r"strides \[32, 1\]"),
    ),
    BadInput(
        "values elsewhere",
        "fp4_quantize.out",
        quantize_out(values=elsewhere(uint8(4, 32))),
        ("'values'", "device (cpu|meta)", "the device of 'input'"),
    ),
    BadInput(
        "unpadded scales",
        "fp4_quantize.out",
        quantize_out(block_scales=uint8(4, 4)),
        ("'block_scales'", r"\[4, 4\]", r"\[128, 4\]"),
    ),
    BadInput(
        "padded scales for 8x4",
        "fp4_quantize.out",
        quantize_out(is_sf_8x4_layout=True),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    BadInput(
        "flat scales",
        "fp4_quantize.out",
        quantize_out(block_scales=uint8(512)),
        ("'block_scales'", r"\[512\]", r"\[128, 4\]"),
    ),
    BadInput(
        "row-major buffers for a column-major input",
        "fp4_quantize.out",
        quantize_out(
            input=lambda device: empty(device, 4, 64, dtype=HALF).t(),
            values=uint8(32, 4),
            block_scales=lambda device: empty(device, 128, 4).t(),
        ),
        ("'values'", r"strides \[4, 1\]", r"shape \[32, 4\] with strides \[1, 32\]"),
    ),
)

ACCEPTED = (
    ("fp4_quantize", quantize()),
    ("fp4_quantize", quantize(sf_vec_size=32, sf_use_ue8m0=True, global_scale=None)),
    ("fp4_quantize", quantize(global_scale=lambda device: scale(device, 4))),
    ("fp4_quantize", quantize(global_scale=lambda device: torch.ones((), device=device))),
    ("fp4_quantize.out", quantize_out()),
    ("fp4_quantize.out", quantize_out(is_sf_8x4_layout=True, block_scales=uint8(8, 4))),
    ("fp4_quantize.out", quantize_out(is_sf_swizzled_layout=False, block_scales=uint8(4, 4))),
    (
        "fp4_quantize.out",
        quantize_out(
            input=lambda device: empty(device, 4, 64, dtype=HALF).t(),
            values=lambda device: empty(device, 4, 32).t(),
            block_scales=lambda device: empty(device, 128, 4).t(),
        ),
    ),
    ("fp4_quantize", quantize(nvfp4_4over6=23)),
)
