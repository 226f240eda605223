"""The tensors that ModelOpt's NVFP4 checkpoints hold of a linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

DTYPES: Mapping[str, tuple[torch.dtype, ...]] = MappingProxyType(
    {
        "weight": (torch.uint8, torch.float4_e2m1fn_x2),
        "weight_scale": (torch.float8_e4m3fn, torch.uint8),
        "weight_scale_2": (torch.float32,),
        "input_scale": (torch.float32,),
    }
)
"""What a checkpoint may hold, by the tensors' names; the first is what a module holds."""

SCALARS = ("weight_scale_2", "input_scale")
"""Those of one element, of shape `[]` or `[1]`."""


def refusal(name: str, tensor: torch.Tensor) -> str | None:
    """Say why a tensor cannot be the one of this name; None if it can, as far as dtypes tell."""
    accepted = DTYPES[name]
    if tensor.dtype not in accepted:
        expected = " or ".join(str(dtype) for dtype in accepted)
        return (
            f"got dtype {tensor.dtype}, expected {expected}; is this layer NVFP4 in the checkpoint?"
        )
    if name in SCALARS and tensor.numel() != 1:
        return (
            f"got shape {list(tensor.shape)}, expected one element; load the parts of a fused "
            "layer one by one"
        )
    return None
