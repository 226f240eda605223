"""`mm_fp4` against float64 over the dequantized factors."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw, factors, memory
from gpusuite.compare import assert_equal, check_product
from gpusuite.draw import BF16, FP16

import fp4aot

pytestmark = [pytest.mark.subject("mm_fp4"), pytest.mark.needs("mm_fp4")]
EVERY_DTYPE = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)

mm_fp4 = torch.ops.fp4aot.mm_fp4


def tactic_count() -> int:
    return torch.ops.fp4aot._mm_fp4_tactic_count(*torch.cuda.get_device_capability(0))


def multiply(details, arguments, dtype, tactic=-1):
    """Run both forms in poisoned memory."""
    memory.poison()
    product = mm_fp4(*arguments, dtype, tactic)
    buffer = memory.Guarded.like(product)
    mm_fp4.out(*arguments, tactic, out=buffer.tensor)
    buffer.check()
    assert_equal(details, "products, both forms", buffer.tensor, product)
    check_product(details, product, arguments)
    return product


@EVERY_DTYPE
@pytest.mark.parametrize("m", [1, 2, 7, 33, 64, 127, 128, 129, 257, 1000, 4096])
def test_sizes(details, m, dtype):
    for n, k in ((32, 32), (96, 352), (128, 128), (160, 96), (384, 1536), (1056, 2080),
                 (2048, 4096)):  # fmt: skip
        with details.case(f"{m} x {n} x {k}"):
            multiply(details, factors.draw(m, n, k), dtype)


@EVERY_DTYPE
def test_large_products(details, dtype):
    for m, n, k in ((4096, 4096, 4096), (1, 8192, 16384), (8192, 32, 7168), (33, 7168, 2048)):
        with details.case(f"{m} x {n} x {k}"):
            multiply(details, factors.draw(m, n, k), dtype)


@EVERY_DTYPE
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batches(details, batch, dtype):
    for m, n, k in ((1, 32, 32), (33, 96, 352), (130, 64, 256), (257, 384, 1056)):
        with details.case(f"{batch} x {m} x {n} x {k}"):
            multiply(details, factors.draw(m, n, k, (batch,)), dtype)


@EVERY_DTYPE
def test_every_tactic(details, dtype):
    count = tactic_count()
    assert count > 1
    details.note(f"{count} tactics")
    for m, n, k in ((1, 96, 96), (33, 160, 352), (129, 384, 512), (512, 1056, 2080)):
        arguments = factors.draw(m, n, k)
        for tactic in range(-1, count):
            with details.case(f"tactic {tactic}, {m} x {n} x {k}"):
                multiply(details, arguments, dtype, tactic)
    arguments = factors.draw(130, 96, 352, (3,))
    for tactic in range(count):
        with details.case(f"tactic {tactic}, a batch of three"):
            multiply(details, arguments, dtype, tactic)


def test_a_tactic_that_does_not_exist_is_refused():
    with pytest.raises(RuntimeError, match="argument 'tactic'"):
        mm_fp4(*factors.draw(4, 32, 32), BF16, tactic_count())


@EVERY_DTYPE
def test_alpha(details, dtype):
    for alpha in (1.0, -0.37, 1e-6, 2.0**-110, 1e-42, 0.0):
        with details.case(f"alpha {alpha}"):
            arguments = factors.draw(33, 96, 352)
            scalar = torch.full((), alpha, device="cuda")
            # Subnormal numbers count as zero under -use_fast_math.
            effective = torch.where(scalar.abs() < 2.0**-126, scalar * 0, scalar)
            product = mm_fp4(*arguments[:4], scalar, dtype)
            check_product(details, product, (*arguments[:4], effective))


def test_beyond_the_range_of_float16_is_infinite(details):
    arguments = factors.draw(33, 96, 352, alpha=1e6)
    product = mm_fp4(*arguments, FP16)
    assert int(product.isinf().sum()) > product.numel() // 2
    assert not product.isnan().any()


def test_nan_scales_reach_their_row_or_column_and_no_other(details):
    a, b, a_scales, b_scales, alpha = factors.draw(130, 96, 352)
    clean = mm_fp4(a, b, a_scales, b_scales, alpha, BF16)
    # (row 5, column 0) of the 128x4 layout is at 5 * 16.
    a_scales.view(-1)[5 * 16] = 0x7F
    product = mm_fp4(a, b, a_scales, b_scales, alpha, BF16)
    assert product[5].isnan().all()
    others = [row for row in range(130) if row != 5]
    assert_equal(details, "products, without NaN", product[others], clean[others])


def test_representations_of_the_same_factors(details):
    a, b, a_scales, b_scales, alpha = factors.draw(129, 256, 512)
    expected = mm_fp4(a, b, a_scales, b_scales, alpha, BF16)
    e4m3, e2m1 = torch.float8_e4m3fn, torch.float4_e2m1fn_x2
    wide = torch.zeros(129, 300, dtype=torch.uint8, device="cuda")
    wide[:, 3 : 3 + 256] = a
    flat = torch.zeros(a.numel() + 1, dtype=torch.uint8, device="cuda")
    flat[1:] = a.flatten()
    others = {
        "float8 scales": (a, b, a_scales.view(e4m3), b_scales.view(e4m3), alpha),
        "float4 values": (a.view(e2m1), b.t().view(e2m1).t(), a_scales, b_scales, alpha),
        "transposed scales of b": (a, b, a_scales, b_scales.t(), alpha),
        "flat scales": (a, b, a_scales.flatten(), b_scales.flatten(), alpha),
        "0-d alpha": (a, b, a_scales, b_scales, alpha.reshape(())),
        "strided a": (wide[:, 3 : 3 + 256], b, a_scales, b_scales, alpha),
        "misaligned a": (flat[1:].view_as(a), b, a_scales, b_scales, alpha),
    }
    for name, arguments in others.items():
        with details.case(name):
            assert_equal(
                details, "products, uint8 and contiguous", mm_fp4(*arguments, BF16), expected
            )
    into = torch.full_like(expected, float("nan"))
    returned = fp4aot.mm_fp4(a, b, a_scales, b_scales, alpha, out=into)
    assert returned is into
    assert_equal(details, "products, uint8 and contiguous", into, expected)


@EVERY_DTYPE
def test_empty_products(dtype):
    assert mm_fp4(*factors.draw(0, 32, 64), dtype).shape == (0, 32)
    assert mm_fp4(*factors.draw(4, 32, 64, (0,)), dtype).shape == (0, 4, 32)


def test_the_same_call_gives_the_same_bits(details):
    arguments = factors.draw(1000, 1056, 4096)
    first = mm_fp4(*arguments, BF16)
    for _ in range(10):
        assert_equal(details, "products, the first of ten calls", mm_fp4(*arguments, BF16), first)


def test_rows_do_not_depend_on_the_others(details):
    """The same row, alone and among others, whatever the tile: within one tactic, bit for bit."""
    a, b, a_scales, b_scales, alpha = factors.draw(256, 96, 352)
    whole = mm_fp4(a, b, a_scales, b_scales, alpha, BF16, 0)
    for m in (1, 7, 128, 129):
        rows = a_scales[: -(-m // 128) * 128]
        part = mm_fp4(a[:m], b, rows, b_scales, alpha, BF16, 0)
        assert_equal(details, "products, among more rows", part, whole[:m])
