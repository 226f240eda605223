"""Whether a function is FlashInfer's own, and has the parameters that an operator needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fp4aot.integrations._flashinfer.call import REQUIRED, Route


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


def difference(original: Callable[..., Any], route: Route) -> str:
    """Say why calls of a function cannot be taken by name; empty when they can.

    Parameters
    ----------
    original
        FlashInfer's function.
    route
        What is to take its calls.
    """
    theirs = inspect.signature(original).parameters
    for name, parameter in theirs.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return f"it takes {name} by position alone"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"it takes *{name}"
    for name, default in route.defaults().items():
        if name not in theirs and default is REQUIRED:
            return f"it has no parameter {name}"
    return ""
