"""The operators that quantize a batch `[B, M, K]`, plain and by expert."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import check_empty, check_quantizer
from gpusuite.draw import BF16, FP8, FP16

import fp4aot

HALVES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)
RECIPES = (0, 1, 3, 5, 7, 17, 19, 21, 23)
EXPERTS = ("scaled_fp4_grouped_quantize", "silu_and_mul_scaled_nvfp4_experts_quantize")

plain = [
    pytest.mark.subject("nvfp4_batched_quantize"),
    pytest.mark.needs("nvfp4_batched_quantize"),
]


class TestBatched:
    pytestmark = plain

    @pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
    @pytest.mark.parametrize("scale", ["one", "per row"])
    def test_sizes(self, details, scale, dtype):
        for batch in (1, 3, 8):
            for rows, columns in ((1, 16), (7, 48), (33, 320), (129, 1040), (1025, 512)):
                with details.case(f"{batch} x {rows} x {columns}"):
                    a = draw.values(batch, rows, columns, dtype=dtype, seed=rows)
                    factor = draw.global_scale(a)
                    if scale == "per row":
                        factor = 448 * 6 / (1.0173 * a.float().abs().amax(dim=(0, 2)))
                    check_quantizer(details, "nvfp4_batched_quantize", (a, factor))

    @HALVES
    @pytest.mark.parametrize("recipe", RECIPES[1:])
    def test_four_over_six(self, details, recipe, dtype):
        a = draw.values(3, 129, 1040, dtype=dtype)
        e4m3_max = fp4aot.nvfp4_e4m3_max(fp4aot.nvfp4_4over6_from_code(recipe))
        arguments = (a, draw.global_scale(a, e4m3_max), 16, recipe)
        check_quantizer(details, "nvfp4_batched_quantize", arguments, neighbours=False)

    @pytest.mark.parametrize("dtype", [BF16, FP16, FP8], ids=draw.name_of)
    def test_strides_alignment_and_odd_values(self, details, dtype):
        a = draw.values(3, 130, 320, dtype=dtype)
        flat = draw.values(1, 2 * 33 * 96 + 1, dtype=dtype)[0]
        for name, source in {
            "batch in the middle": a.transpose(0, 1),
            "part of the columns": a[..., 16:112],
            "every other row": a[:, ::2],
            "misaligned": flat[1:].view(2, 33, 96),
        }.items():
            with details.case(name):
                arguments = (source, draw.global_scale(source))
                check_quantizer(details, "nvfp4_batched_quantize", arguments)
        with details.case("odd values"):
            odd = draw.special(2 * 129, 1056, dtype).view(2, 129, 1056)
            arguments = (odd, draw.global_scale(draw.values(129, 1056)))
            check_quantizer(details, "nvfp4_batched_quantize", arguments, ties=None)

    def test_empty(self):
        check_empty("nvfp4_batched_quantize", (0, 4, 64), (2, 0, 64), (2, 4, 0))


def draw_experts(operator, experts, rows, columns, dtype, recipe=0, seed=0):
    width = columns * (2 if operator.startswith("silu") else 1)
    a = draw.values(experts, rows, width, dtype=dtype, seed=seed)
    if operator.startswith("silu"):
        a = (a.float() / 8).to(dtype)  # so that gates are not all saturated
    largest = a.float().abs().amax(dim=(1, 2))
    e4m3_max = fp4aot.nvfp4_e4m3_max(fp4aot.nvfp4_4over6_from_code(recipe))
    return a, e4m3_max * 6 / (1.0173 * largest)


@pytest.mark.needs
@pytest.mark.parametrize("operator", EXPERTS)
class TestExperts:
    """Only rows that the mask counts are defined, and the whole buffer where columns are padded."""

    @HALVES
    def test_sizes_and_masks(self, details, operator, dtype):
        for experts in (1, 4, 9):
            for rows, columns in ((1, 16), (7, 48), (33, 320), (129, 1024), (300, 2048)):
                a, scale = draw_experts(operator, experts, rows, columns, dtype, seed=rows)
                masks = {
                    "all": torch.full((experts,), rows),
                    "none": torch.zeros(experts),
                    "some": torch.arange(experts) * rows // max(1, experts - 1),
                    "beyond": torch.full((experts,), rows + 5),
                    "negative": torch.arange(experts) - 1,
                }
                for name, mask in masks.items():
                    with details.case(f"{experts} x {rows} x {columns}, {name}"):
                        arguments = (a, mask.to("cuda", torch.int32), scale)
                        # SiLU: the exponential of the reference is not the GPU's.
                        share = 2e-3 if operator.startswith("scaled") else 2e-2
                        check_quantizer(
                            details,
                            operator,
                            arguments,
                            whole=False,
                            neighbours=operator.startswith("scaled"),
                            ties=share,
                        )

    @HALVES
    @pytest.mark.parametrize("recipe", RECIPES[1:])
    def test_four_over_six(self, details, operator, recipe, dtype):
        a, scale = draw_experts(operator, 3, 129, 1040, dtype, recipe)
        mask = torch.tensor([129, 0, 77], dtype=torch.int32, device="cuda")
        arguments = (a, mask, scale, recipe)
        check_quantizer(details, operator, arguments, whole=False, neighbours=False, ties=2e-2)

    @HALVES
    def test_strides_and_odd_values(self, details, operator, dtype):
        a, scale = draw_experts(operator, 3, 130, 320, dtype)
        mask = torch.tensor([60, 7, 0], dtype=torch.int32, device="cuda")
        cases = {
            "every other row": a[:, ::2],
            "rows first": a.transpose(0, 1).contiguous().transpose(0, 1),
        }
        for name, source in cases.items():
            with details.case(name):
                check_quantizer(details, operator, (source, mask, scale), whole=False, ties=None)
        with details.case("odd values"):
            odd = draw.special(3 * 130, a.shape[2], dtype).view(3, 130, -1)
            check_quantizer(details, operator, (odd, mask, scale), whole=False, ties=None)

    def test_columns_of_padding_are_zero(self, operator):
        """NaN there would meet zero values in a grouped GEMM, and spoil real rows."""
        from gpusuite import memory

        a, scale = draw_experts(operator, 2, 33, 80, BF16)
        mask = torch.full((2,), 33, dtype=torch.int32, device="cuda")
        memory.poison()
        _, scales = getattr(torch.ops.fp4aot, operator)(a, mask, scale)
        # [32, 4, row tiles, 4, column tiles, matrices]: columns 5 to 7 are padding.
        assert not scales.view(torch.uint8)[:, :, :, 1:, 1, :].any()
