"""Mixture of experts after its router, as a loop: what the fused operator is compared with."""

from __future__ import annotations

import torch

from fp4aot.gemm import fp4_linear


def masked_experts(
    x: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    *quant_scales: torch.Tensor,
) -> torch.Tensor:
    """Run every expert on every token, and add up what the router asked for.

    Arguments are those of `fp4aot.cutlass_fused_moe`, in its order, with its `quant_scales` written
    out. It is made of `fp4aot.fp4_linear` alone, which has tests of its own. It costs `experts /
    experts per token` times the work. Weights are summed over an expert that was selected twice
    before they are applied, and experts are added up in their order: last bits may differ.

    Parameters
    ----------
    x
        `[T, hidden]`, bfloat16.
    token_selected_experts, token_final_scales
        `[T, experts per token]`, integers and float32.
    fc1_expert_weights, fc2_expert_weights
        Packed e2m1, `[E, 2 * intermediate, hidden / 2]` (up, then gate) and
        `[E, hidden, intermediate / 2]`, uint8.
    fc1_act_global, fc2_act_global
        Global scale of each GEMM's input, float32 `[1]`.
    fc1_weight_block_sf, fc2_weight_block_sf
        Block scales in the 128x4 layout, `[E, padded rows, padded columns]`.
    fc1_global, fc2_global
        What each expert's product is multiplied with, float32 `[E]`.
    """
    fc1_act_global, fc1_weight_block_sf, fc1_global = quant_scales[:3]
    fc2_act_global, fc2_weight_block_sf, fc2_global = quant_scales[3:]
    total = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(fc1_expert_weights.shape[0]):
        up_gate = fp4_linear(
            x,
            fc1_expert_weights[expert],
            fc1_weight_block_sf[expert],
            fc1_global[expert : expert + 1],
            fc1_act_global,
        )
        up, gate = up_gate.float().chunk(2, dim=-1)
        output = fp4_linear(
            (torch.nn.functional.silu(gate) * up).to(x.dtype),
            fc2_expert_weights[expert],
            fc2_weight_block_sf[expert],
            fc2_global[expert : expert + 1],
            fc2_act_global,
        )
        share = torch.where(token_selected_experts == expert, token_final_scales, 0.0).sum(dim=1)
        total = total + output.float() * share.unsqueeze(1)
    return total.to(x.dtype)
