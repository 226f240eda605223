"""Putting `NVFP4Linear` into a model: calibration, and replacing its linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fp4aot.nn.linear import NVFP4Linear
from fp4aot.nn.ranges import MULTIPLE, amax_of


@contextmanager
def record_input_amax(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Record the largest magnitude of each linear layer's inputs while sample inputs run.

    Parameters
    ----------
    model
        Run it on sample inputs, uncompiled, inside the `with` block.

    Yields
    ------
    dict
        float32 scalars by the layers' names. Without layers that did not run, and those whose sizes
        NVFP4 cannot take (multiples of 32).

    Examples
    --------
    >>> with record_input_amax(model) as amax:
    ...     model(sample)
    >>> replace_linears(model, amax)
    """
    amax: dict[str, torch.Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and _fits(module):
            handles.append(
                module.register_forward_pre_hook(_recorder(name, amax), with_kwargs=True)
            )
    try:
        yield amax
    finally:
        for handle in handles:
            handle.remove()


def replace_linears(model: torch.nn.Module, input_amax: Mapping[str, float | torch.Tensor]) -> None:
    """Replace linear layers of a model by `NVFP4Linear`, in place.

    Parameters
    ----------
    model
        Contains the layers; it cannot be one itself.
    input_amax
        Largest input magnitude by layer name, as `record_input_amax` gives it. Only these layers
        are replaced: remove what should stay as it is (often `lm_head`).

    Raises
    ------
    ValueError
        A name is not that of a linear layer in the model, or its sizes are not multiples of 32.
    """
    linears = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if name and isinstance(module, torch.nn.Linear)
    }
    if unknown := [name for name in input_amax if name not in linears]:
        raise ValueError(
            f"fp4aot.nn.replace_linears: not a torch.nn.Linear inside the model: {unknown}; pass "
            "names as model.named_modules() gives them"
        )
    replacements: dict[torch.nn.Module, NVFP4Linear] = {
        linears[name]: NVFP4Linear.from_linear(linears[name], amax)
        for name, amax in input_amax.items()
    }
    # Everywhere it occurs: several parents may share a layer.
    for parent in list(model.modules()):
        for child_name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[child_name] = replacements[child]


def _recorder(
    name: str, amax: dict[str, torch.Tensor]
) -> Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def record(_: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        seen = amax_of((arguments[0] if arguments else keywords["input"]).detach())
        amax[name] = torch.maximum(amax[name], seen) if name in amax else seen

    return record


def _fits(linear: torch.nn.Linear) -> bool:
    return linear.in_features % MULTIPLE == 0 and linear.out_features % MULTIPLE == 0
