"""The layers of a transformer, from its Hugging Face ``config.json``.

Engines fuse some projections (SGLang and vLLM: q/k/v, gate/up, the two down-projections of MLA), so
both forms are listed. Column-parallel layers divide N by the tensor-parallel size, row-parallel
ones K; the low-rank projections of MLA are replicated. Routed experts are one mixture for
`cutlass_fused_moe`; their shapes are listed too, for the code that calls `mm_fp4` for each expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fp4aot._tactics.errors import TacticsError

Mixture = tuple[int, int, int, int]
"""Hidden and intermediate size, experts of a rank, and experts of each token."""

Named = tuple[str, tuple[int, int]]
"""A layer's name, N and K."""

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")


class _Config:
    """A model's configuration; numbers by name, with errors that say which."""

    def __init__(self, data: Any, source: str, tensor_parallel: int) -> None:
        # Vision-language models keep the language model's numbers one level down.
        while isinstance(data, Mapping) and "hidden_size" not in data:
            nested = [data[name] for name in _NESTED if isinstance(data.get(name), Mapping)]
            if not nested:
                break
            data = nested[0]
        self._data: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
        self.source = source
        self.tensor_parallel = tensor_parallel
        if "hidden_size" not in self._data:
            raise TacticsError(
                f"fp4aot.tactics: {source}: has no 'hidden_size', so it is no transformer's "
                "config.json; give the shapes as a JSON list of [N, K]"
            )

    def get(self, name: str, default: int = 0) -> int:
        """Return a number, or the default where the model has none."""
        value = self._data.get(name)
        if value is None:
            return default
        if type(value) is not int or value < 0:
            raise TacticsError(
                f"fp4aot.tactics: {self.source}: field '{name}': got {str(value)[:60]!r}, expected "
                "a whole number; give the shapes as a JSON list of [N, K]"
            )
        return value

    def need(self, name: str) -> int:
        """Return a number that cannot be done without."""
        value = self.get(name)
        if value == 0:
            raise TacticsError(
                f"fp4aot.tactics: {self.source}: field '{name}': got nothing, expected a whole "
                "number above 0; give the shapes as a JSON list of [N, K]"
            )
        return value

    def flag(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return self._data.get(name) is True

    def divided(self, value: int, what: str) -> int:
        """Divide by the tensor-parallel size."""
        if value % self.tensor_parallel:
            raise TacticsError(
                f"fp4aot.tactics: {self.source}: {what} is {value}, which --tp "
                f"{self.tensor_parallel} does not divide; choose a size that the model supports"
            )
        return value // self.tensor_parallel


def linear_shapes(data: Any, source: str, tensor_parallel: int = 1) -> list[Named]:
    """List the layers of a model on one device.

    Parameters
    ----------
    data
        The content of ``config.json``.
    source
        How errors name the file.
    tensor_parallel
        Over how many devices the layers are divided.

    Raises
    ------
    TacticsError
        When a number is missing or cannot be divided.
    """
    config = _Config(data, source, tensor_parallel)
    attention = _latent_attention if config.get("kv_lora_rank") else _attention
    return [*attention(config), *_feed_forward(config), *_experts(config)]


def mixtures(
    data: Any, source: str, tensor_parallel: int = 1, expert_parallel: int = 1
) -> list[Mixture]:
    """List the mixture of experts of a model on one device, if it has one.

    Parameters
    ----------
    data, source, tensor_parallel
        As in `linear_shapes`.
    expert_parallel
        Over how many devices the experts are divided. What is left of `tensor_parallel` divides
        their intermediate size.

    Raises
    ------
    TacticsError
        When a number is missing or cannot be divided.
    """
    if tensor_parallel % expert_parallel and expert_parallel % tensor_parallel:
        raise TacticsError(
            f"fp4aot.tactics: --ep {expert_parallel} and --tp {tensor_parallel}: one of them has "
            "to divide the other; choose sizes that the engine supports"
        )
    config = _Config(data, source, max(1, tensor_parallel // expert_parallel))
    experts = next(filter(None, map(config.get, _EXPERTS)), 0)
    if not experts:
        return []
    if experts % expert_parallel:
        raise TacticsError(
            f"fp4aot.tactics: {source}: the model has {experts} experts, which --ep "
            f"{expert_parallel} does not divide; choose a size that the model supports"
        )
    # Mixtral has no other layers, and no size of its own for experts.
    name = "moe_intermediate_size" if config.get("moe_intermediate_size") else "intermediate_size"
    return [
        (
            config.need("hidden_size"),
            config.divided(config.need(name), name),
            experts // expert_parallel,
            config.need("num_experts_per_tok"),
        )
    ]


def _attention(config: _Config) -> Iterator[Named]:
    hidden, heads = config.need("hidden_size"), config.need("num_attention_heads")
    key_value_heads = config.get("num_key_value_heads", heads) or heads
    head = config.get("head_dim") or hidden // heads
    out = config.divided(heads, "num_attention_heads") * head
    # Where there are fewer key/value heads than devices, they are replicated.
    if key_value_heads >= config.tensor_parallel:
        key_value = config.divided(key_value_heads, "num_key_value_heads") * head
    else:
        key_value = head
    # Qwen3-Next computes a gate for the attention's output along with q.
    query = out * 2 if config.flag("attn_output_gate") else out
    yield "qkv_proj", (query + 2 * key_value, hidden)
    yield "q_proj", (query, hidden)
    yield "k_proj", (key_value, hidden)
    yield "v_proj", (key_value, hidden)
    yield "o_proj", (hidden, out)


def _latent_attention(config: _Config) -> Iterator[Named]:
    """MLA: queries, keys and values through low-rank projections (DeepSeek, GLM, Kimi)."""
    hidden = config.need("hidden_size")
    heads = config.divided(config.need("num_attention_heads"), "num_attention_heads")
    rank, rope = config.need("kv_lora_rank"), config.need("qk_rope_head_dim")
    plain, value = config.need("qk_nope_head_dim"), config.need("v_head_dim")
    query_rank = config.get("q_lora_rank")
    if query_rank:
        yield "fused_qkv_a_proj", (query_rank + rank + rope, hidden)
        yield "q_a_proj", (query_rank, hidden)
        yield "q_b_proj", (heads * (plain + rope), query_rank)
    else:
        yield "q_proj", (heads * (plain + rope), hidden)
    yield "kv_a_proj", (rank + rope, hidden)
    yield "kv_b_proj", (heads * (plain + value), rank)
    yield "o_proj", (hidden, heads * value)


def _feed_forward(config: _Config) -> Iterator[Named]:
    intermediate = config.get("intermediate_size")
    if intermediate:
        yield from _gated(config, "", intermediate, "intermediate_size")


def _experts(config: _Config) -> Iterator[Named]:
    expert = config.get("moe_intermediate_size")
    if expert:
        yield from _gated(config, "expert ", expert, "moe_intermediate_size")
    shared = config.get("shared_expert_intermediate_size") or expert * (
        config.get("n_shared_experts") or config.get("num_shared_experts")
    )
    if shared:
        yield from _gated(config, "shared expert ", shared, "the size of the shared experts")


def _gated(config: _Config, prefix: str, intermediate: int, what: str) -> Iterator[Named]:
    hidden = config.need("hidden_size")
    width = config.divided(intermediate, what)
    yield f"{prefix}gate_up_proj", (2 * width, hidden)
    yield f"{prefix}gate_proj, up_proj", (width, hidden)
    yield f"{prefix}down_proj", (hidden, width)
