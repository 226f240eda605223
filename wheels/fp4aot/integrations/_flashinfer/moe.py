"""Replacements of FlashInfer's CUTLASS mixture of experts, for NVFP4."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from fp4aot import fused_moe
from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)

# What is quantized inside, and what is quantized already.
_INPUTS = (torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.float4_e2m1fn_x2)
_OUTPUTS = (torch.bfloat16, torch.float16)
# FlashInfer's sign of NVFP4 weights; uint8 means 4-bit weights with 16-bit activations there.
_NVFP4 = torch.int64
# Others need kernels that the wheel does not have.
_ACTIVATIONS = (
    *("Gelu", "Relu", "Silu", "Swiglu", "Geglu", "SwigluBias", "Relu2", "SwigluStep", "GegluTanh"),
    "Identity",
)


def cutlass_fused_moe(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.cutlass_fused_moe`.

    FlashInfer returns a list whose first entry is the result. Here it is the only one: the others
    are scratch of a mode that FlashInfer does not have on these GPUs, and hold nothing.
    """
    forward = forwarder(original)
    activations = activation_numbers(original.function)

    def routed(
        input: torch.Tensor,
        token_selected_experts: torch.Tensor,
        token_final_scales: torch.Tensor,
        fc1_expert_weights: torch.Tensor,
        fc2_expert_weights: torch.Tensor,
        output_dtype: torch.dtype,
        quant_scales: Sequence[torch.Tensor],
        fc1_expert_biases: torch.Tensor | None = None,
        fc2_expert_biases: torch.Tensor | None = None,
        input_sf: torch.Tensor | None = None,
        swiglu_alpha: torch.Tensor | None = None,
        swiglu_beta: torch.Tensor | None = None,
        swiglu_limit: torch.Tensor | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        ep_size: int = 1,
        ep_rank: int = 0,
        cluster_size: int = 1,
        cluster_rank: int = 0,
        output: torch.Tensor | None = None,
        enable_alltoall: bool = False,
        use_deepseek_fp8_block_scale: bool = False,
        use_w4_group_scaling: bool = False,
        use_mxfp8_act_scaling: bool = False,
        min_latency_mode: bool = False,
        use_packed_weights: bool = False,
        use_wfp4afp8_humming: bool = False,
        tune_max_num_tokens: int = 8192,
        enable_pdl: bool | None = None,
        activation_type: int = 3,
        swizzled_input_sf: bool = True,
        use_fused_finalize: bool = True,
        profile_ids: Sequence[int] | None = None,
        workspace_buffer: torch.Tensor | None = None,
        *,
        clamped_relu2_limit: torch.Tensor | None = None,
        situ_beta: torch.Tensor | None = None,
        situ_linear_beta: torch.Tensor | None = None,
        backend: str = "cutlass",
        **more: Any,
    ) -> Any:
        activation = activations.get(int(activation_type))
        if (
            fc1_expert_weights.dtype != _NVFP4
            or fc2_expert_weights.dtype != _NVFP4
            or input.dtype not in _INPUTS
            or output_dtype not in _OUTPUTS
            or activation is None
            or len(quant_scales) != 6
            or use_deepseek_fp8_block_scale
            or use_w4_group_scaling
            or use_mxfp8_act_scaling
            or min_latency_mode
            or use_packed_weights
            or use_wfp4afp8_humming
            or cluster_size != 1
            or clamped_relu2_limit is not None
            or situ_beta is not None
            or situ_linear_beta is not None
            or backend != "cutlass"
            or not _fits(fc2_expert_weights)
            or asks_for_more(more)
        ):
            return forward(
                more,
                input=input,
                token_selected_experts=token_selected_experts,
                token_final_scales=token_final_scales,
                fc1_expert_weights=fc1_expert_weights,
                fc2_expert_weights=fc2_expert_weights,
                output_dtype=output_dtype,
                quant_scales=quant_scales,
                fc1_expert_biases=fc1_expert_biases,
                fc2_expert_biases=fc2_expert_biases,
                input_sf=input_sf,
                swiglu_alpha=swiglu_alpha,
                swiglu_beta=swiglu_beta,
                swiglu_limit=swiglu_limit,
                tp_size=tp_size,
                tp_rank=tp_rank,
                ep_size=ep_size,
                ep_rank=ep_rank,
                cluster_size=cluster_size,
                cluster_rank=cluster_rank,
                output=output,
                enable_alltoall=enable_alltoall,
                use_deepseek_fp8_block_scale=use_deepseek_fp8_block_scale,
                use_w4_group_scaling=use_w4_group_scaling,
                use_mxfp8_act_scaling=use_mxfp8_act_scaling,
                min_latency_mode=min_latency_mode,
                use_packed_weights=use_packed_weights,
                use_wfp4afp8_humming=use_wfp4afp8_humming,
                tune_max_num_tokens=tune_max_num_tokens,
                enable_pdl=enable_pdl,
                activation_type=activation_type,
                swizzled_input_sf=swizzled_input_sf,
                use_fused_finalize=use_fused_finalize,
                profile_ids=profile_ids,
                workspace_buffer=workspace_buffer,
                clamped_relu2_limit=clamped_relu2_limit,
                situ_beta=situ_beta,
                situ_linear_beta=situ_linear_beta,
                backend=backend,
            )
        return [
            fused_moe.cutlass_fused_moe(
                input,
                token_selected_experts,
                token_final_scales,
                fc1_expert_weights,
                fc2_expert_weights,
                output_dtype,
                quant_scales,
                fc1_expert_biases=fc1_expert_biases,
                fc2_expert_biases=fc2_expert_biases,
                input_sf=input_sf,
                swiglu_alpha=swiglu_alpha,
                swiglu_beta=swiglu_beta,
                swiglu_limit=swiglu_limit,
                tp_size=tp_size,
                tp_rank=tp_rank,
                ep_size=ep_size,
                ep_rank=ep_rank,
                output=output,
                enable_alltoall=enable_alltoall,
                enable_pdl=enable_pdl,
                activation_type=activation,
                swizzled_input_sf=swizzled_input_sf,
                use_fused_finalize=use_fused_finalize,
                profile_ids=profile_ids,
                workspace_buffer=workspace_buffer,
            )
        ]

    if "use_wfp4afp8_humming" in original.names:
        return routed

    # FlashInfer before 0.6.18, where the arguments after it have other positions.
    def routed_without_humming(
        input: torch.Tensor,
        token_selected_experts: torch.Tensor,
        token_final_scales: torch.Tensor,
        fc1_expert_weights: torch.Tensor,
        fc2_expert_weights: torch.Tensor,
        output_dtype: torch.dtype,
        quant_scales: Sequence[torch.Tensor],
        fc1_expert_biases: torch.Tensor | None = None,
        fc2_expert_biases: torch.Tensor | None = None,
        input_sf: torch.Tensor | None = None,
        swiglu_alpha: torch.Tensor | None = None,
        swiglu_beta: torch.Tensor | None = None,
        swiglu_limit: torch.Tensor | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        ep_size: int = 1,
        ep_rank: int = 0,
        cluster_size: int = 1,
        cluster_rank: int = 0,
        output: torch.Tensor | None = None,
        enable_alltoall: bool = False,
        use_deepseek_fp8_block_scale: bool = False,
        use_w4_group_scaling: bool = False,
        use_mxfp8_act_scaling: bool = False,
        min_latency_mode: bool = False,
        use_packed_weights: bool = False,
        tune_max_num_tokens: int = 8192,
        enable_pdl: bool | None = None,
        activation_type: int = 3,
        swizzled_input_sf: bool = True,
        **more: Any,
    ) -> Any:
        return routed(
            input,
            token_selected_experts,
            token_final_scales,
            fc1_expert_weights,
            fc2_expert_weights,
            output_dtype,
            quant_scales,
            fc1_expert_biases,
            fc2_expert_biases,
            input_sf,
            swiglu_alpha,
            swiglu_beta,
            swiglu_limit,
            tp_size,
            tp_rank,
            ep_size,
            ep_rank,
            cluster_size,
            cluster_rank,
            output,
            enable_alltoall,
            use_deepseek_fp8_block_scale,
            use_w4_group_scaling,
            use_mxfp8_act_scaling,
            min_latency_mode,
            use_packed_weights,
            False,
            tune_max_num_tokens,
            enable_pdl,
            activation_type,
            swizzled_input_sf,
            **more,
        )

    return routed_without_humming


