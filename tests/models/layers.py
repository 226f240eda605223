"""The modules of a model with GLM-5's structure; names are those of its checkpoints.

Tokens are flattened, `[T, hidden]`, as in servers. `gate_proj` and `up_proj` are one layer,
`gate_up_proj`, as servers fuse them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fp4aot.nn import route
from models.attention import causal_attention
from models.config import Glm5Config


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16)


def _constant(value: float) -> torch.Tensor:
    """Return a tensor: under `dynamic=True`, a float attribute makes Dynamo trace twice."""
    return torch.tensor(value, dtype=torch.float32)


class RMSNorm(nn.Module):
    """In float32, with a weight."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.register_buffer("epsilon", _constant(epsilon), persistent=False)
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = x.float()
        values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.epsilon)
        return (values * self.weight.float()).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """With PyTorch's default epsilon, not read from an attribute: see `_constant`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias)


class Rotary(nn.Module):
    """Rotate the last dimension of `[T, ..., size]` by positions `[T]`; pairs are neighbours."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        self.register_buffer("frequencies", theta**-exponents, persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.float().unsqueeze(-1) * self.frequencies
        if x.dim() == 3:
            angles = angles.unsqueeze(1)
        cosine, sine = angles.cos(), angles.sin()
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        rotated = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
        return rotated.flatten(-2).to(x.dtype)


class Indexer(nn.Module):
    """The projections of DeepSeek's sparse attention: which earlier tokens matter to each."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__()
        self.heads, self.size = config.index_n_heads, config.index_head_dim
        self.rope_size = config.qk_rope_head_dim
        self.wq_b = _linear(config.q_lora_rank, self.heads * self.size)
        self.wk = _linear(config.hidden_size, self.size)
        self.k_norm = LayerNorm(self.size, dtype=torch.bfloat16)
        self.weights_proj = _linear(config.hidden_size, self.heads)

    def forward(
        self, x: torch.Tensor, q_rank: torch.Tensor, rotary: Rotary, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query = self.wq_b(q_rank).unflatten(-1, (self.heads, self.size))
        key = self.k_norm(self.wk(x))
        query, key = (self._rotate(part, rotary, positions) for part in (query, key))
        return query, key, self.weights_proj(x) * self.heads**-0.5

    def _rotate(self, x: torch.Tensor, rotary: Rotary, positions: torch.Tensor) -> torch.Tensor:
        rotated, plain = x.split((self.rope_size, self.size - self.rope_size), dim=-1)
        return torch.cat((rotary(rotated, positions), plain), dim=-1)


class Attention(nn.Module):
    """Multi-head latent attention: queries and keys of low rank, the position beside them."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__()
        self.config = config
        self.split = False
        heads = config.num_attention_heads
        self.q_a_proj = _linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = _linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = _linear(
            config.hidden_size, config.kv_lora_rank + config.qk_rope_head_dim
        )
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = _linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim)
        )
        self.o_proj = _linear(heads * config.v_head_dim, config.hidden_size)
        self.rotary = Rotary(config.qk_rope_head_dim, config.rope_theta)
        self.indexer = None if config.index_topk is None else Indexer(config)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        config, heads = self.config, self.config.num_attention_heads
        q_rank = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_b_proj(q_rank).unflatten(-1, (heads, config.qk_head_dim))
        q_nope, q_rope = query.split((config.qk_nope_head_dim, config.qk_rope_head_dim), dim=-1)
        kv_rank, k_rope = self.kv_a_proj_with_mqa(x).split(
            (config.kv_lora_rank, config.qk_rope_head_dim), dim=-1
        )
        kv = self.kv_b_proj(self.kv_a_layernorm(kv_rank)).unflatten(-1, (heads, -1))
        k_nope, value = kv.split((config.qk_nope_head_dim, config.v_head_dim), dim=-1)
        query = torch.cat((q_nope, self.rotary(q_rope, positions)), dim=-1)
        # One rotated part for all heads.
        k_rope = self.rotary(k_rope, positions).unsqueeze(1).expand(-1, heads, -1)
        key = torch.cat((k_nope, k_rope), dim=-1)
        index = (None, None, None)
        if self.indexer is not None:
            index = self.indexer(x, q_rank, self.rotary, positions)
        arguments = (query, key, value.contiguous(), *index, config.index_topk or 0)
        if self.split:
            context = x.new_empty(x.shape[0], heads * config.v_head_dim)
            torch.ops.glm5.attention(*arguments, context)
        else:
            context = causal_attention(*arguments)
        return self.o_proj(context)


