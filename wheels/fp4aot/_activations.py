"""The activations of a mixture of experts, between an expert's two products."""

from __future__ import annotations

from enum import IntEnum


class ActivationType(IntEnum):
    """Activation, with FlashInfer's names and numbers.

    `Situ` and `ClampedRelu2` are not in this package; `InvalidType` is none.
    """

    Gelu = 0
    Relu = 1
    Silu = 2
    Swiglu = 3
    Geglu = 4
    SwigluBias = 5
    Relu2 = 6
    SwigluStep = 7
    GegluTanh = 8
    Identity = 9
    Situ = 10
    InvalidType = 11
    ClampedRelu2 = 12

    @property
    def is_gated(self) -> bool:
        """Whether the first product has two rows for each intermediate value: up and gate."""
        return self in _GATED


_GATED = frozenset(
    (
        ActivationType.Swiglu,
        ActivationType.Geglu,
        ActivationType.SwigluBias,
        ActivationType.SwigluStep,
        ActivationType.GegluTanh,
        ActivationType.Situ,
    )
)

COMPILED = tuple(activation for activation in ActivationType if activation < ActivationType.Situ)
"""What the kernels of this package compute."""

READING_ALPHA = (ActivationType.Swiglu, ActivationType.SwigluBias)
"""Those that read `swiglu_alpha` and `swiglu_beta`."""

READING_LIMIT = (*READING_ALPHA, ActivationType.SwigluStep)
"""Those that read `swiglu_limit`."""
