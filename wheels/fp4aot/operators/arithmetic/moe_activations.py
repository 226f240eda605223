"""The activations of a mixture of experts, in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch.nn import functional

from fp4aot._activations import ActivationType
from fp4aot.operators.mixture_of_experts_arguments import MoeArguments


class _Parameters(NamedTuple):
    """An expert's parameters, `[]` tensors or what FlashInfer computes without them."""

    alpha: torch.Tensor | float
    beta: torch.Tensor | float
    limit: torch.Tensor | float


def apply(arguments: MoeArguments, expert: int, hidden: torch.Tensor) -> torch.Tensor:
    """Apply the activation to an expert's rows.

    Parameters
    ----------
    arguments
        Where the activation and its parameters are.
    expert
        The expert.
    hidden
        float32 `[rows, I]`, or `[rows, 2 I]`, up values before gate values, for a gated activation.

    Returns
    -------
    torch.Tensor
        float32 `[rows, I]`.
    """
    activation = _effective(arguments)
    if not activation.is_gated:
        return _PLAIN[activation](hidden)
    up, gate = hidden.chunk(2, dim=1)
    if activation in _OF_GATE:
        return _OF_GATE[activation](gate) * up
    return _WITH_PARAMETERS[activation](gate, up, _parameters(arguments, activation, expert))


def _effective(arguments: MoeArguments) -> ActivationType:
    activation = ActivationType(arguments.activation_type)
    parameters = (arguments.swiglu_alpha, arguments.swiglu_beta, arguments.swiglu_limit)
    if activation is ActivationType.Swiglu and any(p is not None for p in parameters):
        return ActivationType.SwigluBias
    return activation


def _parameters(arguments: MoeArguments, activation: ActivationType, expert: int) -> _Parameters:
    def of_expert(parameter: torch.Tensor | None, default: float) -> torch.Tensor | float:
        return default if parameter is None else parameter[expert]

    limit = 7.0 if activation is ActivationType.SwigluStep else float("inf")
    return _Parameters(
        of_expert(arguments.swiglu_alpha, 1.0),
        of_expert(arguments.swiglu_beta, 0.0),
        of_expert(arguments.swiglu_limit, limit),
    )


def _silu(values: torch.Tensor) -> torch.Tensor:
    return values * values.sigmoid()


def _gelu_tanh(values: torch.Tensor) -> torch.Tensor:
    return functional.gelu(values, approximate="tanh")


def _relu_squared(values: torch.Tensor) -> torch.Tensor:
    return values.relu().square()


def _swiglu_bias(gate: torch.Tensor, up: torch.Tensor, parameters: _Parameters) -> torch.Tensor:
    gate = _at_most(gate, parameters.limit)
    up = _within(up, parameters.limit)
    return gate * (gate * parameters.alpha).sigmoid() * (up + parameters.beta)


def _swiglu_step(gate: torch.Tensor, up: torch.Tensor, parameters: _Parameters) -> torch.Tensor:
    return _at_most(_silu(gate), parameters.limit) * _within(up, parameters.limit)


def _at_most(values: torch.Tensor, limit: torch.Tensor | float) -> torch.Tensor:
    # As on the GPU, the smaller of NaN and a number is the number.
    return torch.fmin(values, torch.as_tensor(limit, dtype=torch.float32))


def _within(values: torch.Tensor, limit: torch.Tensor | float) -> torch.Tensor:
    return torch.fmax(_at_most(values, limit), -torch.as_tensor(limit, dtype=torch.float32))


_Function = Callable[[torch.Tensor], torch.Tensor]
_Gated = Callable[[torch.Tensor, torch.Tensor, _Parameters], torch.Tensor]

_PLAIN: Final[Mapping[ActivationType, _Function]] = MappingProxyType(
    {
        ActivationType.Gelu: functional.gelu,
        ActivationType.Relu: torch.relu,
        ActivationType.Silu: _silu,
        ActivationType.Relu2: _relu_squared,
        ActivationType.Identity: torch.Tensor.clone,
    }
)
_OF_GATE: Final[Mapping[ActivationType, _Function]] = MappingProxyType(
    {
        ActivationType.Swiglu: _silu,
        ActivationType.Geglu: functional.gelu,
        ActivationType.GegluTanh: _gelu_tanh,
    }
)
_WITH_PARAMETERS: Final[Mapping[ActivationType, _Gated]] = MappingProxyType(
    {ActivationType.SwigluBias: _swiglu_bias, ActivationType.SwigluStep: _swiglu_step}
)
