"""A transformer with GLM-5's structure: what tests need of the package, in one place."""

from __future__ import annotations

from models.config import RATIO, TINY, Glm5Config
from models.layers import Glm5, split_at
from models.nvfp4 import quantize
from models.split_operators import SPLIT_OPERATORS
from models.weights import build, tokens

__all__ = [
    "RATIO",
    "SPLIT_OPERATORS",
    "TINY",
    "Glm5",
    "Glm5Config",
    "build",
    "quantize",
    "split_at",
    "tokens",
]
