"""Runs lowered scalar PTX on the CPU: the handful of instructions that the replacements consist of.

Registers are strings to bit patterns; their types decide nothing, the instructions' do. Each lane
runs alone, so that what crosses lanes is not covered: that is checked on the GPU.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable

MASK = 0xFFFFFFFF


def to_float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def to_bits(value: float) -> int:
    """Round to float32, to nearest even."""
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 | (math.copysign(1, value) < 0) << 31


def half_to_float(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def float_to_half(value: float) -> int:
    return struct.unpack("<H", struct.pack("<e", value))[0]


def signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "nan": lambda a, b: math.isnan(a) or math.isnan(b),
}


class Machine:
    """The registers of one lane.

    Parameters
    ----------
    registers
        What the operands of the instruction hold before.
    """

    def __init__(self, **registers: int) -> None:
        self.registers = dict(registers)

    def run(self, text: str) -> Machine:
        """Run statements of the form that `aot.lowering.scope` writes."""
        for statement in (part.strip(" {}\n") for part in text.split(";")):
            if statement and not statement.startswith(".reg"):
                self.step(statement)
        return self

    def step(self, statement: str) -> None:
        guard = re.match(r"@(!?)(\w+)\s+(.*)", statement)
        if guard:
            if bool(self.registers[guard[2]]) == bool(guard[1]):
                return
            statement = guard[3]
        opcode, _, rest = statement.partition(" ")
        target, *sources = (operand.strip() for operand in rest.split(","))
        self.registers[target] = self.result(opcode.split("."), [self.value(s) for s in sources])

    def value(self, operand: str) -> int:
        if operand in self.registers:
            return self.registers[operand]
        if operand.startswith("0f"):
            return int(operand[2:], 16)
        return int(operand, 0) & MASK

    def result(self, opcode: list[str], v: list[int]) -> int:
        name, kind = opcode[0], opcode[-1]
        read = {"f32": to_float, "s32": signed}.get(kind, int)
        match name:
            case "mov":
                return v[0]
            case "and":
                return v[0] & v[1]
            case "or":
                return v[0] | v[1]
            case "xor":
                return v[0] ^ v[1]
            case "add":
                return (v[0] + v[1]) & MASK
            case "sub":
                return (v[0] - v[1]) & MASK
            case "min":
                return min(v[0], v[1])
            case "shl":
                return v[0] << v[1] & MASK
            case "shr":
                return read(v[0]) >> v[1] & MASK
            case "abs":
                return v[0] & 0x7FFFFFFF
            case "selp":
                return v[0] if v[2] else v[1]
            case "setp" if opcode[2] == "or":
                return int(_COMPARE[opcode[1]](read(v[0]), read(v[1])) or bool(v[2]))
            case "setp":
                return int(_COMPARE[opcode[1]](read(v[0]), read(v[1])))
            case "prmt":
                pair = v[1] << 32 | v[0]
                picks = [v[2] >> 4 * i & 7 for i in range(4)]
                return sum((pair >> 8 * pick & 0xFF) << 8 * i for i, pick in enumerate(picks))
            case "mul" if kind == "f32":
                return to_bits(to_float(v[0]) * to_float(v[1]))
            case "set":
                return MASK if _COMPARE[opcode[1]](read(v[0]), read(v[1])) else 0
            case "cvt":
                return v[0] & {"u8": 0xFF, "u16": 0xFFFF}.get(opcode[1], 0xFFFFFFFF)
            case "mul" if kind == "f16x2":
                low, high = (
                    float_to_half(
                        half_to_float(v[0] >> s & 0xFFFF) * half_to_float(v[1] >> s & 0xFFFF)
                    )
                    for s in (0, 16)
                )
                return high << 16 | low
        raise AssertionError(f"the interpreter does not know {'.'.join(opcode)}")
