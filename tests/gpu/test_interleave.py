"""`block_scale_interleave` and its reverse."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import assert_equal, check_quantizer

import fp4aot

SHAPES = ((1, 1), (7, 3), (33, 5), (127, 4), (128, 64), (129, 65), (1000, 180), (4096, 256))


def scales(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    drawn = torch.randint(1, 256, shape, generator=generator, device="cuda")
    return drawn.to(dtype)


@pytest.mark.subject("block_scale_interleave")
@pytest.mark.needs("block_scale_interleave")
class TestInterleave:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=draw.name_of)
    @pytest.mark.parametrize("experts", [None, 1, 3])
    def test_sizes(self, details, experts, dtype):
        leading = () if experts is None else (experts,)
        for shape in SHAPES:
            with details.case(f"{(*leading, *shape)}"):
                source = scales(*leading, *shape, dtype=dtype)
                check_quantizer(details, "block_scale_interleave", (source,), ties=None)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=draw.name_of)
    def test_strides(self, details, dtype):
        wide = scales(2, 130, 40, dtype=dtype)
        for name, source in {
            "columns": wide[..., 3:20],
            "rows": wide[:, ::2],
            "transposed": wide.transpose(1, 2),
        }.items():
            with details.case(name):
                check_quantizer(details, "block_scale_interleave", (source,), ties=None)


@pytest.mark.subject("block_scale_interleave_reverse")
@pytest.mark.needs("block_scale_interleave_reverse", "block_scale_interleave")
class TestReverse:
    @pytest.mark.parametrize("experts", [None, 1, 3])
    def test_sizes(self, details, experts):
        leading = () if experts is None else (experts,)
        for rows, columns in ((128, 4), (256, 12), (1024, 180)):
            with details.case(f"{(*leading, rows, columns)}"):
                source = scales(*leading, rows, columns, dtype=torch.uint8)
                check_quantizer(details, "block_scale_interleave_reverse", (source,), ties=None)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_it_undoes_the_other(self, details, shape):
        source = scales(2, *shape, dtype=torch.uint8)
        rows, columns = shape
        padded = (2, -(-rows // 128) * 128, -(-columns // 4) * 4)
        back = fp4aot.block_scale_interleave_reverse(
            fp4aot.block_scale_interleave(source).view(padded)
        )
        assert_equal(details, "scales, before", back[:, :rows, :columns].contiguous(), source)
        assert int(back.long().sum()) == int(source.long().sum()), "padding is not zero"
