"""E2M1, the four-bit float of FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""

from __future__ import annotations

import torch

_SIGN = 0b1000
_LARGEST = 0b0111


def encode(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values to E2M1 codes, one a byte.

    Follows the instruction `cvt.rn.satfinite.e2m1x2.f32` (PTX ISA): round to nearest, ties to the
    even code, saturate at 6, NaN becomes +6, and -0 keeps its sign.

    Parameters
    ----------
    values
        float32, any shape.

    Returns
    -------
    torch.Tensor
        uint8 of the same shape, each in 0 .. 15.
    """
    magnitude = values.abs()
    # A code counts the midpoints below the value. A midpoint itself goes to the even code: up where
    # the comparison includes equality, down where it does not.
    codes = (magnitude > 0.25).to(torch.uint8)
    codes += magnitude >= 0.75
    codes += magnitude > 1.25
    codes += magnitude >= 1.75
    codes += magnitude > 2.5
    codes += magnitude >= 3.5
    codes += magnitude > 5.0
    codes |= torch.signbit(values).to(torch.uint8) * _SIGN
    return codes.masked_fill(values.isnan(), _LARGEST)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """Return the float32 value of each E2M1 code. Exact; code 8 is -0.

    Computed, not looked up: a table made from a Python list would have to be copied to the device
    at every call, which waits for the device and cannot be captured in a CUDA graph.
    """
    magnitude_code = (codes & _LARGEST).to(torch.int32)
    # Two exponent bits and one mantissa bit, put where float32 has them, need the exponent bias
    # raised by 126. Codes 0 and 1 have exponent zero: 0 and 0.5.
    bits = torch.where(
        magnitude_code >= 2, (magnitude_code << 22) + (126 << 23), magnitude_code * (126 << 23)
    )
    magnitude = bits.view(torch.float32)
    return torch.where((codes & _SIGN) != 0, -magnitude, magnitude)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Put two codes in a byte, `[..., K]` to `[..., K / 2]`: element 2i in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Undo `pack`."""
    *batch, columns = packed.shape
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).reshape(*batch, 2 * columns)
