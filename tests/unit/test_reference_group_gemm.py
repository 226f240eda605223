"""The grouped GEMMs on the CPU, against products of factors that were dequantized by hand."""

from __future__ import annotations

import pytest
import torch

from fp4aot.operators.grouped_matmul import (
    group_gemm_mxfp8_mxfp4_nt_groupwise,
    group_gemm_nvfp4_nt_groupwise,
)
from fp4aot.operators.matmul import mm_fp4

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 += [-value for value in E2M1]
NAN_E4M3, NAN_UE8M0 = 0x7F, 0xFF
POISON = 0xFF  # NaN as either scale
# One row, empty groups at each end and between, tiles of 128 rows that end inside of a segment.
LENGTHS = [(1,), (4, 8), (0, 4, 0, 0, 132, 0), (128, 256), (1, 1, 1), (3, 130, 0, 7), (0, 0)]


def random_bytes(generator: torch.Generator, *shape: int, low: int = 0, high: int = 256):
    return torch.randint(low, high, shape, generator=generator).to(torch.uint8)


def tiles_of(codes: torch.Tensor) -> torch.Tensor:
    """Put scale bytes `[rows, columns]` into the 128x4 layout, with NaN as padding."""
    rows, columns = codes.shape
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns)
    tile = row // 128 * (columns // 4) + column // 4
    buffer = torch.full((-(-rows // 128) * 128 * columns,), POISON, dtype=torch.uint8)
    buffer[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = codes
    return buffer


def starts_of(lengths: tuple[int, ...]) -> list[int]:
    return [sum(lengths[:group]) for group in range(len(lengths) + 1)]


def values_of(packed: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(E2M1, dtype=torch.float64)
    return table[torch.stack((packed % 16, packed // 16), -1).flatten(-2).long()]


class Groups:
    """Random segments, matrices and scales, and the exact products of each group."""

    def __init__(self, lengths, n: int = 24, k: int = 128, *, nvfp4: bool, e5m2=False) -> None:
        generator = torch.Generator().manual_seed(17 * len(lengths) + sum(lengths) + k)
        self.lengths, self.starts = lengths, starts_of(lengths)
        self.rows, self.groups, self.n = self.starts[-1], len(lengths), n
        self.columns = k // (16 if nvfp4 else 32)
        # The positive numbers of E4M3; for MXFP4, powers from 2^-20 to 2^20.
        low, high = (1, 127) if nvfp4 else (107, 148)
        codes = random_bytes(generator, self.rows, self.columns, low=low, high=high)
        b_codes = random_bytes(generator, self.groups, n, self.columns, low=low, high=high)
        self.b = random_bytes(generator, self.groups, n, k // 2)
        if nvfp4:
            self.a = random_bytes(generator, self.rows, k // 2)
            values = values_of(self.a)
        else:
            dtype = torch.float8_e5m2 if e5m2 else torch.float8_e4m3fn
            self.a = torch.randn(self.rows, k, generator=generator).to(dtype)
            values = self.a.to(torch.float64)
        self.codes = codes
        self.left = values * self.decoded(codes, nvfp4)
        self.right = values_of(self.b) * self.decoded(b_codes, nvfp4)
        self.a_scale = self.scales_of_a(codes)
        self.b_scale = torch.stack([tiles_of(matrix) for matrix in b_codes])
        self.m_indptr = torch.tensor(self.starts, dtype=torch.int32)
        self.alpha = torch.rand(self.groups, generator=generator) + 0.5

    @staticmethod
    def decoded(codes: torch.Tensor, nvfp4: bool) -> torch.Tensor:
        if nvfp4:
            return codes.view(torch.float8_e4m3fn).double().repeat_interleave(16, dim=-1)
        return (2.0 ** (codes.double() - 127)).repeat_interleave(32, dim=-1)

    def scales_of_a(self, codes: torch.Tensor) -> torch.Tensor:
        """Place each segment's tiles where FlashInfer's kernels look for them."""
        rows = (self.rows + 127 * self.groups) // 128 * 128
        buffer = torch.full((rows * self.columns,), POISON, dtype=torch.uint8)
        end = 0
        for group, (first, length) in enumerate(zip(self.starts, self.lengths, strict=False)):
            tiles = tiles_of(codes[first : first + length])
            begin = (first + 127 * group) // 128 * 128 * self.columns
            assert begin >= end, "tiles of two groups overlap"
            end = begin + len(tiles)
            assert end <= len(buffer), "tiles of a group lie outside"
            buffer[begin:end] = tiles
        return buffer.view(rows, self.columns)

    def arguments(self):
        return self.a, self.b, self.a_scale, self.b_scale, self.m_indptr

    def exact(self, alpha: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply each segment by its matrix in float64, number by number."""
        rows = []
        for group, (first, length) in enumerate(zip(self.starts, self.lengths, strict=False)):
            product = (self.left[first : first + length].unsqueeze(1) * self.right[group]).sum(-1)
            rows.append(product.float() * (1 if alpha is None else alpha[group]))
        return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [128, 384])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_nvfp4_products_of_each_group(lengths, k, dtype):
    groups = Groups(lengths, k=k, nvfp4=True)
    for alpha in (None, groups.alpha, torch.empty(0)):
        used = alpha if alpha is not None and alpha.numel() else None
        result = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), alpha, dtype)
        # Both sums are exact, so that their order does not matter.
        assert torch.equal(result, groups.exact(used).to(dtype))
        assert result.is_contiguous()
        assert result.shape == (sum(lengths), 24)


@pytest.mark.parametrize("e5m2", [False, True], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_mxfp4_products_of_each_group(lengths, e5m2):
    groups = Groups(lengths, k=256, nvfp4=False, e5m2=e5m2)
    result = group_gemm_mxfp8_mxfp4_nt_groupwise(*groups.arguments(), torch.bfloat16)
    exact = groups.exact()
    assert torch.equal(result, exact.to(torch.bfloat16))
    assert result.isfinite().all()
    half = group_gemm_mxfp8_mxfp4_nt_groupwise(*groups.arguments(), torch.float16)
    assert torch.equal(half, exact.to(torch.float16))


def test_many_rows_of_b():
    """N of more than a tile of scales, and no multiple of it."""
    groups = Groups((4, 12), n=264, nvfp4=True)
    result = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), None, torch.bfloat16)
    assert torch.equal(result, groups.exact().to(torch.bfloat16))


def test_one_group_is_a_product():
    groups = Groups((136,), n=32, nvfp4=True)
    a, b, a_scale, b_scale, _ = groups.arguments()
    result = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), groups.alpha, torch.float16)
    expected = mm_fp4(a, b[0].T, a_scale, b_scale, groups.alpha, torch.float16)
    assert torch.equal(result, expected)


def test_alpha_is_that_of_the_group():
    groups = Groups((4, 0, 8), nvfp4=True)
    arguments = groups.arguments()
    plain = group_gemm_nvfp4_nt_groupwise(*arguments, None, torch.bfloat16).float()
    alpha = torch.tensor([2.0, float("nan"), 0.25])
    result = group_gemm_nvfp4_nt_groupwise(*arguments, alpha, torch.bfloat16).float()
    assert torch.equal(result, torch.cat((plain[:4] * 2, plain[4:] * 0.25)))


def test_the_sum_is_not_float32s():
    """A product that float32 loses beside two large ones that cancel."""
    groups = Groups((4,), nvfp4=True)
    a, b = torch.zeros_like(groups.a), torch.zeros_like(groups.b)
    codes = torch.full((4, 8), 0x38, dtype=torch.uint8)
    codes[:, 0], codes[:, 1], codes[:, 2] = 0x7E, 0x01, 0x7E  # 448, 2^-9, 448
    a[:, 0], a[:, 8], a[:, 16] = 0x07, 0x02, 0x0F  # 6, 1, -6
    b[:, :, 0], b[:, :, 8], b[:, :, 16] = 0x07, 0x02, 0x07
    b_scale = tiles_of(codes[:1].expand(24, 8)).unsqueeze(0)
    result = group_gemm_nvfp4_nt_groupwise(
        a, b, groups.scales_of_a(codes), b_scale, groups.m_indptr, None, torch.bfloat16
    )
    assert torch.equal(result, torch.full((4, 24), 2.0**-18).bfloat16())


@pytest.mark.parametrize("nvfp4", [True, False], ids=["nvfp4", "mxfp4"])
def test_a_nan_spoils_its_row_alone(nvfp4):
    groups = Groups((4, 8), nvfp4=nvfp4)
    codes = groups.codes.clone()
    codes[5, 1] = NAN_E4M3 if nvfp4 else NAN_UE8M0
    a, b, _, *others = groups.arguments()
    arguments = (a, b, groups.scales_of_a(codes), *others)
    if nvfp4:
        result = group_gemm_nvfp4_nt_groupwise(*arguments, None, torch.bfloat16)
    else:
        result = group_gemm_mxfp8_mxfp4_nt_groupwise(*arguments, torch.bfloat16)
    assert result[5].isnan().all()
    assert not result[torch.arange(12) != 5].isnan().any()


def test_the_smallest_scale_is_a_number():
    """UE8M0 code 0 is 2^-127; a power of 2^127 in the other factor brings it back."""
    groups = Groups((4,), nvfp4=False)
    a = torch.ones(4, 128).to(torch.float8_e4m3fn)
    b = torch.full((1, 24, 64), 0x22, dtype=torch.uint8)
    a_scale = groups.scales_of_a(torch.zeros(4, 4, dtype=torch.uint8))
    b_scale = tiles_of(torch.full((24, 4), 254, dtype=torch.uint8)).unsqueeze(0)
    result = group_gemm_mxfp8_mxfp4_nt_groupwise(
        a, b, a_scale, b_scale, groups.m_indptr, torch.bfloat16
    )
    assert torch.equal(result, torch.full((4, 24), 128.0).bfloat16())


def test_every_form_of_the_arguments():
    groups = Groups((4, 136), nvfp4=True)
    a, b, a_scale, b_scale, m_indptr = groups.arguments()
    expected = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), None, torch.bfloat16)
    strided = torch.stack((a, a), -1)[..., 0]
    larger = torch.cat((a_scale.flatten(), torch.full((99,), POISON, dtype=torch.uint8)))
    float4, float8 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn
    for call in (
        (strided, b, a_scale.flatten(), b_scale.flatten(), m_indptr),
        (a, b, larger, b_scale.reshape(2, 128, 8), m_indptr),
        (a.view(float4), b.view(float4), a_scale.view(float8), b_scale.view(float8), m_indptr),
    ):
        assert torch.equal(group_gemm_nvfp4_nt_groupwise(*call, None, torch.bfloat16), expected)
    groups = Groups((4, 136), nvfp4=False)
    a, b, a_scale, b_scale, m_indptr = groups.arguments()
    expected = group_gemm_mxfp8_mxfp4_nt_groupwise(*groups.arguments(), torch.bfloat16)
    float8 = torch.float8_e8m0fnu
    result = group_gemm_mxfp8_mxfp4_nt_groupwise(
        a, b.view(float4), a_scale.view(float8), b_scale.view(float8), m_indptr, torch.bfloat16
    )
    assert torch.equal(result, expected)


@pytest.mark.parametrize("nvfp4", [True, False], ids=["nvfp4", "mxfp4"])
def test_rows_outside_of_the_segments_stay(nvfp4):
    groups = Groups((4, 8, 4), nvfp4=nvfp4)
    a, b, a_scale, b_scale, _ = groups.arguments()
    m_indptr = torch.tensor([4, 4, 12, 12], dtype=torch.int32)
    out = torch.full((16, 24), 7.0, dtype=torch.bfloat16)
    whole = torch.full_like(out, 7.0)
    if nvfp4:
        group_gemm_nvfp4_nt_groupwise.out(*groups.arguments(), None, out=whole)
        # The scales of group 1 begin at row (4 + 127) // 128 * 128, whatever group 0 holds.
        group_gemm_nvfp4_nt_groupwise.out(a, b, a_scale, b_scale, m_indptr, None, out=out)
    else:
        group_gemm_mxfp8_mxfp4_nt_groupwise.out(*groups.arguments(), out=whole)
        group_gemm_mxfp8_mxfp4_nt_groupwise.out(a, b, a_scale, b_scale, m_indptr, out=out)
    assert torch.equal(out[4:12], whole[4:12])
    assert (out[:4] == 7).all()
    assert (out[12:] == 7).all()
    assert not (whole == 7).all(dim=1).any()


@pytest.mark.parametrize("bounds", [(0, 8, 4), (-4, 4, 12), (0, 4, 16), (0, 16, 12)])
def test_segments_outside_of_a_are_refused_before_anything_is_written(bounds):
    groups = Groups((4, 8), nvfp4=True)
    out = torch.full((12, 24), 7.0, dtype=torch.bfloat16)
    m_indptr = torch.tensor(bounds, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"'m_indptr': got rows .* for group .*GPU would read"):
        group_gemm_nvfp4_nt_groupwise.out(*groups.arguments()[:4], m_indptr, groups.alpha, out=out)
    assert (out == 7).all()


def test_tiles_change_nothing():
    groups = Groups((4, 132), nvfp4=True)
    expected = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), None, torch.bfloat16)
    for tiles in ((128, 32, 256, False), (128, 64, 128, True)):
        result = group_gemm_nvfp4_nt_groupwise(*groups.arguments(), None, torch.bfloat16, *tiles)
        assert torch.equal(result, expected)
    groups = Groups((4, 132), nvfp4=False)
    expected = group_gemm_mxfp8_mxfp4_nt_groupwise(*groups.arguments(), torch.bfloat16)
    result = group_gemm_mxfp8_mxfp4_nt_groupwise(
        *groups.arguments(), torch.bfloat16, 2, 128, 192, 256, False
    )
    assert torch.equal(result, expected)


def test_defaults_of_the_tiles_are_flashinfers():
    for function in (group_gemm_nvfp4_nt_groupwise, group_gemm_mxfp8_mxfp4_nt_groupwise):
        defaults = {a.name: a.default_value for a in function.default.schema.arguments}
        tiles = [defaults[f"tile_{axis}"] for axis in "mnk"]
        assert (*tiles, defaults["swap_ab"]) == (128, 128, 128, True)
