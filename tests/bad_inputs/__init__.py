"""Calls that every implementation of an operator must refuse, and what the error must say.

One table for the CPU kernels, the fakes and the CUDA kernels: a call that one of them accepts, or
refuses in other words, is a bug in one of them. Each module here has the calls of a family that are
`REFUSED`, and some that must be `ACCEPTED`, from which the bad ones differ in one point.
"""

from __future__ import annotations

import importlib
import pkgutil

from bad_inputs.calls import Accepted, BadInput
from bad_inputs.dequantize import HOST

_FAMILIES = [
    importlib.import_module(f"bad_inputs.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if module.name not in {"arguments", "calls"}
]
ACCEPTED: tuple[Accepted, ...] = tuple(row for family in _FAMILIES for row in family.ACCEPTED)
# For any device; the host function's are separate because it has no other device.
EVERY_DEVICE: tuple[BadInput, ...] = tuple(row for family in _FAMILIES for row in family.REFUSED)

__all__ = ["ACCEPTED", "EVERY_DEVICE", "HOST", "BadInput"]