def cutlass_fused_moe_workspace_size(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.fused_moe.cutlass_fused_moe_workspace_size`."""
    forward = forwarder(original)
    activations = activation_numbers(original.function)

    def routed(
        max_num_tokens: int,
        hidden_size: int,
        intermediate_size: int,
        num_experts_total: int,
        top_k: int,
        *,
        x_dtype: torch.dtype,
        weight_dtype: torch.dtype,
        output_dtype: torch.dtype = torch.bfloat16,
        activation_type: int = 3,
        tp_size: int = 1,
        tp_rank: int = 0,
        ep_size: int = 1,
        ep_rank: int = 0,
        min_latency_mode: bool = False,
        use_deepseek_fp8_block_scale: bool = False,
        use_w4_group_scaling: bool = False,
        use_mxfp8_act_scaling: bool = False,
        use_fused_finalize: bool = True,
        use_packed_weights: bool = False,
        use_wfp4afp8_humming: bool = False,
        device: torch.device | None = None,
        backend: str = "cutlass",
        **more: Any,
    ) -> Any:
        activation = activations.get(int(activation_type))
        if (
            weight_dtype != _NVFP4
            or x_dtype not in _INPUTS
            or output_dtype not in _OUTPUTS
            or activation is None
            or min_latency_mode
            or use_deepseek_fp8_block_scale
            or use_w4_group_scaling
            or use_mxfp8_act_scaling
            or use_packed_weights
            or use_wfp4afp8_humming
            or backend != "cutlass"
            or hidden_size % 32 != 0
            or intermediate_size % 32 != 0
            or asks_for_more(more)
        ):
            return forward(
                more,
                max_num_tokens=max_num_tokens,
                hidden_size=hidden_size,
                intermediate_size=intermediate_size,
                num_experts_total=num_experts_total,
                top_k=top_k,
                x_dtype=x_dtype,
                weight_dtype=weight_dtype,
                output_dtype=output_dtype,
                activation_type=activation_type,
                tp_size=tp_size,
                tp_rank=tp_rank,
                ep_size=ep_size,
                ep_rank=ep_rank,
                min_latency_mode=min_latency_mode,
                use_deepseek_fp8_block_scale=use_deepseek_fp8_block_scale,
                use_w4_group_scaling=use_w4_group_scaling,
                use_mxfp8_act_scaling=use_mxfp8_act_scaling,
                use_fused_finalize=use_fused_finalize,
                use_packed_weights=use_packed_weights,
                use_wfp4afp8_humming=use_wfp4afp8_humming,
                device=device,
                backend=backend,
            )
        return fused_moe.cutlass_fused_moe_workspace_size(
            max_num_tokens,
            hidden_size,
            intermediate_size,
            num_experts_total,
            top_k,
            x_dtype=x_dtype,
            weight_dtype=weight_dtype,
            output_dtype=output_dtype,
            activation_type=activation,
            tp_size=tp_size,
            tp_rank=tp_rank,
            ep_size=ep_size,
            ep_rank=ep_rank,
            use_fused_finalize=use_fused_finalize,
            device=device,
        )

    return routed


def activation_numbers(function: Function) -> dict[int, int]:
    """Return the operator's number of an activation by FlashInfer's.

    FlashInfer has given them other numbers before (0.6.12: 7 is Identity, which is 9 in 0.7), so
    they are compared by name, in the enumeration of which the default is a member.

    Parameters
    ----------
    function
        FlashInfer's, with a parameter `activation_type`.
    """
    default = inspect.signature(function).parameters["activation_type"].default
    theirs: type[enum.IntEnum] = fused_moe.ActivationType
    if isinstance(default, enum.IntEnum):
        theirs = type(default)
    return {
        int(member): int(fused_moe.ActivationType[name])
        for name, member in theirs.__members__.items()
        if name in _ACTIVATIONS
    }


def _fits(fc2_expert_weights: torch.Tensor) -> bool:
    # Hidden and intermediate size are multiples of 32; an int64 has 16 values.
    return fc2_expert_weights.shape[1] % 32 == 0 and fc2_expert_weights.shape[2] % 2 == 0
