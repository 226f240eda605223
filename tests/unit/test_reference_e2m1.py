"""E2M1 against a scalar search for the nearest value."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fp4aot.operators.arithmetic import e2m1

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nearest_code(value: float) -> int:
    """Find the nearest E2M1 value; of two, the even code. Doubles hold every distance exactly."""
    if math.isnan(value):
        return 7
    magnitude = min(abs(value), 6.0)
    code = min(range(8), key=lambda c: (abs(VALUES[c] - magnitude), c % 2))
    return code | (8 if math.copysign(1.0, value) < 0 else 0)


def assert_codes(values: torch.Tensor) -> None:
    codes = e2m1.encode(values.to(torch.float32))
    assert codes.dtype == torch.uint8
    expected = [nearest_code(value) for value in values.to(torch.float64).reshape(-1).tolist()]
    assert codes.reshape(-1).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_precision_value(dtype):
    assert_codes(torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype))


def test_ties_and_their_neighbours():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below = torch.nextafter(ties, torch.tensor(0.0))
    above = torch.nextafter(ties, torch.tensor(9.0))
    # Spelled out once, so that a mistake in the search would show.
    assert e2m1.encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert e2m1.encode(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert e2m1.encode(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    for values in (ties, below, above):
        assert_codes(values)
        assert_codes(-values)


def test_special_values():
    inf, nan = math.inf, math.nan
    values = torch.tensor([0.0, -0.0, inf, -inf, nan, -nan, 6.5, -1e30, 1e-45, -1e-45])
    assert e2m1.encode(values).tolist() == [0, 8, 7, 15, 7, 7, 7, 15, 0, 8]


@given(st.lists(st.floats(width=32), min_size=1))
def test_any_float(values):
    assert_codes(torch.tensor(values, dtype=torch.float32))


def test_decode_every_code():
    decoded = e2m1.decode(torch.arange(16, dtype=torch.uint8))
    expected = torch.tensor([*VALUES, *(-value for value in VALUES)])
    assert decoded.dtype == torch.float32
    # Equal bits: -0 is not 0 here.
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


def test_decoded_values_encode_to_themselves():
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(e2m1.encode(e2m1.decode(codes)), codes)


def test_even_elements_are_in_the_low_nibble():
    assert e2m1.pack(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]


@pytest.mark.parametrize("shape", [(4, 6), (0, 6), (4, 0), (2, 3, 8)])
def test_unpack_undoes_pack(shape):
    codes = torch.randint(0, 16, shape, dtype=torch.uint8)
    packed = e2m1.pack(codes)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.equal(e2m1.unpack(packed), codes)
