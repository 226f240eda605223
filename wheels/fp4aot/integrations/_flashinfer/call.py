"""How a call of one of FlashInfer's functions goes to an operator, or on to FlashInfer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fp4aot import _recipes

Function = Callable[..., Any]

REQUIRED = inspect.Parameter.empty
"""In the place of a default: there is none."""


@dataclass(frozen=True)
class Context:
    """What is the same for all replacements.

    Parameters
    ----------
    backends
        The `backend` arguments whose calls go to the wheel.
    recipe
        The recipe of calls that pass none.
    omitted
        FlashInfer's default of `nvfp4_4over6`, by which it knows that none was passed.
    moves_to_gpu
        Whether FlashInfer could move a CPU tensor to a GPU, as `nvfp4_quantize` does.
    """

    backends: tuple[str, ...]
    recipe: _recipes.NVFP44Over6Config | None
    omitted: object
    moves_to_gpu: bool


class Route(NamedTuple):
    """How an operator answers the calls of a function.

    Parameters
    ----------
    answer
        Takes the arguments by FlashInfer's names, and returns the result, or NotImplemented for a
        call that stays FlashInfer's.
    function
        Where it is given, `answer` takes one dictionary instead, of arguments of this function,
        which it may change. Those that have the function's own defaults may be missing.
    leaves
        Parameters of `function` that the operator does not take.
    """

    answer: Function
    function: Function | None = None
    leaves: tuple[str, ...] = ()

    def defaults(self) -> dict[str, Any]:
        """Return the default of each argument that the operator takes, `REQUIRED` without one."""
        parameters = inspect.signature(self.function or self.answer).parameters
        return {n: p.default for n, p in parameters.items() if n not in self.leaves}


def all_calls(function: Function) -> Callable[[Function, Context], Route]:
    """Let a function answer all calls that pass nothing which it does not know."""
    return lambda original, context: Route(function)


def replace(original: Function, route: Route) -> Function:
    """Make the replacement of a function.

    A call binds its arguments by the original's names, in the original's order, and has the
    original's defaults. It goes to the operator if the arguments that the operator does not take
    have their defaults. If not, if the original would not accept the arguments, or if the answer is
    NotImplemented, the original is called with exactly what the caller passed.

    Parameters
    ----------
    original
        FlashInfer's function.
    route
        To the operator.
    """
    theirs = inspect.signature(original).parameters
    ours = route.defaults()
    others = {n: p.default for n, p in theirs.items() if n not in ours}
    names = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    answer, as_dictionary = route.answer, route.function is not None
    # As many positional arguments as the answer has in the same places are passed on as they are:
    # to make a dictionary of them takes longer than all the rest.
    answers = [] if as_dictionary else list(ours)
    shared = max(n for n in range(len(names) + 1) if names[:n] == answers[:n])
    after = names[shared:]
    by_name = []
    for count in range(shared + 1):
        left = {n: p.default for n, p in theirs.items() if n not in names[:count]}
        required = frozenset(n for n, default in left.items() if default is REQUIRED)
        taken = frozenset(left.keys() & ours.keys())
        defaults = {n: left[n] for n in taken - required if not is_default(left[n], ours[n])}
        by_name.append((required, taken, defaults))

    def routed(*arguments: Any, **keywords: Any) -> Any:
        count = len(arguments)
        first, named = arguments, keywords
        if count > shared:
            first = arguments[:shared]
            named = dict(zip(after, arguments[shared:], strict=False), **keywords)
            if len(named) != count - shared + len(keywords):
                # Too many arguments, or one of them twice.
                return original(*arguments, **keywords)
        required, taken, defaults = by_name[len(first)]
        if not named.keys() <= taken:
            named = dict(named)
            for name in set(named) - taken:
                value = named.pop(name)
                # `skip_check` turns off FlashInfer's checks, which do not run here.
                if name != "skip_check" and not is_default(value, others.get(name, REQUIRED)):
                    return original(*arguments, **keywords)
        if not required <= named.keys():
            return original(*arguments, **keywords)
        if defaults or as_dictionary:
            named = {**defaults, **named}
        result = answer(named) if as_dictionary else answer(*first, **named)
        return original(*arguments, **keywords) if result is NotImplemented else result

    return routed


def is_default(value: Any, default: Any) -> bool:
    """Tell whether an argument asks for what its default does; None and False ask for nothing."""
    if value is None or value is False:
        return default is None or default is False
    return value is default or (isinstance(value, (int, float, str)) and bool(value == default))
