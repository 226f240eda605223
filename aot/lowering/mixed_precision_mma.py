"""The FP8 by FP4 tensor core instruction with block scales, by float16 tensor core instructions."""

from __future__ import annotations

import re
from typing import Final

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Instruction, vector
from aot.lowering.scope import scope, widen

_TYPES = re.compile(r"\.f32\.(?P<a>e\w+)\.(?P<b>e\w+)\.f32\.ue8m0")
_NAN: Final = "0f7FFFFFFF"
# The accumulator's registers by row (g or g+8) and column (2t or 2t+1).
_PLACES: Final = ((0, 0), (0, 1), (1, 0), (1, 1))


def mxf8f6f4_m16n8k32(instruction: Instruction) -> str:
    """``mma.sync.aligned…kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32…ue8m0``.

    ``d = (A × B)·scale of the row·scale of the column + c`` with E4M3, E5M2 or E2M1 elements on
    either side, one UE8M0 scale for the 32 of them, and a float32 accumulator. Operands: d, a (4
    registers), b (2), c, scale of A, {byte, thread} of A's scales, scale of B, {byte, thread} of
    B's.

    Elements: each is a byte, E2M1 in its bits 2 to 5. With g = lane / 4 and t = lane % 4, register
    a0 holds row g, k = 4t…4t+3, a1 row g+8, a2 and a3 the same at k+16; b0 and b1 hold column g at
    the same k.

    Scales: one byte of a register, by its number. That of row g is in lane 2·thread of the quad,
    that of row g+8 in lane 2·thread+1, that of column g in lane `thread`.

    Every element is exact in float16, and so is a product in the tensor core. Sixteen values of k
    at a time go through ``m16n8k16``; which ones does not matter, as long as A and B agree. A scale
    is 2^(code − 127), or NaN for 255. Both exponents are added, and each half of the sum is
    multiplied in turn: nothing overflows or vanishes that would not in the end.
    """
    types = _TYPES.search(instruction.opcode)
    if types is None or len(instruction.operands) != 8:
        raise LoweringError(f"{instruction.opcode} has a form that is not known")
    d, a, b, c, scale_a, place_a, scale_b, place_b = instruction.operands
    guard = instruction.guard
    steps = [
        "mov.u32 $lane, %laneid",
        "and.b32 $quad, $lane, 28",
        "and.b32 $inquad, $lane, 3",
        # Rows g and g+8.
        widen(vector(place_a, 2)[1], "$thread"),
        "shl.b32 $thread, $thread, 1",
        "add.u32 $thread, $thread, $quad",
        *_scale(guard, scale_a, place_a, "row0"),
        "add.u32 $thread, $thread, 1",
        *_scale(guard, scale_a, place_a, "row1"),
        # Columns 2t and 2t+1, whose quads are twice as far apart.
        widen(vector(place_b, 2)[1], "$thread"),
        "shl.b32 $inquad, $inquad, 3",
        "add.u32 $thread, $thread, $inquad",
        *_scale(guard, scale_b, place_b, "column0"),
        "add.u32 $thread, $thread, 4",
        *_scale(guard, scale_b, place_b, "column1"),
        "mov.b32 $unit, 0x74007400",  # 2¹⁴ twice
    ]
    sides = [types["a"]] * 4 + [types["b"]] * 2
    for index, word in enumerate((*vector(a, 4), *vector(b, 2))):
        steps += _float16(word, sides[index], f"e{index}_")
    products = ", ".join(f"$p{i}" for i in range(4))
    steps += [f"mov.f32 $p{i}, 0f00000000" for i in range(4)]
    for row, row_8, column in ((0, 1, 4), (2, 3, 5)):
        rows = ", ".join(f"$e{register}_{half}" for half in (0, 1) for register in (row, row_8))
        steps.append(
            f"{guard}mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            f"{{{products}}}, {{{rows}}}, {{$e{column}_0, $e{column}_1}}, {{{products}}}"
        )
    for i, ((row, column), element) in enumerate(zip(_PLACES, vector(c, 4), strict=True)):
        steps += _scaled(f"$p{i}", f"$row{row}", f"$column{column}", element)
    steps += [f"{guard}mov.f32 {element}, $p{i}" for i, element in enumerate(vector(d, 4))]
    elements = " ".join(f"e{word}_{half}" for word in range(6) for half in (0, 1))
    return scope(
        {
            ".b32": f"lane quad inquad thread move row0 row1 column0 column1 part sign unit sum "
            f"half {elements}",
            ".b16": "low high",
            ".f32": "p0 p1 p2 p3 factor",
            ".pred": "nan",
        },
        steps,
    )


def _scale(guard: str, packed: str, place: str, target: str) -> list[str]:
    """Fetch the code of a scale from the lane ``$thread``."""
    return [
        f"{guard}shfl.sync.idx.b32 ${target}, {vector(packed, 1)[0]}, $thread, 31, 0xffffffff",
        widen(vector(place, 2)[0], "$move"),
        "shl.b32 $move, $move, 3",
        f"shr.u32 ${target}, ${target}, $move",
        f"and.b32 ${target}, ${target}, 255",
    ]


def _float16(word: str, kind: str, target: str) -> list[str]:
    """Turn four bytes into two pairs of float16."""
    if kind in ("e4m3", "e5m2"):
        return [
            f"mov.b32 {{$low, $high}}, {word}",
            f"cvt.rn.f16x2.{kind}x2 ${target}0, $low",
            f"cvt.rn.f16x2.{kind}x2 ${target}1, $high",
        ]
    if kind != "e2m1":
        raise LoweringError(f"elements of the type {kind} have no replacement here")
    steps = []
    for half, selector in ((0, "0x4140"), (1, "0x4342")):
        value = f"${target}{half}"
        steps += [
            # Two bytes, each with a byte of zeros above it.
            f"prmt.b32 $part, {word}, 0, {selector}",
            # As in `block_scaled_mma`: the magnitude bits in place are the value times 2⁻¹⁴.
            f"and.b32 {value}, $part, 0x001c001c",
            f"shl.b32 {value}, {value}, 7",
            "and.b32 $sign, $part, 0x00200020",
            "shl.b32 $sign, $sign, 10",
            f"or.b32 {value}, {value}, $sign",
            f"mul.rn.f16x2 {value}, {value}, $unit",
        ]
    return steps


def _scaled(product: str, row: str, column: str, addend: str) -> list[str]:
    """Multiply by 2^(row + column − 254), or make it NaN, and add."""
    return [
        f"add.s32 $sum, {row}, {column}",
        "sub.s32 $sum, $sum, 254",
        "shr.s32 $half, $sum, 1",
        "sub.s32 $sum, $sum, $half",
        # 2⁻¹²⁷ becomes 0: below it, the result of any product is less than float32 can hold.
        *_times_power_of_two(product, "half"),
        *_times_power_of_two(product, "sum"),
        f"setp.eq.u32 $nan, {row}, 255",
        f"setp.eq.or.u32 $nan, {column}, 255, $nan",
        f"selp.f32 {product}, {_NAN}, {product}, $nan",
        f"add.rn.f32 {product}, {product}, {addend}",
    ]


def _times_power_of_two(product: str, exponent: str) -> list[str]:
    return [
        f"add.s32 ${exponent}, ${exponent}, 127",
        f"shl.b32 ${exponent}, ${exponent}, 23",
        f"mov.b32 $factor, ${exponent}",
        f"mul.rn.f32 {product}, {product}, $factor",
    ]
