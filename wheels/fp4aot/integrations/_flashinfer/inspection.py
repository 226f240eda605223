"""Whether a function is FlashInfer's own, and takes what its replacement takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

# Defaults that differ between versions, and that the replacement takes from the original.
_TAKEN_OVER = ("backend", "nvfp4_4over6")


def owner(function: Any) -> str:
    """Return the name of the module whose code runs when a function is called.

    A wrapper that somebody made with `functools.wraps` says that it is the function it wraps, so
    its code is asked.
    """
    while not hasattr(function, "__globals__") and hasattr(function, "__wrapped__"):
        # A `functools.cache` object has no code of its own.
        function = function.__wrapped__
    code_globals = getattr(function, "__globals__", None)
    if code_globals is None:
        return str(getattr(function, "__module__", None) or type(function).__module__)
    return str(code_globals.get("__name__", "somewhere unknown"))


def is_flashinfers(function: Any) -> bool:
    """Tell whether FlashInfer's code runs when a function is called."""
    return owner(function).split(".")[0] == "flashinfer"


def difference(
    original: Callable[..., Any], replacement: Callable[..., Any], keywords: tuple[str, ...]
) -> str:
    """Say how an original's parameters differ from what its replacement takes.

    Empty when all calls of the original are calls of the replacement: the original has the same
    parameters with the same defaults, or the first of them, the others perhaps as keywords.

    Parameters
    ----------
    original, replacement
        The functions.
    keywords
        Keyword-only parameters of the original that the replacement hands on.
    """
    theirs = inspect.signature(original).parameters
    ours = {
        name: parameter
        for name, parameter in inspect.signature(replacement).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    positional = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for position, (name, expected) in enumerate(zip(positional, ours, strict=False)):
        if name != expected:
            return f"parameter {position} is {name}, not {expected}"
    if len(positional) > len(ours):
        return f"it has a parameter {positional[len(ours)]}"
    for name, parameter in theirs.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"it takes *{name}"
        if name in ours:
            if name not in _TAKEN_OVER and not _same(parameter.default, ours[name].default):
                return f"the default of {name} is {parameter.default!r}"
        elif name not in keywords:
            return f"it has a parameter {name}"
    for name, parameter in ours.items():
        if name not in theirs and parameter.default is parameter.empty:
            return f"it has no parameter {name}"
    return ""


def _same(left: Any, right: Any) -> bool:
    # Enumerations of integers are equal to their numbers, and True to 1: the kind counts too.
    return bool(
        left is right or (isinstance(left, bool) == isinstance(right, bool) and left == right)
    )
