"""Attention and the experts as operators of a library of their own, to split a graph at.

SGLang and vLLM register their attention like this: it writes into a buffer that the piece before it
allocated, so that the piece after it finds its input where a captured CUDA graph expects it.
"""

from __future__ import annotations

import torch

import fp4aot
from models.attention import causal_attention


@torch.library.custom_op("glm5::attention", mutates_args=("out",))
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_query: torch.Tensor | None,
    index_key: torch.Tensor | None,
    index_weights: torch.Tensor | None,
    index_topk: int,
    out: torch.Tensor,
) -> None:
    """Write `causal_attention` of the arguments into `out`."""
    out.copy_(
        causal_attention(query, key, value, index_query, index_key, index_weights, index_topk)
    )


@torch.library.custom_op("glm5::moe", mutates_args=("out",))
def moe(
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
    out: torch.Tensor,
) -> None:
    """Write `cutlass_fused_moe` of the arguments into `out`."""
    fp4aot.cutlass_fused_moe(
        x,
        token_selected_experts,
        token_final_scales,
        fc1_expert_weights,
        fc2_expert_weights,
        out.dtype,
        (
            fc1_act_global,
            fc1_weight_block_sf,
            fc1_global,
            fc2_act_global,
            fc2_weight_block_sf,
            fc2_global,
        ),
        output=out,
    )


@attention.register_fake
def _(*arguments: object) -> None:
    """Nothing is returned: there is no shape to tell."""


@moe.register_fake
def _(*arguments: object) -> None:
    """Nothing is returned: there is no shape to tell."""


SPLIT_OPERATORS = ("glm5.attention", "glm5.moe")
"""What a piecewise compiler splits at: SGLang's `register_split_op` takes such names."""
