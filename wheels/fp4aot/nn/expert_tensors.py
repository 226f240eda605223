"""Where a checkpoint's expert tensors lie in the stacked ones of a mixture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fp4aot.nn import checkpoint

_KEY = re.compile(r"(\d+)\.(\w+)\.(\w+)")


@dataclass(frozen=True)
class Projection:
    """One of an expert's matrices.

    Attributes
    ----------
    names
        What checkpoints call it: that of DeepSeek, GLM and Qwen, and that of Mixtral.
    product
        1 or 2: which of the expert's two products reads it.
    part
        Which part of the product's rows it is.
    """

    names: tuple[str, ...]
    product: int
    part: int

    @property
    def name(self) -> str:
        """The name under which a module holds it."""
        return self.names[0]


# The kernels read up rows before gate rows.
_GATE = Projection(("gate_proj", "w1"), product=1, part=1)
_UP = Projection(("up_proj", "w3"), product=1, part=0)
_DOWN = Projection(("down_proj", "w2"), product=2, part=0)


def projections(is_gated: bool) -> tuple[Projection, ...]:
    """Return the matrices of an expert, in the order of checkpoints."""
    return (_GATE, _UP, _DOWN) if is_gated else (_UP, _DOWN)


@dataclass(frozen=True)
class Place:
    """What a checkpoint's tensor is, by its name.

    Attributes
    ----------
    expert
        Among those of all ranks.
    projection
        The matrix that it belongs to.
    tensor
        `weight`, `weight_scale`, `weight_scale_2` or `input_scale`.
    """

    expert: int
    projection: Projection
    tensor: str

    @property
    def key(self) -> str:
        """Its name in a module's state dict."""
        return f"{self.expert}.{self.projection.name}.{self.tensor}"


def place_of(key: str, known: Iterable[Projection]) -> Place | None:
    """Find what a name such as `3.up_proj.weight` stands for; None if it is none of an expert."""
    if (match := _KEY.fullmatch(key)) is None or match[3] not in checkpoint.DTYPES:
        return None
    for projection in known:
        if match[2] in projection.names:
            return Place(int(match[1]), projection, match[3])
    return None