class MLP(nn.Module):
    """Gate and up in one product, SiLU times, down."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up_proj = _linear(hidden, 2 * intermediate)
        self.down_proj = _linear(intermediate, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class Router(nn.Module):
    """Sigmoid scores; the correction bias takes part in the choice, not in the weights."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__()
        self.config = config
        scaling = _constant(config.routed_scaling_factor)
        self.register_buffer("routed_scaling_factor", scaling, persistent=False)
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(config.n_routed_experts))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `[T, experts per token]` expert numbers and their weights, float32."""
        return route(
            functional.linear(x.float(), self.weight),
            self.config.num_experts_per_tok,
            scoring="sigmoid",
            renormalize=self.config.norm_topk_prob,
            correction_bias=self.e_score_correction_bias,
            routed_scaling_factor=self.routed_scaling_factor,
        )


class Experts(nn.ModuleList):
    """The experts before they are quantized: a loop over all of them."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__(
            MLP(config.hidden_size, config.moe_intermediate_size)
            for _ in range(config.n_routed_experts)
        )

    def forward(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, split: bool
    ) -> torch.Tensor:
        """Add up the experts' outputs; unquantized, they are no operator to split at."""
        assert not split, "quantize the model first"
        total = torch.zeros_like(x, dtype=torch.float32)
        for number, expert in enumerate(self):
            share = torch.where(chosen == number, weights, 0.0).sum(dim=1, keepdim=True)
            total = total + expert(x).float() * share
        return total.to(x.dtype)


class MoE(nn.Module):
    """Routed experts, and shared experts that see every token."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__()
        self.split = False
        self.gate = Router(config)
        # Another module after quantization: `nvfp4.NVFP4Experts`, a `fp4aot.nn.NVFP4MoE`.
        self.experts: nn.Module = Experts(config)
        self.shared_experts = MLP(
            config.hidden_size, config.n_shared_experts * config.moe_intermediate_size
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x, *self.gate(x), self.split) + self.shared_experts(x)


class DecoderLayer(nn.Module):
    """Attention, then a dense MLP in the first layers and a mixture of experts in the others."""

    def __init__(self, config: Glm5Config, number: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if number < config.first_k_dense_replace:
            self.mlp: nn.Module = MLP(config.hidden_size, config.intermediate_size)
        else:
            self.mlp = MoE(config)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Glm5(nn.Module):
    """Token ids `[T]` and positions `[T]` to float32 logits `[T, vocabulary]`."""

    def __init__(self, config: Glm5Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size).bfloat16()
        self.layers = nn.ModuleList(
            DecoderLayer(config, number) for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # Not called: the module has a float that it does not use (see `_constant`).
        x = functional.embedding(ids, self.embed_tokens.weight)
        for layer in self.layers:
            x = layer(x, positions)
        return self.lm_head(self.norm(x)).float()


def split_at(model: nn.Module, *kinds: str) -> None:
    """Let a model call "attention", "moe" or both through an operator; none undoes it."""
    assert set(kinds) <= {"attention", "moe"}, kinds
    for module in model.modules():
        if isinstance(module, Attention):
            module.split = "attention" in kinds
        elif isinstance(module, MoE):
            module.split = "moe" in kinds
