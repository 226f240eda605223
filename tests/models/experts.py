"""Mixture of experts after its router, as one function of tensors."""

from __future__ import annotations

import torch

import fp4aot


def masked_experts(
    x: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    fc1_act_global: torch.Tensor,
    fc1_weight_block_sf: torch.Tensor,
    fc1_global: torch.Tensor,
    fc2_act_global: torch.Tensor,
    fc2_weight_block_sf: torch.Tensor,
    fc2_global: torch.Tensor,
) -> torch.Tensor:
    """Run every expert on every token, and add up what the router asked for.

    Arguments are those of FlashInfer's `cutlass_fused_moe`, in its order, with its `quant_scales`
    written out: **where this is called, the fused operator will be**, once the package has it.
    Until then this loop is what it is to be compared with. It costs `experts / experts per token`
    times the work, and has no shape that depends on the routing, so a compiler traces through it.

    Parameters
    ----------
    x
        `[T, hidden]`, bfloat16.
    token_selected_experts, token_final_scales
        `[T, experts per token]`, integers and float32.
    fc1_expert_weights, fc2_expert_weights
        Packed e2m1, `[E, 2 * intermediate, hidden / 2]` (gate, then up) and
        `[E, hidden, intermediate / 2]`, uint8.
    fc1_act_global, fc2_act_global
        Global scale of each GEMM's input, float32 `[1]`.
    fc1_weight_block_sf, fc2_weight_block_sf
        Block scales in the 128x4 layout, `[E, padded rows, padded columns]`.
    fc1_global, fc2_global
        What each expert's product is multiplied with, float32 `[E]`.
    """
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(fc1_expert_weights.shape[0]):
        gate_up = fp4aot.fp4_linear(
            x,
            fc1_expert_weights[expert],
            fc1_weight_block_sf[expert],
            fc1_global[expert : expert + 1],
            fc1_act_global,
        )
        gate, up = gate_up.chunk(2, dim=-1)
        output = fp4aot.fp4_linear(
            torch.nn.functional.silu(gate) * up,
            fc2_expert_weights[expert],
            fc2_weight_block_sf[expert],
            fc2_global[expert : expert + 1],
            fc2_act_global,
        )
        share = torch.where(token_selected_experts == expert, token_final_scales, 0.0).sum(dim=1)
        total = total + output.float() * share.unsqueeze(1)
    return total.to(x.dtype)
