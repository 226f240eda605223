"""What a replacement knows: the function that it replaces, and what was asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fp4aot import _recipes

Function = Callable[..., Any]


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


@dataclass(frozen=True)
class Original:
    """The function of FlashInfer's that is replaced.

    Parameters
    ----------
    function
        It.
    names
        Its parameters.
    backend
        Its default backend; "cuda" where it has none.
    """

    function: Function
    names: tuple[str, ...]
    backend: str

    @classmethod
    def of(cls, function: Function) -> Original:
        """Describe a function."""
        parameters = inspect.signature(function).parameters
        backend = parameters["backend"].default if "backend" in parameters else "cuda"
        return cls(function, tuple(parameters), backend)


def forwarder(original: Original) -> Function:
    """Make what calls the original with those of its arguments that this FlashInfer has."""
    function = original.function
    names = original.names

    def forward(more: Mapping[str, Any], **arguments: Any) -> Any:
        known = {name: value for name, value in arguments.items() if name in names}
        return function(**known, **more)

    return forward


def asks_for_more(more: Mapping[str, Any]) -> bool:
    """Tell whether keywords that only FlashInfer knows ask for something.

    `skip_check` turns off FlashInfer's checks, which do not run here.
    """
    for name, value in more.items():
        if name != "skip_check" and value is not None and value is not False:
            return True
    return False
