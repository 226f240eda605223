"""Dequantizing operators, except those of a KV cache."""

from __future__ import annotations

import torch

from bad_inputs.arguments import elsewhere, scale, uint8
from bad_inputs.calls import call, refused

NVFP4 = (uint8(4, 32), uint8(128, 4), scale())


REFUSED = refused(
    "e2m1_and_ufp8sf_scale_to_float",
    (
        "packed dtype",
        call(uint8(4, 32, dtype=torch.int8), *NVFP4[1:]),
        ("'e2m1_tensor'", "int8", "uint8"),
    ),
    (
        "packed rank",
        call(uint8(1, 4, 32), *NVFP4[1:]),
        ("'e2m1_tensor'", r"\[1, 4, 32\]", "2 dimensions"),
    ),
    ("columns", call(uint8(4, 20), *NVFP4[1:]), ("'e2m1_tensor'", "40 values", "multiple of 16")),
    (
        "number of scales",
        call(*NVFP4, is_sf_swizzled_layout=False),
        ("'ufp8_scale_tensor'", r"\[128, 4\]", "4 x 4 scales", "layout_linear"),
    ),
    (
        "scale dtype",
        call(NVFP4[0], uint8(128, 4, dtype=torch.float8_e4m3fn), scale()),
        ("'ufp8_scale_tensor'", "float8_e4m3fn", "uint8"),
    ),
    (
        "scales elsewhere",
        call(NVFP4[0], elsewhere(uint8(128, 4)), scale()),
        ("'ufp8_scale_tensor'", "device (cpu|meta)", "'e2m1_tensor'"),
    ),
    ("no global scale", call(*NVFP4[:2]), ("'global_scale_tensor'", "None", "float32")),
    (
        "global scale dtype",
        call(*NVFP4[:2], scale(dtype=torch.float16)),
        ("'global_scale_tensor'", "float16", "float32"),
    ),
    (
        "global scale of two elements",
        call(*NVFP4[:2], scale(2)),
        ("'global_scale_tensor'", r"\[2\]", "one element"),
    ),
    ("scale format", call(*NVFP4, ufp8_type=2), ("'ufp8_type'", "got 2", "UE8M0", "E4M3")),
    ("block size", call(*NVFP4, sf_vec_size=0), ("'sf_vec_size'", "got 0", "positive even")),
    (
        "8x4 without swizzling",
        call(*NVFP4, is_sf_swizzled_layout=False, is_sf_8x4_layout=True),
        ("'is_sf_8x4_layout'", "is_sf_swizzled_layout=False"),
    ),
)
REFUSED += refused(
    "e2m1_and_ufp8sf_scale_to_float.out",
    ("out", call(*NVFP4, out=uint8(4, 64, dtype=torch.float16)), ("'out'", "float16", "float32")),
)
REFUSED += refused(
    "mxfp4_dequantize",
    ("layout number", call(uint8(4, 32), uint8(128, 4), 3), ("'sf_layout'", "got 3", "linear")),
    (
        "number of scales",
        call(uint8(4, 32), uint8(4, 4), 1),
        ("'a_sf'", r"\[4, 4\]", "8 x 4 scales", "layout_8x4"),
    ),
)
REFUSED += refused(
    "mxfp4_dequantize.out",
    (
        "out of the wrong shape",
        call(uint8(4, 32), uint8(128, 4), out=uint8(4, 32, dtype=torch.float32)),
        ("'out'", r"\[4, 32\]", r"\[4, 64\]"),
    ),
)


# The host function exists for CPU tensors only, so these are for device "cpu".
HOST = refused(
    "mxfp4_dequantize_host",
    (
        "weight dtype",
        call(uint8(4, 32, dtype=torch.int8), uint8(4, 2)),
        ("'weight'", "int8", "uint8"),
    ),
    ("scale shape", call(uint8(4, 32), uint8(4, 4)), ("'scale'", r"\[4, 4\]", r"\[4, 64 / 32\]")),
    ("group size", call(uint8(4, 32), uint8(4, 2), 0), ("'group_size'", "got 0", "positive")),
)

ACCEPTED = (
    ("e2m1_and_ufp8sf_scale_to_float", call(*NVFP4)),
    ("e2m1_and_ufp8sf_scale_to_float.out", call(*NVFP4, out=uint8(4, 64, dtype=torch.float32))),
    ("mxfp4_dequantize", call(uint8(4, 32), uint8(8, 4), 1)),
    (
        "mxfp4_dequantize.out",
        call(uint8(4, 32), uint8(128, 4), out=uint8(4, 64, dtype=torch.float32)),
    ),
)
