"""`fp4_quantize`."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, every_other, scale, uint8
from bad_inputs.calls import call, refused

quantize = partial(call, input=uint8(4, 64, dtype=torch.bfloat16), global_scale=scale())
"""Builds a valid call of fp4_quantize, M = 4 and K = 64, with changes."""
quantize_out = partial(quantize, values=uint8(4, 32), block_scales=uint8(128, 4))
"""Builds one of fp4_quantize.out."""

REFUSED = refused(
    "fp4_quantize",
    (
        "input dtype",
        quantize(input=uint8(4, 64, dtype=torch.float32)),
        ("'input'", "float32", "float16 or .*bfloat16 or .*float8_e4m3fn"),
    ),
    (
        "input of one dimension",
        quantize(input=uint8(64, dtype=HALF)),
        ("'input'", r"\[64\]", "two or more dimensions"),
    ),
    (
        "columns",
        quantize(input=uint8(4, 40, dtype=HALF)),
        ("'input'", "40 values", "last dimension", "multiple of 16"),
    ),
    (
        "columns of mxfp4",
        quantize(input=uint8(4, 48, dtype=HALF), sf_vec_size=32, sf_use_ue8m0=True),
        ("'input'", "48 values", "multiple of 32"),
    ),
    (
        "column-major columns",
        quantize(input=column_major(40, 64, dtype=HALF)),
        ("'input'", "40 values", "contiguous second-to-last dimension", "multiple of 16"),
    ),
    (
        "too many rows",
        quantize(input=uint8(1, 16, dtype=HALF, stretch=2**31)),
        ("'input'", "2147483648", r"2\*\*31"),
    ),
    (
        "ue8m0 with blocks of 16",
        quantize(sf_use_ue8m0=True),
        ("'sf_vec_size'", "16 with sf_use_ue8m0=True", "NVFP4", "MXFP4"),
    ),
    (
        "e4m3 with blocks of 32",
        quantize(sf_vec_size=32),
        ("'sf_vec_size'", "32 with sf_use_ue8m0=False", "NVFP4", "MXFP4"),
    ),
    (
        "8x4 without swizzling",
        quantize(is_sf_swizzled_layout=False, is_sf_8x4_layout=True),
        ("'is_sf_8x4_layout'", "is_sf_swizzled_layout=False"),
    ),
    ("no global scale", quantize(global_scale=None), ("'global_scale'", "None", "float32")),
    (
        "inversed without a global scale",
        quantize(
            global_scale=None, sf_vec_size=32, sf_use_ue8m0=True, is_global_scale_inversed=True
        ),
        ("'is_global_scale_inversed'", "without a global_scale"),
    ),
    (
        "bfloat16 global scale",
        quantize(global_scale=scale(dtype=torch.bfloat16)),
        ("'global_scale'", "bfloat16", "float32"),
    ),
    (
        "global scale of neither one nor M elements",
        quantize(global_scale=scale(3)),
        ("'global_scale'", r"\[3\]", "one per row: 4"),
    ),
    (
        "ignored global scale of the wrong dtype",
        quantize(sf_vec_size=32, sf_use_ue8m0=True, global_scale=scale(dtype=torch.float64)),
        ("'global_scale'", "float64", "float32"),
    ),
    (
        "global scale elsewhere",
        quantize(global_scale=elsewhere(scale())),
        ("'global_scale'", "device (cpu|meta)", "the device of 'input'"),
    ),
    (
        "recipe from the environment",
        quantize(nvfp4_4over6=-1),
        ("'nvfp4_4over6': got -1", "0 .*or the code of a 4-over-6 recipe", "nvfp4_4over6_code"),
    ),
    *(
        (case, quantize(nvfp4_4over6=code), (f"'nvfp4_4over6': got {code},", "4-over-6"))
        for case, code in (
            ("recipe without its first bit", 2),
            ("recipe with an unknown error mode", 9),
            ("recipe with an unknown bit", 33),
        )
    ),
    (
        "recipe of float8",
        quantize(input=uint8(4, 64, dtype=torch.float8_e4m3fn), nvfp4_4over6=1),
        ("'nvfp4_4over6': got 1 with 'input' of .*float8_e4m3fn", "expected 0"),
    ),
    (
        "recipe of mxfp4",
        quantize(sf_vec_size=32, sf_use_ue8m0=True, nvfp4_4over6=23),
        ("'nvfp4_4over6': got 23 with sf_use_ue8m0=True", "expected 0", "MXFP4"),
    ),
)
REFUSED += refused(
    "fp4_quantize.out",
    (
        "values of the wrong shape",
        quantize_out(values=uint8(4, 64)),
        ("'values'", r"\[4, 64\]", r"\[4, 32\]", "functional form"),
    ),
    (
        "values of the wrong dtype",
        quantize_out(values=uint8(4, 32, dtype=torch.int8)),
        ("'values'", "int8", "uint8"),
    ),
    (
        "values of the wrong strides",
        quantize_out(values=every_other(4, 32)),
        ("'values'", r"strides \[64, 2\]", r"strides \[32, 1\]"),
    ),
    (
        "values elsewhere",
        quantize_out(values=elsewhere(uint8(4, 32))),
        ("'values'", "device (cpu|meta)", "the device of 'input'"),
    ),
    (
        "unpadded scales",
        quantize_out(block_scales=uint8(4, 4)),
        ("'block_scales'", r"\[4, 4\]", r"\[128, 4\]"),
    ),
    (
        "padded scales for 8x4",
        quantize_out(is_sf_8x4_layout=True),
        ("'block_scales'", r"\[128, 4\]", r"\[8, 4\]"),
    ),
    (
        "flat scales",
        quantize_out(block_scales=uint8(512)),
        ("'block_scales'", r"\[512\]", r"\[128, 4\]"),
    ),
    (
        "row-major buffers for a column-major input",
        quantize_out(
            input=column_major(64, 4, dtype=HALF),
            values=uint8(32, 4),
            block_scales=column_major(4, 128),
        ),
        ("'values'", r"strides \[4, 1\]", r"shape \[32, 4\] with strides \[1, 32\]"),
    ),
)

ACCEPTED = (
    ("fp4_quantize", quantize()),
    ("fp4_quantize", quantize(sf_vec_size=32, sf_use_ue8m0=True, global_scale=None)),
    ("fp4_quantize", quantize(global_scale=scale(4))),
    ("fp4_quantize", quantize(global_scale=lambda device: torch.ones((), device=device))),
    ("fp4_quantize.out", quantize_out()),
    ("fp4_quantize.out", quantize_out(is_sf_8x4_layout=True, block_scales=uint8(8, 4))),
    ("fp4_quantize.out", quantize_out(is_sf_swizzled_layout=False, block_scales=uint8(4, 4))),
    (
        "fp4_quantize.out",
        quantize_out(
            input=column_major(64, 4, dtype=HALF),
            values=column_major(32, 4),
            block_scales=column_major(4, 128),
        ),
    ),
    ("fp4_quantize", quantize(nvfp4_4over6=23)),
)
