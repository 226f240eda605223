"""Modules with NVFP4 weights and inputs, and ways to put them into a model."""

from fp4aot.nn.linear import NVFP4Linear
from fp4aot.nn.moe import NVFP4MoE
from fp4aot.nn.replacing import record_input_amax, replace_linears
from fp4aot.nn.routing import route

__all__ = ["NVFP4Linear", "NVFP4MoE", "record_input_amax", "replace_linears", "route"]
