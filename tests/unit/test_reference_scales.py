"""E4M3 and UE8M0 against tables written from the formats' definitions."""

from __future__ import annotations

import bisect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp4aot.operators.arithmetic import scales

# Codes 0 .. 0x7E: four exponent bits with bias 7, three mantissa bits; 0x7F is NaN.
E4M3 = [
    math.ldexp(code, -9) if code < 8 else math.ldexp(8 + code % 8, code // 8 - 10)
    for code in range(0x7F)
]


def e4m3_code(value: float) -> int:
    if math.isnan(value):
        return 0x7F
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    magnitude = min(abs(value), 448.0)
    above = bisect.bisect_left(E4M3, magnitude)
    candidates = [code for code in (above - 1, above) if 0 <= code < len(E4M3)]
    return sign | min(candidates, key=lambda code: (abs(E4M3[code] - magnitude), code % 2))


def ue8m0_code(value: float) -> int:
    if math.isnan(value):
        return 255
    magnitude = abs(value)
    if magnitude == 0.0:
        return 0
    if math.isinf(magnitude):
        return 254
    fraction, exponent = math.frexp(magnitude)
    power = exponent - 1 if fraction == 0.5 else exponent
    return min(max(power + 127, 0), 254)


def neighbours(values: torch.Tensor) -> torch.Tensor:
    down = torch.nextafter(values, torch.full_like(values, -math.inf))
    up = torch.nextafter(values, torch.full_like(values, math.inf))
    return torch.cat([down, values, up])


SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4e38])


def assert_e4m3(values: torch.Tensor) -> None:
    expected = [e4m3_code(value) for value in values.to(torch.float64).tolist()]
    assert scales.encode_e4m3(values).tolist() == expected


def test_the_table_is_e4m3():
    assert len(E4M3) == 127
    assert E4M3[-1] == 448.0
    assert E4M3[1] == 2.0**-9
    assert E4M3[0x38] == 1.0
    assert sorted(E4M3) == E4M3


def test_decode_every_e4m3_code():
    decoded = scales.decode_e4m3(torch.arange(256).to(torch.uint8))
    expected = torch.tensor([*E4M3, math.nan, *(-value for value in E4M3), math.nan])
    assert torch.equal(decoded.isnan(), expected.isnan())
    same = ~expected.isnan()
    assert torch.equal(decoded[same].view(torch.int32), expected[same].view(torch.int32))


def test_encode_e4m3_at_every_code_and_tie():
    codes = torch.tensor(E4M3, dtype=torch.float32)
    ties = (codes[1:] + codes[:-1]) / 2
    for values in (codes, ties):
        assert_e4m3(neighbours(values))
        assert_e4m3(neighbours(-values))


def test_encode_e4m3_of_every_half_precision_value():
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    assert_e4m3(halves.to(torch.float32))


def test_encode_e4m3_saturates_and_keeps_one_nan():
    values = torch.tensor([448.0, 464.0, 464.1, 1e30, math.inf, -math.inf, math.nan])
    assert scales.encode_e4m3(values).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]
    negative_nan = torch.tensor([-(2**22)], dtype=torch.int32).view(torch.float32)
    assert negative_nan.isnan().all()
    assert scales.encode_e4m3(negative_nan).tolist() == [0x7F]


@given(st.lists(st.floats(width=32), min_size=1))
def test_encode_e4m3_of_any_float(values):
    assert_e4m3(torch.tensor(values, dtype=torch.float32))


def assert_ue8m0(values: torch.Tensor) -> None:
    expected = [ue8m0_code(value) for value in values.to(torch.float64).tolist()]
    assert scales.encode_ue8m0_round_up(values).tolist() == expected


def test_encode_ue8m0_around_every_power_of_two():
    powers = torch.tensor([math.ldexp(1.0, exponent) for exponent in range(-149, 128)])
    assert_ue8m0(neighbours(powers))
    assert_ue8m0(-powers)


def test_encode_ue8m0_by_hand():
    values = [0.0, 2.0**-127, 2.0**-126, 1.0, 1.0000001, 2.0, 2.0**127, 3e38, math.inf, math.nan]
    codes = [0, 0, 1, 127, 128, 128, 254, 254, 254, 255]
    assert scales.encode_ue8m0_round_up(torch.tensor(values)).tolist() == codes
    just_above = torch.tensor([0x400001], dtype=torch.int32).view(torch.float32)
    assert scales.encode_ue8m0_round_up(just_above).tolist() == [1]


@given(st.lists(st.floats(width=32), min_size=1))
def test_encode_ue8m0_of_any_float(values):
    assert_ue8m0(torch.tensor(values, dtype=torch.float32))


def test_decode_every_ue8m0_code():
    codes = torch.arange(256).to(torch.uint8)
    powers = torch.tensor([math.ldexp(1.0, code - 127) for code in range(255)])
    decoded = scales.decode_ue8m0(codes)
    assert torch.equal(decoded[:255], powers)
    assert decoded[255].isnan()
    shifted = scales.decode_ue8m0_by_shift(codes)
    assert torch.equal(shifted[1:255], powers[1:])
    assert shifted[0] == 0.0
    assert shifted[255] == math.inf


def test_inverse_power_of_two():
    inverse = scales.inverse_power_of_two(torch.arange(256).to(torch.uint8)).tolist()
    assert inverse[0] == 1.0
    assert inverse[1:254] == [math.ldexp(1.0, 127 - code) for code in range(1, 254)]
    assert inverse[254:] == [0.0, 0.0]


def test_flushing_keeps_the_sign_and_everything_normal():
    values = [1e-40, -1e-40, 2.0**-126, -(2.0**-126), 0.0, -0.0, math.inf, math.nan]
    flushed = scales.flush_subnormals(torch.tensor(values)).tolist()
    assert flushed[:4] == [0.0, 0.0, 2.0**-126, -(2.0**-126)]
    assert [math.copysign(1.0, value) for value in flushed[:2]] == [1.0, -1.0]
    assert [math.copysign(1.0, value) for value in flushed[4:6]] == [1.0, -1.0]
    assert flushed[6] == math.inf
    assert math.isnan(flushed[7])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1e-40, math.inf), (-1e-40, -math.inf), (0.0, math.inf), (2.0**127, 0.0), (4.0, 0.25)],
)
def test_reciprocal_flushes_on_both_sides(value, expected):
    assert scales.reciprocal(torch.tensor([value])).item() == expected
