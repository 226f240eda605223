"""Loads and stores of 256 bits: two of 128 bits."""

from __future__ import annotations

import re

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Instruction, vector
from aot.lowering.scope import scope

_ADDRESS = re.compile(r"\[\s*(?P<base>[\w$%]+)\s*(?:\+\s*(?P<offset>[+-]?\s*\w+))?\s*\]")


def load_256_bits(instruction: Instruction) -> str:
    """``ld.global….v8.b32 {d0, …, d7}, [a]``, and ``.v4`` of 64-bit elements.

    The halves come from +0 and +16. Where a register of the address is a target, too, the second
    load must not see what the first one wrote to it.
    """
    target, address = instruction.expect(2)
    lower, upper, opcode = _halves(instruction.opcode, target)
    base, offset = _address(address)
    if base not in vector(target, len(lower) * 2):
        return " ".join(
            f"{instruction.guard}{opcode} {{{', '.join(part)}}}, [{base}+{offset + move}];"
            for part, move in ((lower, 0), (upper, 16))
        )
    return scope(
        {".b64": "base"},
        [
            f"mov.b64 $base, {base}",
            *(
                f"{instruction.guard}{opcode} {{{', '.join(part)}}}, [$base+{offset + move}]"
                for part, move in ((lower, 0), (upper, 16))
            ),
        ],
    )


def store_256_bits(instruction: Instruction) -> str:
    """``st.global….v8.b32 [a], {s0, …, s7}``, and ``.v4`` of 64-bit elements: to +0 and +16."""
    address, source = instruction.expect(2)
    lower, upper, opcode = _halves(instruction.opcode, source)
    base, offset = _address(address)
    return " ".join(
        f"{instruction.guard}{opcode} [{base}+{offset + move}], {{{', '.join(part)}}};"
        for part, move in ((lower, 0), (upper, 16))
    )


def _halves(opcode: str, operand: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Split the vector, and name the instruction for half as many elements."""
    count = 8 if ".v8." in opcode else 4
    elements = vector(operand, count)
    half = count // 2
    return elements[:half], elements[half:], opcode.replace(f".v{count}.", f".v{half}.")


def _address(operand: str) -> tuple[str, int]:
    """Split ``[base+offset]``; nvcc writes a negative offset as ``[base+-16]``."""
    match = _ADDRESS.fullmatch(operand)
    if match is None:
        raise LoweringError(f"the address {operand} is not of the form [register+number]")
    return match["base"], int((match["offset"] or "0").replace(" ", ""), 0)
