"""Quantization to an NVFP4 KV cache."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import check_empty, check_quantizer
from gpusuite.draw import BF16, FP16

import fp4aot

pytestmark = [pytest.mark.subject("nvfp4_kv_quantize"), pytest.mark.needs("nvfp4_kv_quantize")]
HALVES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)


@HALVES
def test_sizes(details, dtype):
    for rows in (1, 7, 33, 129, 1000, 8192):
        for columns in (16, 48, 64, 128, 576, 2048, 7168):
            with details.case(f"{rows} x {columns}"):
                x = draw.values(rows, columns, dtype=dtype, seed=rows + columns)
                check_quantizer(details, "nvfp4_kv_quantize", (x, 1 / draw.global_scale(x)))


@HALVES
def test_strides_alignment_scales_and_odd_values(details, dtype):
    wide = draw.values(130, 512, dtype=dtype)
    flat = draw.values(1, 33 * 96 + 1, dtype=dtype)[0]
    for name, x in {
        "part of the columns": wide[:, 16:144],
        "every other row": wide[::2],
        "transposed": draw.values(128, 66, dtype=dtype).t(),
        "misaligned": flat[1:].view(33, 96),
    }.items():
        with details.case(name):
            check_quantizer(details, "nvfp4_kv_quantize", (x, 1 / draw.global_scale(x)))
    x = wide
    for factor in (1e-30, 1e-6, 1000.0, 1e30):
        with details.case(f"global scale times {factor}"):
            arguments = (x, factor / draw.global_scale(x).reshape(()))
            check_quantizer(details, "nvfp4_kv_quantize", arguments, ties=None)
    with details.case("infinities, huge and subnormal blocks"):
        # What a block with NaN becomes is not specified.
        x = draw.special(129, 1056, dtype).nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf)
        scale = 1 / draw.global_scale(draw.values(129, 1056))
        check_quantizer(details, "nvfp4_kv_quantize", (x, scale), ties=None)


@HALVES
def test_a_round_trip_with_another_magnitude_in_every_block(details, dtype):
    """A value scale read in another layout than it was written in would be far off."""
    x = draw.values(4096, 128, dtype=dtype)
    scale = x.float().abs().max().reshape(1) / (448 * 6)
    restored = fp4aot.nvfp4_kv_dequantize(*fp4aot.nvfp4_kv_quantize(x, scale), scale, dtype)
    blocks = [t.float().view(4096, 8, 16).norm(dim=2) for t in (restored - x, x)]
    details.error("round trip of a block", float((blocks[0] / blocks[1]).max()))
    assert float((blocks[0] / blocks[1]).max()) < 0.35
    assert float((restored - x).float().norm() / x.float().norm()) < 0.12


def test_empty():
    check_empty("nvfp4_kv_quantize", (0, 64), (5, 0))
