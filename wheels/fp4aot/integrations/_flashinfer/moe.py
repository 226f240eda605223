"""The routes of FlashInfer's CUTLASS mixture of experts, for NVFP4."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import torch

from fp4aot import fused_moe
from fp4aot.integrations._flashinfer import tuning
from fp4aot.integrations._flashinfer.call import Context, Function, Route

# What is quantized inside, and what is quantized already.
_INPUTS = (torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.float4_e2m1fn_x2)
OUTPUTS = (torch.bfloat16, torch.float16)
"""Dtypes of results, and of tokens that are quantized inside."""
# FlashInfer's sign of NVFP4 weights; uint8 means 4-bit weights with 16-bit activations there.
_NVFP4 = torch.int64
_SWIGLU = int(fused_moe.ActivationType.Swiglu)
# Others need kernels that the wheel does not have.
_ACTIVATIONS = (
    *("Gelu", "Relu", "Silu", "Swiglu", "Geglu", "SwigluBias", "Relu2", "SwigluStep", "GegluTanh"),
    "Identity",
)
# FlashInfer's default of `tune_max_num_tokens`.
_TUNED_TOKENS = 8192
# What the operator does not take.
_FLAGS = ("use_deepseek_fp8_block_scale", "use_w4_group_scaling", "use_mxfp8_act_scaling")
_LEFT = (
    *("min_latency_mode", "use_packed_weights", "use_wfp4afp8_humming", "backend"),
    *("cluster_size", "cluster_rank", "clamped_relu2_limit", "situ_beta", "situ_linear_beta"),
)


def cutlass_fused_moe(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.cutlass_fused_moe`.

    FlashInfer returns a list whose first entry is the result. Here it is the only one: the others
    are scratch of a mode that FlashInfer does not have on these GPUs, and hold nothing.
    """
    function = fused_moe.cutlass_fused_moe
    activations = activation_numbers(original)

    def answer(values: dict[str, Any]) -> Any:
        get = values.get
        if tuning.is_open(values["input"]):
            largest = get("tune_max_num_tokens", _TUNED_TOKENS)
            tuning.state.largest = max(tuning.state.largest, largest)
            return NotImplemented
        activation = activations.get(int(get("activation_type", _SWIGLU)))
        fc2_expert_weights = values["fc2_expert_weights"]
        if (
            values["fc1_expert_weights"].dtype != _NVFP4
            or not are_nvfp4(
                values["input"].dtype, fc2_expert_weights.dtype, values["output_dtype"]
            )
            or activation is None
            or len(values["quant_scales"]) != 6
            # Callers often pass these with their defaults, and looking here takes least time.
            or get("use_deepseek_fp8_block_scale")
            or get("use_w4_group_scaling")
            or get("use_mxfp8_act_scaling")
            or not fits(fc2_expert_weights)
        ):
            return NotImplemented
        values["activation_type"] = activation
        return [function(**values)]

    return Route(answer, function, _LEFT)


def cutlass_fused_moe_workspace_size(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.fused_moe.cutlass_fused_moe_workspace_size`."""
    function = fused_moe.cutlass_fused_moe_workspace_size
    activations = activation_numbers(original)

    def answer(values: dict[str, Any]) -> Any:
        activation = activations.get(int(values.get("activation_type", _SWIGLU)))
        output_dtype = values.get("output_dtype", torch.bfloat16)
        if (
            not are_nvfp4(values["x_dtype"], values["weight_dtype"], output_dtype)
            or activation is None
            or values["hidden_size"] % 32 != 0
            or values["intermediate_size"] % 32 != 0
        ):
            return NotImplemented
        values["activation_type"] = activation
        return function(**values)

    return Route(answer, function, (*_FLAGS, *_LEFT))


def are_nvfp4(x_dtype: torch.dtype, weight_dtype: torch.dtype, output_dtype: torch.dtype) -> bool:
    """Tell whether these dtypes are those of a mixture in NVFP4."""
    return weight_dtype == _NVFP4 and x_dtype in _INPUTS and output_dtype in OUTPUTS


def fits(fc2_expert_weights: torch.Tensor) -> bool:
    """Tell whether hidden and intermediate size are multiples of 32; an int64 has 16 values."""
    return fc2_expert_weights.shape[1] % 32 == 0 and fc2_expert_weights.shape[2] % 2 == 0


def activation_numbers(function: Function) -> dict[int, int]:
    """Return the operator's number of an activation by FlashInfer's.

    FlashInfer has given them other numbers before (0.6.12: 7 is Identity, which is 9 in 0.7), so
    they are compared by name, in the enumeration of which the default is a member.

    Parameters
    ----------
    function
        FlashInfer's, with a parameter `activation_type`.
    """
    parameter = inspect.signature(function).parameters.get("activation_type")
    default = getattr(parameter, "default", None)
    theirs = type(default) if isinstance(default, enum.IntEnum) else fused_moe.ActivationType
    return {
        int(member): int(fused_moe.ActivationType[name])
        for name, member in theirs.__members__.items()
        if name in _ACTIVATIONS
    }
