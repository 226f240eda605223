"""From a router's logits to the experts of each token."""

from __future__ import annotations

from typing import Literal

import torch

Scoring = Literal["softmax", "sigmoid"]


def route(
    router_logits: torch.Tensor,
    top_k: int,
    scoring: Scoring = "softmax",
    renormalize: bool = True,
    correction_bias: torch.Tensor | None = None,
    routed_scaling_factor: float | torch.Tensor = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of each token, and their weights, as `cutlass_fused_moe` takes them.

    Plain PyTorch, with no step that depends on what is chosen: it traces, and needs no
    synchronization.

    Parameters
    ----------
    router_logits
        `[T, experts]`, floating point. The experts of all ranks.
    top_k
        How many experts each token gets.
    scoring
        What makes scores of the logits, in float32: "softmax" over the experts (Mixtral, Qwen), or
        "sigmoid" of each (DeepSeek-V3, GLM-5).
    renormalize
        Whether the weights of a token add up to one (`norm_topk_prob` in configurations).
    correction_bias
        `[experts]`, added to the scores for the choice and not for the weights:
        `e_score_correction_bias`.
    routed_scaling_factor
        What the weights are multiplied with at last. Under `torch.compile(dynamic=True)` a float
        that is read from a module makes Dynamo trace twice: pass a tensor there.

    Returns
    -------
    token_selected_experts
        int32 `[T, top_k]`, the highest score first.
    token_final_scales
        float32 `[T, top_k]`.

    Raises
    ------
    ValueError
        An argument is not as described.

    Notes
    -----
    There are no groups of experts (`n_group` in configurations): it is 1 in GLM-5.
    """
    if scoring not in ("softmax", "sigmoid"):
        raise ValueError(f"fp4aot.nn.route: scoring={scoring!r}; pass 'softmax' or 'sigmoid'")
    if router_logits.dim() != 2 or not router_logits.is_floating_point():
        raise ValueError(
            f"fp4aot.nn.route: router_logits is {router_logits.dtype} of shape "
            f"{list(router_logits.shape)}; pass floating-point logits [tokens, experts]"
        )
    experts = router_logits.shape[1]
    if not 1 <= top_k <= experts:
        raise ValueError(
            f"fp4aot.nn.route: top_k={top_k} of {experts} experts; pass a number from 1 to that"
        )
    if correction_bias is not None and tuple(correction_bias.shape) != (experts,):
        raise ValueError(
            f"fp4aot.nn.route: correction_bias of shape {list(correction_bias.shape)} with "
            f"{experts} experts; pass one value for each"
        )
    logits = router_logits.to(torch.float32)
    scores = logits.softmax(dim=1) if scoring == "softmax" else logits.sigmoid()
    if correction_bias is None:
        weights, experts_chosen = scores.topk(top_k, dim=1)
    else:
        experts_chosen = (scores + correction_bias).topk(top_k, dim=1).indices
        weights = scores.gather(1, experts_chosen)
    if renormalize:
        # Sigmoids may all be zero; a softmax has a sum of its own.
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    weights = (weights * routed_scaling_factor).to(torch.float32)
    return experts_chosen.to(torch.int32), weights
