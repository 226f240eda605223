"""The FP4 tensor core instruction with block scales, by float16 tensor core instructions."""

from __future__ import annotations

import re

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Instruction, vector
from aot.lowering.scope import scope, widen

_NUMBER = re.compile(r"\d+")
_PAIRS = range(4)  # of float16 in the eight nibbles of a register


def nvfp4_m16n8k64(instruction: Instruction) -> str:
    """``mma.sync.aligned…kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64…ue4m3``.

    ``d = (A·scales) × (B·scales) + c`` with E2M1 elements, a UE4M3 scale for each 16 of them along
    k, and a float32 accumulator. Operands: d, a (4 registers), b (2), c, scale of A, {byte, thread}
    of A's scales, scale of B, {byte, thread} of B's.

    Elements: with g = lane / 4 and t = lane % 4, register a0 holds row g, k = 8t…8t+7, a1 row g+8,
    a2 and a3 the same at k+32; b0 and b1 hold column g at the same k.

    Scales: four of them are in one register, for k = 0…15, 16…31, 32…47, 48…63. Those of row g are
    in lane 2·thread of the quad, those of row g+8 in lane 2·thread+1, those of column g in lane
    `thread`. The byte number is 0 where all four bytes are used. So a0, a1 and b0 take byte t / 2,
    and a2, a3 and b1 take byte t / 2 + 2. The top bit of a scale is not used.

    An element has 2 significant bits and a scale has 4, so their product is exact in float16, and
    the products of two such are exact in the tensor core. Sixteen values of k at a time go through
    ``m16n8k16``; which ones does not matter, as long as A and B agree. The tensor core adds in an
    order of its own, as Blackwell's does: sums may differ in their last bits.
    """
    if len(instruction.operands) != 8:
        raise LoweringError(f"{instruction.opcode} has not 8 operands; what has changed?")
    d, a, b, c, scale_a, place_a, scale_b, place_b = instruction.operands
    (byte_a, thread_a), (byte_b, thread_b) = vector(place_a, 2), vector(place_b, 2)
    for byte in (byte_a, byte_b):
        if _NUMBER.fullmatch(byte) and int(byte) != 0:
            raise LoweringError(f"{instruction.opcode} uses all four scales, but starts at {byte}")
    guard = instruction.guard
    steps = [
        "mov.u32 $lane, %laneid",
        "and.b32 $quad, $lane, 28",
        "shl.b32 $shift, $lane, 2",
        "and.b32 $shift, $shift, 8",
        widen(thread_a, "$thread"),
        "shl.b32 $thread, $thread, 1",
        "add.u32 $thread, $thread, $quad",
        f"{guard}shfl.sync.idx.b32 $sa, {vector(scale_a, 1)[0]}, $thread, 31, 0xffffffff",
        *_scales("sa", "s0", "s2"),
        "add.u32 $thread, $thread, 1",
        f"{guard}shfl.sync.idx.b32 $sa, {vector(scale_a, 1)[0]}, $thread, 31, 0xffffffff",
        *_scales("sa", "s1", "s3"),
        widen(thread_b, "$thread"),
        "add.u32 $thread, $thread, $quad",
        f"{guard}shfl.sync.idx.b32 $sa, {vector(scale_b, 1)[0]}, $thread, 31, 0xffffffff",
        *_scales("sa", "s4", "s5"),
        "mov.b32 $unit, 0x74007400",  # 2¹⁴ twice
    ]
    for index, word in enumerate((*vector(a, 4), *vector(b, 2))):
        steps += _scaled(word, f"s{index}", f"v{index}_")
    accumulator = ", ".join(f"$c{i}" for i in range(4))
    steps += [f"mov.f32 $c{i}, {element}" for i, element in enumerate(vector(c, 4))]
    for row, row_8, column in (("v0_", "v1_", "v4_"), ("v2_", "v3_", "v5_")):
        for pair in (0, 2):
            rows = ", ".join(f"${r}{p}" for p in (pair, pair + 1) for r in (row, row_8))
            columns = ", ".join(f"${column}{p}" for p in (pair, pair + 1))
            steps.append(
                f"{guard}mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                f"{{{accumulator}}}, {{{rows}}}, {{{columns}}}, {{{accumulator}}}"
            )
    steps += [f"{guard}mov.f32 {element}, $c{i}" for i, element in enumerate(vector(d, 4))]
    scaled = " ".join(f"v{word}_{pair}" for word in range(6) for pair in _PAIRS)
    return scope(
        {
            ".b32": f"lane quad shift thread sa part sign unit s0 s1 s2 s3 s4 s5 {scaled}",
            ".b16": "low high",
            ".f32": "c0 c1 c2 c3",
        },
        steps,
    )


def _scales(packed: str, lower: str, upper: str) -> list[str]:
    """Turn this lane's two of four scales into float16, each twice in a register."""
    return [
        f"shr.u32 ${packed}, ${packed}, $shift",
        f"and.b32 ${packed}, ${packed}, 0x007f007f",
        f"prmt.b32 ${packed}, ${packed}, 0, 0x2200",
        f"mov.b32 {{$low, $high}}, ${packed}",
        # Hopper converts from signed E4M3, which is UE4M3 where the top bit is 0.
        f"cvt.rn.f16x2.e4m3x2 ${lower}, $low",
        f"cvt.rn.f16x2.e4m3x2 ${upper}, $high",
    ]


def _scaled(word: str, scale: str, target: str) -> list[str]:
    """Turn eight E2M1 into four pairs of scaled float16; pair i holds nibbles i and i + 4.

    As in `conversions.f16x2_from_e2m1x2`: the magnitude bits in place are the value times 2⁻¹⁴.
    """
    steps = []
    for pair in _PAIRS:
        value = f"${target}{pair}"
        steps += [
            f"shr.u32 $part, {word}, {4 * pair}",
            f"and.b32 {value}, $part, 0x00070007",
            f"shl.b32 {value}, {value}, 9",
            "and.b32 $sign, $part, 0x00080008",
            "shl.b32 $sign, $sign, 12",
            f"or.b32 {value}, {value}, $sign",
            f"mul.rn.f16x2 {value}, {value}, $unit",
            f"mul.rn.f16x2 {value}, {value}, ${scale}",
        ]
    return steps
