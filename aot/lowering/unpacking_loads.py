"""Loads from shared memory that spread 4-bit elements over bytes.

On Blackwell, a tensor map of the type ``16U4_ALIGN16B`` copies 16 elements, 8 bytes, to every 16
bytes of shared memory, and ``ldmatrix`` with ``b8x16.b4x16_p64`` unpacks them. Hopper's copies
leave no such gaps. ``tensor_map.cpp`` lets a row of 128 elements, 64 bytes, arrive without them, at
the beginning of its 128 bytes: the swizzle of 128 bytes is as wide as that, however short the row.
So what a kernel expects in the 16 bytes number c of a row is in half c % 2 of number c / 2.
"""

from __future__ import annotations

import re

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Instruction, vector
from aot.lowering.scope import scope

_OPCODE = re.compile(
    r"ldmatrix\.sync\.aligned\.m8n16\.x(?P<count>[124])\.(?P<space>shared(::cta)?)"
    r"\.b8x16\.b4x16_p64"
)
_ADDRESS = re.compile(r"\[\s*(?P<base>[\w$%]+)\s*(?:\+\s*(?P<offset>-?\w+))?\s*\]")


def ldmatrix_b4x16_p64(instruction: Instruction) -> str:
    """``ldmatrix.sync.aligned.m8n16.x{1,2,4}.shared.b8x16.b4x16_p64``.

    Eight rows of 16 elements a matrix, their addresses from the lanes 8i to 8i+7 for matrix i. Lane
    4g+t gets elements 4t to 4t+3 of row g, each in the low half of a byte.

    With r a row's number within the swizzle's eight, the address that a kernel computes has the
    bits ``c ^ r`` at 4 to 6 and r at 7 to 9. From it follow c, and where those elements are. An
    ordinary ``ldmatrix`` gets them, and the lane that needs two of the bytes takes them from the
    lane of its quad that got them.
    """
    match = _OPCODE.fullmatch(instruction.opcode)
    target, source = instruction.expect(2)
    address = _ADDRESS.fullmatch(source)
    if match is None or address is None:
        raise LoweringError(f"{instruction.opcode} {source} has a form that is not known")
    count = int(match["count"])
    guard = instruction.guard
    words = ", ".join(f"$w{i}" for i in range(count))
    steps = [
        f"add.s32 $at, {address['base']}, {address['offset'] or 0}",
        "shr.u32 $row, $at, 7",
        "and.b32 $row, $row, 7",
        "shr.u32 $piece, $at, 4",
        "xor.b32 $piece, $piece, $row",
        "and.b32 $odd, $piece, 1",
        "and.b32 $piece, $piece, 7",
        "shr.u32 $piece, $piece, 1",
        "xor.b32 $piece, $piece, $row",
        "shl.b32 $piece, $piece, 4",
        f"and.b32 $at, $at, {0xFFFFFFFF & ~0x70:#x}",
        "or.b32 $at, $at, $piece",
        f"{guard}ldmatrix.sync.aligned.m8n8.x{count}.{match['space']}.b16 {{{words}}}, [$at]",
        "mov.u32 $lane, %laneid",
        "and.b32 $quad, $lane, 28",
        "shr.u32 $pair, $lane, 1",
        "and.b32 $pair, $pair, 1",
        "add.u32 $quad, $quad, $pair",
        "and.b32 $shift, $lane, 1",
        "shl.b32 $shift, $shift, 4",
        "shr.u32 $lane, $lane, 2",
    ]
    for i, element in enumerate(vector(target, count)):
        steps += [
            # In which half this lane's row is: the lane that gave its address knows.
            f"{guard}shfl.sync.idx.b32 $from, $odd, $lane, 31, 0xffffffff",
            "shl.b32 $from, $from, 1",
            "add.u32 $from, $from, $quad",
            f"{guard}shfl.sync.idx.b32 $got, $w{i}, $from, 31, 0xffffffff",
            "shr.u32 $got, $got, $shift",
            *_spread("got"),
            f"{guard}mov.b32 {element}, $got",
            "add.u32 $lane, $lane, 8",
        ]
    every = " ".join(f"w{i}" for i in range(count))
    return scope({".b32": f"at row piece odd lane quad pair shift from got part {every}"}, steps)


def _spread(word: str) -> list[str]:
    """Put the four lowest nibbles of a register into its four bytes."""
    return [
        f"and.b32 $part, ${word}, 0xff00",
        "shl.b32 $part, $part, 8",
        f"and.b32 ${word}, ${word}, 0xff",
        f"or.b32 ${word}, ${word}, $part",
        f"shl.b32 $part, ${word}, 4",
        f"or.b32 ${word}, ${word}, $part",
        f"and.b32 ${word}, ${word}, 0x0f0f0f0f",
    ]
