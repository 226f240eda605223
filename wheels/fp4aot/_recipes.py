"""Recipes of NVFP4 quantization: the standard one, and 4-over-6.

The standard recipe scales each block so that its largest magnitude becomes 6, the end of E2M1. The
4-over-6 recipe also tries the scale that makes it 4, where E2M1 is denser, and keeps whichever of
the two has the smaller error.

A recipe reaches the operators as FlashInfer's integer code: 0 for the standard recipe, else bit 0
set, bit 1 for `e4m3_max == 256`, bits 2 and 3 for the error mode, bit 4 for `err_use_fast_math`.
FlashInfer's code -1 (read environment variables) does not exist here: what a call computes follows
from its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

STANDARD = 0
"""Code of the standard recipe."""


class NVFP44Over6ErrMode(IntEnum):
    """Error by which the 4-over-6 recipe chooses a block's scale, with FlashInfer's values.

    Attributes
    ----------
    MAE
        Sum of absolute errors.
    MSE
        Sum of squared errors.
    """

    MAE = 0
    MSE = 1


@dataclass(frozen=True)
class NVFP44Over6Config:
    """The 4-over-6 recipe of NVFP4.

    Attributes
    ----------
    e4m3_max
        Largest block scale that the global scale leaves room for: 448 or 256. With 256, the scale
        for 4 is 384 at most and never saturates. The global scale that belongs to it is
        `e4m3_max * 6 / tensor.abs().max()`.
    err_mode
        An `NVFP44Over6ErrMode`, or its name.
    err_use_fast_math
        Whether the error is that of values times the global scale, which takes fewer operations,
        instead of that of restored values. Only the rounding of the errors differs.

    Raises
    ------
    ValueError
        A field has another value.
    """

    e4m3_max: int = 448
    err_mode: NVFP44Over6ErrMode = NVFP44Over6ErrMode.MAE
    err_use_fast_math: bool = False

    def __post_init__(self) -> None:
        mode = self.err_mode
        if isinstance(mode, str):
            mode = NVFP44Over6ErrMode.__members__.get(mode.upper(), mode)
        _check_fields("NVFP44Over6Config", self.e4m3_max, mode, self.err_use_fast_math)
        # A frozen dataclass has no other way to normalize a field.
        object.__setattr__(self, "err_mode", NVFP44Over6ErrMode(mode))


def nvfp4_4over6_code(config: NVFP44Over6Config | None) -> int:
    """Return the code of a recipe, as the operators take it.

    Parameters
    ----------
    config
        An `NVFP44Over6Config`, an object with the same three attributes (such as FlashInfer's own),
        or None for the standard recipe.

    Raises
    ------
    TypeError
        `config` is something else.
    ValueError
        One of the attributes has a value that no recipe has.
    """
    return recipe_code("nvfp4_4over6_code", "config", config)


def recipe_code(function: str, argument: str, config: NVFP44Over6Config | None) -> int:
    """Do what `nvfp4_4over6_code` does, with errors that name a function and its argument."""
    if config is None:
        return STANDARD
    # FlashInfer's class has these attributes too, and its users pass it: any class will do.
    e4m3_max = getattr(config, "e4m3_max", None)
    err_mode = getattr(config, "err_mode", None)
    err_use_fast_math = getattr(config, "err_use_fast_math", None)
    if e4m3_max is None or err_mode is None or err_use_fast_math is None:
        raise TypeError(
            f"fp4aot.{function}: {argument} is of type {type(config).__name__}; pass an "
            "NVFP44Over6Config, or None for the standard recipe"
        )
    _check_fields(function, e4m3_max, err_mode, err_use_fast_math)
    return 1 | int(e4m3_max == 256) << 1 | int(err_mode) << 2 | int(err_use_fast_math) << 4


def is_recipe_code(code: int) -> bool:
    """Say whether an integer is the code of a recipe."""
    return code in (STANDARD, *_CODES)


def nvfp4_4over6_from_code(code: int) -> NVFP44Over6Config | None:
    """Undo `nvfp4_4over6_code`.

    Raises
    ------
    ValueError
        No recipe has this code. FlashInfer's -1, by which it reads the environment, is none.
    """
    if not is_recipe_code(code):
        raise ValueError(
            f"fp4aot.nvfp4_4over6_from_code: code={code}; pass what nvfp4_4over6_code returns"
        )
    if code == STANDARD:
        return None
    return NVFP44Over6Config(
        e4m3_max=256 if code & 0b10 else 448,
        err_mode=NVFP44Over6ErrMode(code >> 2 & 0b11),
        err_use_fast_math=bool(code >> 4),
    )


def nvfp4_e4m3_max(config: NVFP44Over6Config | None = None) -> float:
    """Return the largest block scale that a recipe plans for: 448, or the recipe's `e4m3_max`.

    Global scales are made of it: `nvfp4_e4m3_max(config) * 6 / tensor.abs().max()`.
    """
    return 448.0 if config is None else float(config.e4m3_max)


def _check_fields(
    function: str, e4m3_max: object, err_mode: object, err_use_fast_math: object
) -> None:
    if e4m3_max not in (448, 256):
        raise ValueError(f"fp4aot.{function}: e4m3_max={e4m3_max!r}; pass 448 or 256")
    if err_mode not in (0, 1):
        raise ValueError(
            f"fp4aot.{function}: err_mode={err_mode!r}; pass NVFP44Over6ErrMode.MAE or "
            "NVFP44Over6ErrMode.MSE"
        )
    if err_use_fast_math not in (False, True):
        raise ValueError(
            f"fp4aot.{function}: err_use_fast_math={err_use_fast_math!r}; pass True or False"
        )


_CODES = tuple(
    recipe_code("", "", NVFP44Over6Config(e4m3_max, err_mode, err_use_fast_math))
    for err_use_fast_math in (False, True)
    for err_mode in NVFP44Over6ErrMode
    for e4m3_max in (448, 256)
)
