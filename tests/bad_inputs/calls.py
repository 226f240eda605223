"""What the tables are made of: a call, and what its refusal must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bad_inputs.arguments import column_major, elsewhere, scale, uint8

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Accepted = tuple[str, Callable[[str], Arguments]]
"""An operator, with `.out` for that overload, and what makes arguments for a device."""


@dataclass(frozen=True)
class BadInput:
    """One refused call.

    Attributes
    ----------
    case
        Name of the test.
    operator
        Operator, with `.out` for that overload.
    build
        Makes the arguments for a device.
    fragments
        Regular expressions that the error text must contain, beside the operator's name.
    """

    case: str
    operator: str
    build: Callable[[str], Arguments]
    fragments: tuple[str, ...]


Row = tuple[str, Callable[[str], Arguments], tuple[str, ...]]
"""The attributes of a refused call beside its operator, in their order."""


def refused(operator: str, *rows: Row) -> tuple[BadInput, ...]:
    """Make the refused calls of one operator."""
    return tuple(BadInput(case, operator, build, fragments) for case, build, fragments in rows)


def call(*positional: Any, **keywords: Any) -> Callable[[str], Arguments]:
    """Build a call from values and functions of the device."""

    def build(device: str) -> Arguments:
        def resolve(value: Any) -> Any:
            return value(device) if callable(value) else value

        return (
            tuple(resolve(value) for value in positional),
            {name: resolve(value) for name, value in keywords.items()},
        )

    return build


def wrong_results(
    build: Callable[..., Callable[[str], Arguments]], rows: int, columns: int, first: str
) -> tuple[Row, ...]:
    """Make the calls whose `out` has another shape or strides, or is not where `first` is."""
    result = partial(uint8, dtype=torch.bfloat16)
    return (
        (
            "out of the wrong shape",
            build(out=result(columns, rows)),
            (
                "'out': got shape",
                rf"\[{columns}, {rows}\]",
                rf"\[{rows}, {columns}\]",
                "functional form",
            ),
        ),
        (
            "out of the wrong strides",
            build(out=column_major(rows, columns, dtype=torch.bfloat16)),
            ("'out': got shape", rf"strides \[1, {rows}\]", rf"strides \[{columns}, 1\]"),
        ),
        (
            "out elsewhere",
            build(out=elsewhere(result(rows, columns))),
            ("'out': got device (cpu|meta)", f"the device of '{first}'"),
        ),
    )


def wrong_global_scales(
    build: Callable[..., Callable[[str], Arguments]], name: str, first: str
) -> tuple[Row, ...]:
    """Make the calls whose global scale has another dtype, or is not where `first` is."""
    return (
        (
            "global scale dtype",
            build(**{name: scale(dtype=torch.bfloat16)}),
            (f"'{name}'", "bfloat16", "float32"),
        ),
        (
            "global scale elsewhere",
            build(**{name: elsewhere(scale())}),
            (f"'{name}'", "device (cpu|meta)", f"the device of '{first}'"),
        ),
    )
