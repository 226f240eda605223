"""Attention after its projections: causal, over the tokens that the indexer chose."""

from __future__ import annotations

import torch


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_query: torch.Tensor | None,
    index_key: torch.Tensor | None,
    index_weights: torch.Tensor | None,
    index_topk: int,
) -> torch.Tensor:
    """Attend from each token to itself and those before it: one sequence, nothing cached.

    Parameters
    ----------
    query, key
        `[T, heads, qk_head_dim]`.
    value
        `[T, heads, v_head_dim]`.
    index_query, index_key, index_weights
        The indexer's `[T, index heads, index_head_dim]`, `[T, index_head_dim]` and
        `[T, index heads]`; None for attention to all tokens.
    index_topk
        To how many tokens each attends at most.

    Returns
    -------
    torch.Tensor
        `[T, heads * v_head_dim]`, contiguous, of the value's dtype.
    """
    places = torch.arange(query.shape[0], device=query.device)
    allowed = places.unsqueeze(1) >= places
    if index_query is not None:
        relevance = torch.einsum("thd,sd->tsh", index_query.float(), index_key.float()).relu()
        relevance = torch.einsum("tsh,th->ts", relevance, index_weights.float())
        relevance = relevance.masked_fill(~allowed, float("-inf"))
        # By rank, not by topk(min(index_topk, T)): shapes stay the same function of T for every T.
        order = relevance.argsort(dim=1, descending=True, stable=True)
        rank = order.argsort(dim=1)
        allowed = allowed & (rank < index_topk)
    scores = torch.einsum("thd,shd->hts", query.float(), key.float()) * query.shape[-1] ** -0.5
    shares = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
    return torch.einsum("hts,shd->thd", shares, value.float()).to(value.dtype).flatten(1)
