"""Maximum and minimum of float32 over a warp."""

from __future__ import annotations

from aot.lowering.ptx import Instruction
from aot.lowering.scope import scope

_LOWEST, _HIGHEST = 0x80000000, 0x7FFFFFFF
_CANONICAL_NAN = 0x7FFFFFFF


def redux_f32(instruction: Instruction) -> str:
    """``redux.sync.{max,min}{.abs}{.NaN}.f32 d, a, mask``: over the lanes of the mask.

    With ``.abs`` of the magnitudes. NaN is left out, and the result is NaN only where every lane
    has one; with ``.NaN``, where any lane has one. That NaN is 0x7fffffff. -0 is below +0.

    A float32's bits, the lower 31 inverted where it is negative, order as signed integers as the
    values do. The reduction runs over those keys, in which NaN is the integer that never wins, or
    with ``.NaN`` the one that always does: both are keys of bit patterns that are NaN.
    """
    target, source, mask = instruction.expect(3)
    modifiers = instruction.opcode.split(".")
    operation = "max" if "max" in modifiers else "min"
    never_wins = _LOWEST if operation == "max" else _HIGHEST
    always_wins = _HIGHEST if operation == "max" else _LOWEST
    nan_key = always_wins if "NaN" in modifiers else never_wins
    invert = ["shr.s32 $flip, $key, 31", "and.b32 $flip, $flip, 0x7fffffff"]
    invert += ["xor.b32 $key, $key, $flip"]
    return scope(
        {".b32": "key flip", ".f32": "value", ".pred": "nan"},
        [
            f"mov.f32 $value, {source}",
            "setp.nan.f32 $nan, $value, $value",
            *(["abs.f32 $value, $value"] if "abs" in modifiers else []),
            "mov.b32 $key, $value",
            *invert,
            f"selp.b32 $key, {nan_key:#x}, $key, $nan",
            f"{instruction.guard}redux.sync.{operation}.s32 $key, $key, {mask}",
            *invert,
            "mov.b32 $value, $key",
            "setp.nan.f32 $nan, $value, $value",
            f"selp.b32 $key, {_CANONICAL_NAN:#x}, $key, $nan",
            f"{instruction.guard}mov.b32 {target}, $key",
        ],
    )
