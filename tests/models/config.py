"""Sizes of a model with GLM-5's structure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Glm5Config:
    """Names are those of GLM-5's `config.json` (GlmMoeDsaForCausalLM).

    Everything that a quantized projection reads or writes has to be a multiple of 32.

    Attributes
    ----------
    index_topk
        How many tokens each token attends to at most. None leaves the indexer out: plain MLA.
    """

    vocab_size: int = 256
    hidden_size: int = 128
    num_hidden_layers: int = 2
    first_k_dense_replace: int = 1
    num_attention_heads: int = 2
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    index_topk: int | None = 24
    index_n_heads: int = 2
    index_head_dim: int = 64
    intermediate_size: int = 256
    moe_intermediate_size: int = 64
    n_routed_experts: int = 4
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e6

    @property
    def qk_head_dim(self) -> int:
        """Of a query or a key: the part without a position, then the rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


TINY = Glm5Config()
"""Small enough for a compiler to be called often: a dense layer, and one with 4 experts."""

RATIO = Glm5Config(
    vocab_size=4096,
    hidden_size=768,
    num_hidden_layers=4,
    first_k_dense_replace=1,
    num_attention_heads=8,
    q_lora_rank=256,
    kv_lora_rank=64,
    qk_nope_head_dim=96,
    qk_rope_head_dim=32,
    v_head_dim=128,
    index_topk=256,
    index_n_heads=4,
    index_head_dim=64,
    intermediate_size=1536,
    moe_intermediate_size=256,
    n_routed_experts=8,
    num_experts_per_tok=2,
)
"""GLM-5's widths divided by eight (ranks and heads as near as multiples of 32 allow).

For a GPU: on the CPU reference, minutes pass before it is quantized.
"""
