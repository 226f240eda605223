"""Writing a replacement: one scope on one line, with registers of its own.

A scope's registers hide those of the same name around it, so the names need a prefix only against
the operands of the instruction that is replaced. Everything stays on one line, so that the line
numbers in the assembler's messages are those of the PTX before lowering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "fp4aot_"
"""What every register of a replacement begins with."""

_NUMBER = re.compile(r"\d+")


def scope(registers: Mapping[str, str], instructions: Iterable[str]) -> str:
    """Return a scope.

    Parameters
    ----------
    registers
        Names by type, such as ``{".b32": "a b"}``; `instructions` write them as ``$a``, ``$b``.
    instructions
        Without their semicolons.
    """
    names = [name for group in registers.values() for name in group.split()]
    declared = " ".join(
        f".reg {kind} {', '.join(f'${name}' for name in group.split())};"
        for kind, group in registers.items()
    )
    body = " ".join(f"{instruction};" for instruction in instructions)
    written = re.compile(rf"\$({'|'.join(names)})\b")
    return written.sub(rf"{PREFIX}\1", f"{{ {declared} {body} }}")


def widen(operand: str, register: str) -> str:
    """Return what puts an operand, a 16-bit register or a constant, into a 32-bit register."""
    if _NUMBER.fullmatch(operand):
        return f"mov.b32 {register}, {operand}"
    return f"cvt.u32.u16 {register}, {operand}"
