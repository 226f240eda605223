"""Tensor maps whose elements were 4 bits wide: the first coordinate, and the first dimension.

Hopper's tensor maps have no 4-bit elements. ``tensor_map.cpp`` encodes such a map with 64-bit
elements, sixteen of the old in one, so that the coordinate along the first dimension must be
divided by sixteen; everything that counts bytes stays as it was. So it does for elements that
Blackwell unpacks on the way (``16U4_ALIGN16B``): the bytes that a kernel waits for are those of the
elements, without the gaps between them. Where they lie is another matter:
`aot.lowering.unpacking_loads`.

Which map a copy uses is only known when it runs. So each copy looks: no other map of these modules
has 64-bit elements, and ``tensor_map.cpp`` refuses to encode one. Neither the number of dimensions
nor the kernel's name has to be trusted. Where a map keeps its element type is not documented;
``tensor_map.cpp`` checks every map that it hands out against the numbers below.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from aot.lowering.errors import LoweringError
from aot.lowering.ptx import Instruction, split_operands
from aot.lowering.scope import scope

TYPE_OFFSET: Final = 8
"""Byte offset, in a tensor map, of the 32-bit word that holds the element type."""
TYPE_MASK: Final = 0x780
"""The bits of the element type in that word."""
TYPE_TAG: Final = 0x280
"""What those bits are for 64-bit integer elements."""
ELEMENTS_SHIFT: Final = 4
"""Sixteen 4-bit elements make one of 64 bits."""

TENSOR_MAP_SOURCE: Final = Path(__file__).with_name("tensor_map.cpp")
"""What encodes such maps; compile it with `compiler_flags`, and link it into the library."""
WRAPPED_FUNCTIONS: Final = ("cudaGetDriverEntryPointByVersion", "cudaGetDriverEntryPoint")
"""What ``tensor_map.cpp`` wraps; pass ``-Wl,--wrap=`` for each to the linker."""

_MAP = re.compile(r"\[\s*(?P<map>[\w$%]+)\s*,\s*\{(?P<coordinates>[^}]*)\}\s*\]")


def compiler_flags() -> tuple[str, ...]:
    """Return flags for ``tensor_map.cpp``, so that both sides look at the same place."""
    values = {"OFFSET": TYPE_OFFSET, "MASK": TYPE_MASK, "TAG": TYPE_TAG}
    return tuple(f"-DFP4AOT_TENSOR_MAP_TYPE_{name}={value:#x}u" for name, value in values.items())


def tensor_copy(instruction: Instruction) -> str:
    """``cp.async.bulk.tensor…``, ``cp.reduce…`` and ``….prefetch.tensor…`` in tiled mode.

    The same copy, with the first coordinate shifted where the map has the mark. A coordinate that
    is no multiple of sixteen cannot be expressed then, and stops the kernel.
    """
    at = [i for i, operand in enumerate(instruction.operands) if _MAP.fullmatch(operand)]
    match = _MAP.fullmatch(instruction.operands[at[0]]) if len(at) == 1 else None
    if match is None:
        raise LoweringError(
            f"{instruction.opcode} has no operand of the form [map, {{coordinates}}]"
        )
    first, *rest = split_operands(match["coordinates"])
    operands = list(instruction.operands)
    operands[at[0]] = f"[{match['map']}, {{{', '.join(['$first', *rest])}}}]"
    guard = instruction.guard
    return scope(
        {".b32": "word shift first back", ".pred": "tagged"},
        [
            # Without the mark; stays so where the guard keeps the map from being read.
            f"mov.b32 $word, {~TYPE_TAG & 0xFFFFFFFF:#x}",
            f"{guard}ld.b32 $word, [{match['map']}+{TYPE_OFFSET}]",
            f"and.b32 $word, $word, {TYPE_MASK:#x}",
            f"setp.eq.u32 $tagged, $word, {TYPE_TAG:#x}",
            f"selp.b32 $shift, {ELEMENTS_SHIFT}, 0, $tagged",
            f"shr.s32 $first, {first}, $shift",
            "shl.b32 $back, $first, $shift",
            f"setp.ne.and.s32 $tagged, $back, {first}, $tagged",
            "@$tagged trap",
            f"{guard}{instruction.opcode} {', '.join(operands)}",
        ],
    )


_FIELD = re.compile(r"tensormap\.replace\.tile\.(?P<field>\w+)\.(?P<space>[\w:]+)\.b1024\.b(32|64)")
_ADDRESS = re.compile(r"\[\s*(?P<address>[\w$%]+)\s*\]")
_UNCHANGED_FIELDS: Final = ("global_address", "global_stride", "element_stride")


def replace_field(instruction: Instruction) -> str | None:
    """``tensormap.replace.tile.*``: a kernel writes the map of its own problem.

    The first dimension of a map with the mark counts 64-bit elements: the new one is shifted, as a
    coordinate is, and must be a multiple of sixteen. The other dimensions, addresses and strides
    (in bytes) stay as they are, for which None is returned; a kernel that changes a box or an
    element type is refused.
    """
    match = _FIELD.fullmatch(instruction.opcode)
    address = _ADDRESS.fullmatch(instruction.operands[0])
    if match is None or address is None:
        raise LoweringError(f"{instruction.opcode} has a form that is not known")
    if match["field"] in _UNCHANGED_FIELDS:
        return None
    ordinal = instruction.operands[1]
    if match["field"] != "global_dim" or not re.fullmatch(r"0|0x0|[1-4]|0x[1-4]", ordinal):
        raise LoweringError(
            f"{instruction.opcode} {ordinal}: what it writes has no known counterpart in a map "
            "whose elements became wider"
        )
    if int(ordinal, 0) != 0:
        return None
    guard = instruction.guard
    value = instruction.operands[2]
    return scope(
        {".b32": "word shift size back", ".pred": "tagged"},
        [
            f"mov.b32 $word, {~TYPE_TAG & 0xFFFFFFFF:#x}",
            f"{guard}ld.{match['space']}.b32 $word, [{address['address']}+{TYPE_OFFSET}]",
            f"and.b32 $word, $word, {TYPE_MASK:#x}",
            f"setp.eq.u32 $tagged, $word, {TYPE_TAG:#x}",
            f"selp.b32 $shift, {ELEMENTS_SHIFT}, 0, $tagged",
            f"shr.u32 $size, {value}, $shift",
            "shl.b32 $back, $size, $shift",
            f"setp.ne.and.b32 $tagged, $back, {value}, $tagged",
            "@$tagged trap",
            f"{guard}{instruction.opcode} [{address['address']}], {ordinal}, $size",
        ],
    )
