"""The eight-bit scale factor formats E4M3 and UE8M0, and the GPU's float32 arithmetic on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fp4aot import _layouts

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_E4M3 = 448.0
_NAN_E4M3 = 0x7F
_NAN_UE8M0 = 0xFF


def flush_subnormals(values: torch.Tensor) -> torch.Tensor:
    """Replace float32 subnormals by a zero of the same sign.

    FlashInfer compiles its kernels with `-use_fast_math`, whose float32 instructions do this to
    their operands and results (`.ftz`).
    """
    return torch.where(values.abs() < _SMALLEST_NORMAL, values * 0.0, values)


def multiply(left: torch.Tensor, right: torch.Tensor | float) -> torch.Tensor:
    """Multiply in float32 as the GPU does under `-use_fast_math`; operands are not subnormal."""
    return flush_subnormals(left * right)


def reciprocal(values: torch.Tensor) -> torch.Tensor:
    """Return 1 / `values` with subnormals flushed on the way in and out.

    The kernels use `rcp.approx.ftz.f32`, which may be one unit in the last place away from this
    correctly rounded quotient. Where a scaled value falls on a tie between two E2M1 codes, or a
    scale on a tie between two E4M3 codes, the GPU may therefore choose the other neighbour.
    """
    return flush_subnormals(flush_subnormals(values).reciprocal())


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round float32 to E4M3 bytes: nearest even, saturating at 448, any NaN to 0x7F.

    The conversion of `__nv_fp8_e4m3(float)`. torch's own conversion turns what lies beyond the
    largest value into NaN, hence the clamp.
    """
    saturated = values.clamp(-_LARGEST_E4M3, _LARGEST_E4M3)
    codes = saturated.to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.masked_fill(values.isnan(), _NAN_E4M3)


def decode_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """Return the float32 value of each E4M3 byte (uint8 or float8_e4m3fn). Exact."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def encode_ue8m0_round_up(values: torch.Tensor) -> torch.Tensor:
    """Return the exponent byte of the smallest power of two that is at least |`values`|.

    The conversion of `__nv_cvt_float_to_e8m0(value, __NV_SATFINITE, cudaRoundPosInf)`: a code e
    means 2^(e - 127); up to 2^-127 gives 0; infinity and what lies beyond 2^127 give 254; NaN
    gives 255; the sign is ignored.
    """
    bits = values.view(torch.int32) & 0x7FFFFFFF
    exponent = bits >> 23
    mantissa = bits & 0x7FFFFF
    # Below the normal range the bits are the mantissa of 2^-126, and 2^-127 is half of that.
    exact_or_below = torch.where(exponent == 0, mantissa <= 0x400000, mantissa == 0)
    codes = (exponent + (~exact_or_below).to(torch.int32)).clamp(max=254)
    return codes.masked_fill(values.isnan(), _NAN_UE8M0).to(torch.uint8)


def decode_ue8m0(codes: torch.Tensor) -> torch.Tensor:
    """Return 2^(code - 127) as float32, 2^-127 for code 0 and NaN for code 255."""
    powers = decode_ue8m0_by_shift(codes)
    powers = powers.masked_fill(codes == 0, 2.0**-127)
    return powers.masked_fill(codes == _NAN_UE8M0, float("nan"))


def decode_ue8m0_by_shift(codes: torch.Tensor) -> torch.Tensor:
    """Return the float32 whose exponent field is the code: 0.0 for code 0, infinity for 255.

    That is how FlashInfer's `e2m1_and_ufp8sf_scale_to_float` reads UE8M0; inside 1 .. 254 it
    agrees with `decode_ue8m0`.
    """
    return (codes.to(torch.int32) << 23).view(torch.float32)


def inverse_power_of_two(codes: torch.Tensor) -> torch.Tensor:
    """Return 2^(127 - code) as the kernels' `exp2f_rcp` does under `-use_fast_math`.

    Code 0 gives 1. Codes 254 and 255 stand for results below the normal range, which are flushed
    to zero.
    """
    exponent = (254 - codes.to(torch.int32)).clamp(min=0)
    return (exponent << 23).view(torch.float32).masked_fill(codes == 0, 1.0)


def row_factors(global_scale: torch.Tensor, inversed: bool = False) -> torch.Tensor:
    """Return the factor of each row, `[M, 1]`, or `[1, 1]` where one serves all rows."""
    factor = flush_subnormals(global_scale.reshape(-1, 1))
    return reciprocal(factor) if inversed else factor


def arrange(scale_codes: torch.Tensor, layout: _layouts.SfLayout) -> torch.Tensor:
    """Pad row-major scale factors `[..., rows, columns]` with zeros and put them in the layout."""
    *batch, rows, columns = scale_codes.shape
    padded_rows, padded_columns = _layouts.scale_shape(rows, columns, layout)
    padded = scale_codes.new_zeros(*batch, padded_rows, padded_columns)
    padded[..., :rows, :columns] = scale_codes
    return _layouts.swizzle(padded, layout)


def row_major(
    buffer: torch.Tensor,
    rows: int,
    columns: int,
    layout: _layouts.SfLayout,
    batch: Sequence[int] = (),
) -> torch.Tensor:
    """Undo `arrange`: return uint8 `[*batch, rows, columns]` of a buffer of any shape."""
    shape = (*batch, *_layouts.scale_shape(rows, columns, layout))
    padded = buffer.view(torch.uint8).reshape(shape)
    return _layouts.unswizzle(padded, layout)[..., :rows, :columns]
