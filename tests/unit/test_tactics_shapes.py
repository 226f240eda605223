"""Which shapes are tuned: lists, and the linear layers of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.shapes import Shape, read

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "shared_expert_intermediate_size": None,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def shapes(path: Path, content: Any, tp: int = 1) -> dict[tuple[int, int], str]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {(shape.n, shape.k): shape.name for shape in read(path, tp)}


# Lists


@pytest.mark.parametrize(
    "text",
    [
        "[[4096, 2048], [28672, 4096]]",
        '[{"n": 4096, "k": 2048}, {"n": 28672, "k": 4096, "name": "up"}]',
        '[[4096, 2048], {"k": 4096, "n": 28672}]',
        "4096 2048\n28672 4096\n",
        "4096x2048\n28672X4096",
        "# of my model\n\n 4096 , 2048  # attention\n28672\t4096\n4096x2048\n",
        "  [[4096, 2048],\n [28672, 4096], [4096, 2048]]",
    ],
)
def test_lists(text: str, path: Path) -> None:
    assert list(shapes(path, text, tp=8)) == [(4096, 2048), (28672, 4096)]


def test_names_are_kept(path: Path) -> None:
    text = '[{"n": 32, "k": 64, "name": "a"}, [32, 64], {"n": 32, "k": 64, "name": "b"}]'
    assert shapes(path, text) == {(32, 64): "a, b"}


@pytest.mark.parametrize(
    "text",
    [
        *("4096", "4096 2048 1024", "4096 -2048", "a b", "4096.0 2048", "4096x2048x1"),
        *("[4096, 2048]", "[[4096]]", '[[4096, "2048"]]', "[[4096, 2048.0]]", "[[true, 32]]"),
        *('[{"n": 4096}]', "[[0, 32]]", "[[-32, 32]]", "[[4294967296, 32]]", "0 32", "{", "[["),
        *("", "\n# nothing\n", "[]", '"4096"'),
    ],
)
def test_what_is_no_list(text: str, path: Path) -> None:
    with pytest.raises(TacticsError) as caught:
        shapes(path, text)
    assert str(path) in str(caught.value)
    assert "expected" in str(caught.value)


def test_the_place_is_named(path: Path) -> None:
    with pytest.raises(TacticsError, match="line 3: got 'oops'"):
        shapes(path, "32 32\n\noops\n")
    with pytest.raises(TacticsError, match=r"item 1: got \[32\]"):
        shapes(path, "[[32, 32], [32]]")


def test_no_file(path: Path) -> None:
    with pytest.raises(TacticsError, match=r"cannot be read .*check --shapes"):
        read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TacticsError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize(
    ("n", "k", "fits"), [(32, 32, True), (48, 32, False), (32, 48, False), (4096, 7168, True)]
)
def test_what_the_kernels_take(n: int, k: int, fits: bool) -> None:
    assert Shape(n, k).fits is fits


# Models


def test_llama(path: Path) -> None:
    assert shapes(path, LLAMA_3_8B) == {
        (6144, 4096): "qkv_proj",
        (4096, 4096): "q_proj, o_proj",
        (1024, 4096): "k_proj, v_proj",
        (28672, 4096): "gate_up_proj",
        (14336, 4096): "gate_proj, up_proj",
        (4096, 14336): "down_proj",
    }


def test_llama_over_two_devices(path: Path) -> None:
    assert shapes(path, LLAMA_3_8B, tp=2) == {
        (3072, 4096): "qkv_proj",
        (2048, 4096): "q_proj",
        (512, 4096): "k_proj, v_proj",
        (4096, 2048): "o_proj",
        (14336, 4096): "gate_up_proj",
        (7168, 4096): "gate_proj, up_proj",
        (4096, 7168): "down_proj",
    }


def test_key_value_heads_are_replicated_where_there_are_too_few(path: Path) -> None:
    found = shapes(path, LLAMA_3_8B, tp=16)
    assert found[128, 4096] == "k_proj, v_proj"
    assert found[256 + 2 * 128, 4096] == "qkv_proj"


def test_a_head_size_of_its_own_and_experts(path: Path) -> None:
    assert shapes(path, QWEN3_30B_A3B) == {
        (5120, 2048): "qkv_proj",
        (4096, 2048): "q_proj",
        (512, 2048): "k_proj, v_proj",
        (2048, 4096): "o_proj",
        (12288, 2048): "gate_up_proj",
        (6144, 2048): "gate_proj, up_proj",
        (2048, 6144): "down_proj",
        (1536, 2048): "expert gate_up_proj",
        (768, 2048): "expert gate_proj, up_proj",
        (2048, 768): "expert down_proj",
    }


def test_latent_attention(path: Path) -> None:
    assert shapes(path, DEEPSEEK_V3, tp=8) == {
        (2112, 7168): "fused_qkv_a_proj",
        (1536, 7168): "q_a_proj",
        (3072, 1536): "q_b_proj",
        (576, 7168): "kv_a_proj",
        (4096, 512): "kv_b_proj",
        (7168, 2048): "o_proj",
        (4608, 7168): "gate_up_proj",
        (2304, 7168): "gate_proj, up_proj",
        (7168, 2304): "down_proj",
        (512, 7168): "expert gate_up_proj, shared expert gate_up_proj",
        (256, 7168): "expert gate_proj, up_proj, shared expert gate_proj, up_proj",
        (7168, 256): "expert down_proj, shared expert down_proj",
    }


def test_latent_attention_without_a_query_rank(path: Path) -> None:
    found = shapes(path, DEEPSEEK_V3 | {"q_lora_rank": None})
    assert found[128 * 192, 7168] == "q_proj"
    assert not any("q_a" in name or "q_b" in name for name in found.values())


def test_shared_experts_of_a_size_of_their_own(path: Path) -> None:
    config = QWEN3_30B_A3B | {"shared_expert_intermediate_size": 5120}
    assert shapes(path, config)[10240, 2048] == "shared expert gate_up_proj"
    two = shapes(path, DEEPSEEK_V3 | {"n_shared_experts": 2})
    assert two[8192, 7168] == "shared expert gate_up_proj"


def test_a_gate_for_the_attentions_output(path: Path) -> None:
    found = shapes(path, QWEN3_30B_A3B | {"attn_output_gate": True})
    assert found[8192, 2048] == "q_proj"
    assert found[2048, 4096] == "o_proj"


def test_a_model_within_a_model_and_a_folder(path: Path) -> None:
    nested = {"model_type": "a_vlm", "text_config": LLAMA_3_8B, "vision_config": {"hidden_size": 1}}
    assert shapes(path, nested) == shapes(path, LLAMA_3_8B)
    assert [(s.n, s.k) for s in read(path.parent)] == list(shapes(path, LLAMA_3_8B))


def test_what_does_not_fit_is_listed_too(path: Path) -> None:
    found = shapes(path, LLAMA_3_8B | {"intermediate_size": 11000}, tp=8)
    assert (1375, 4096) in found


@pytest.mark.parametrize(
    ("config", "tp", "message"),
    [
        ({"hidden_size": 4096}, 1, "'num_attention_heads': got nothing"),
        (LLAMA_3_8B | {"num_attention_heads": "32"}, 1, "'num_attention_heads': got '32'"),
        (LLAMA_3_8B | {"hidden_size": 0}, 1, "'hidden_size': got nothing"),
        (LLAMA_3_8B, 3, "num_attention_heads is 32, which --tp 3 does not divide"),
        (LLAMA_3_8B | {"intermediate_size": 14337}, 2, "intermediate_size is 14337, which --tp 2"),
        (LLAMA_3_8B | {"num_key_value_heads": 6}, 4, "num_key_value_heads is 6, which --tp 4"),
        ({"n": 4096, "k": 4096}, 1, "has no 'hidden_size'"),
        ({"text_config": {}}, 1, "has no 'hidden_size'"),
        (DEEPSEEK_V3 | {"v_head_dim": None}, 1, "'v_head_dim': got nothing"),
    ],
)
def test_what_is_no_config(config: dict[str, Any], tp: int, message: str, path: Path) -> None:
    with pytest.raises(TacticsError) as caught:
        shapes(path, config, tp)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
