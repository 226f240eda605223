"""Conversions from and to FP4 (E2M1) and powers of two (UE8M0).

The rules are those of ``cvt`` in the PTX ISA. A conversion writes one register and does nothing
else: its replacement is computed in any case, and a guard decides over the last step alone.
"""

from __future__ import annotations

from aot.lowering.ptx import Instruction
from aot.lowering.scope import scope

# Where the rounding of a magnitude goes from one E2M1 value to the next: the midpoints of 0, 0.5,
# 1, 1.5, 2, 3, 4, 6. Of a tie, the value with an even code wins, so every other midpoint belongs
# to the value above it.
_MIDPOINTS = (
    ("gt", 0x3E800000),  # 0.25 rounds to 0
    ("ge", 0x3F400000),  # 0.75 rounds to 1
    ("gt", 0x3FA00000),  # 1.25 rounds to 1
    ("ge", 0x3FE00000),  # 1.75 rounds to 2
    ("gt", 0x40200000),  # 2.5 rounds to 2
    ("ge", 0x40600000),  # 3.5 rounds to 4
    ("gt", 0x40A00000),  # 5 rounds to 4
)


def e2m1x2_from_f32(instruction: Instruction) -> str:
    """``cvt.rn.satfinite.e2m1x2.f32 d, a, b``: two float32 to two E2M1 in a byte.

    `a` goes to the high nibble, `b` to the low one. To nearest, ties to the even code; a magnitude
    above 6, infinity too, becomes 6; NaN becomes +6, whatever its sign; the sign of zero stays.
    """
    target, high, low = instruction.expect(3)
    return scope(
        {".b32": "high low code step sign", ".f32": "value magnitude", ".pred": "nan"},
        [
            *_e2m1_code(high),
            "shl.b32 $high, $code, 4",
            *_e2m1_code(low),
            "or.b32 $code, $code, $high",
            f"{instruction.guard}cvt.u8.u32 {target}, $code",
        ],
    )


def _e2m1_code(operand: str) -> list[str]:
    """Leave the E2M1 code of a float32 in ``$code``: the number of midpoints that it is beyond."""
    steps = [f"mov.f32 $value, {operand}", "abs.f32 $magnitude, $value", "mov.b32 $code, 0"]
    for comparison, midpoint in _MIDPOINTS:
        steps += [
            # -1 where it holds.
            f"set.{comparison}.s32.f32 $step, $magnitude, 0f{midpoint:08X}",
            "sub.s32 $code, $code, $step",
        ]
    return [
        *steps,
        "mov.b32 $sign, $value",
        "shr.u32 $sign, $sign, 28",
        "and.b32 $sign, $sign, 8",
        "or.b32 $code, $code, $sign",
        "setp.nan.f32 $nan, $value, $value",
        "selp.b32 $code, 7, $code, $nan",
    ]


def f16x2_from_e2m1x2(instruction: Instruction) -> str:
    """``cvt.rn.f16x2.e2m1x2 d, a``: two E2M1 in a byte to two float16, exactly.

    The low nibble goes to the low half. A nibble's three magnitude bits, put at the bottom of the
    exponent and the top of the mantissa, are the value times 2⁻¹⁴, subnormal ones included.
    """
    target, source = instruction.expect(2)
    return scope(
        {".b32": "codes bits part scale"},
        [
            f"cvt.u32.u8 $codes, {source}",
            *_moved(0x07, 9, first=True),
            *_moved(0x08, 12),
            *_moved(0x70, 21),
            *_moved(0x80, 24),
            "mov.b32 $scale, 0x74007400",  # 2¹⁴ twice
            f"{instruction.guard}mul.rn.f16x2 {target}, $bits, $scale",
        ],
    )


def _moved(mask: int, distance: int, *, first: bool = False) -> list[str]:
    """Copy the bits of ``$codes`` under a mask to their place in ``$bits``."""
    steps = [f"and.b32 $part, $codes, {mask:#x}", f"shl.b32 $part, $part, {distance}"]
    return [*steps, "mov.b32 $bits, $part" if first else "or.b32 $bits, $bits, $part"]


def ue8m0x2_from_f32(instruction: Instruction) -> str:
    """``cvt.rp.satfinite.ue8m0x2.f32 d, a, b``: two float32 to two powers of two.

    `a` goes to the high byte, `b` to the low one; E stands for 2^(E - 127). Of the magnitude, the
    next power of two that is not below it: 0 up to 2⁻¹²⁷, at most 254 (infinity too), and 255 for
    NaN.
    """
    target, high, low = instruction.expect(3)
    return scope(
        {".b32": "high bits exponent mantissa", ".pred": "nan up tiny"},
        [
            *_ue8m0_code(high),
            "shl.b32 $high, $exponent, 8",
            *_ue8m0_code(low),
            "or.b32 $exponent, $exponent, $high",
            f"{instruction.guard}cvt.u16.u32 {target}, $exponent",
        ],
    )


def _ue8m0_code(operand: str) -> list[str]:
    """Leave the UE8M0 code of a float32 in ``$exponent``."""
    return [
        f"mov.b32 $bits, {operand}",
        "and.b32 $bits, $bits, 0x7fffffff",
        "shr.u32 $exponent, $bits, 23",
        "and.b32 $mantissa, $bits, 0x7fffff",
        "setp.ne.u32 $up, $mantissa, 0",
        "@$up add.u32 $exponent, $exponent, 1",
        "min.u32 $exponent, $exponent, 254",
        # 2⁻¹²⁷ is subnormal: half of the smallest value with an exponent.
        "setp.le.u32 $tiny, $bits, 0x00400000",
        "selp.b32 $exponent, 0, $exponent, $tiny",
        "setp.gt.u32 $nan, $bits, 0x7f800000",
        "selp.b32 $exponent, 255, $exponent, $nan",
    ]


def bf16x2_from_ue8m0x2(instruction: Instruction) -> str:
    """``cvt.rn.bf16x2.ue8m0x2 d, a``: two powers of two to two bfloat16, exactly.

    The low byte goes to the low half. A code is the exponent as it is, but 0 stands for 2⁻¹²⁷,
    which is subnormal, and 255 for NaN.
    """
    target, source = instruction.expect(2)
    return scope(
        {".b32": "codes low high", ".pred": "zero nan"},
        [
            f"cvt.u32.u16 $codes, {source}",
            "and.b32 $low, $codes, 255",
            *_bf16_bits("$low"),
            "shr.u32 $high, $codes, 8",
            *_bf16_bits("$high"),
            "shl.b32 $high, $high, 16",
            f"{instruction.guard}or.b32 {target}, $low, $high",
        ],
    )


def _bf16_bits(register: str) -> list[str]:
    """Turn the code in a register into the bits of a bfloat16."""
    return [
        f"setp.eq.u32 $zero, {register}, 0",
        f"setp.eq.u32 $nan, {register}, 255",
        f"shl.b32 {register}, {register}, 7",
        f"selp.b32 {register}, 0x0040, {register}, $zero",
        f"selp.b32 {register}, 0x7fff, {register}, $nan",
    ]
