"""Which shapes are tuned: lists, and the linear layers of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.shapes import MoeShape, Shape, read

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
    return {(shape.n, shape.k): shape.name for shape in read(path, tp).dense}


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
    assert [(s.n, s.k) for s in read(path.parent).dense] == list(shapes(path, LLAMA_3_8B))


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


# Mixtures of experts

GLM_5 = DEEPSEEK_V3 | {"hidden_size": 6144, "n_routed_experts": 256, "num_experts_per_tok": 8}


def mixtures(path: Path, content: Any, tp: int = 1, ep: int = 1) -> list[MoeShape]:
    path.write_text(json.dumps(content))
    return read(path, tp, ep).moe


@pytest.mark.parametrize(
    ("tp", "ep", "inter", "experts"),
    [(1, 1, 2048, 256), (8, 1, 256, 256), (8, 8, 2048, 32), (8, 2, 512, 128), (1, 8, 2048, 32)],
)
def test_a_models_experts(tp: int, ep: int, inter: int, experts: int, path: Path) -> None:
    assert mixtures(path, GLM_5, tp, ep) == [
        MoeShape(6144, inter, experts, 8, ep, "routed experts")
    ]


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (QWEN3_30B_A3B | {"num_experts": 128, "num_experts_per_tok": 8}, (2048, 768, 128, 8)),
        # Mixtral: experts have the size of the feed-forward layer, in whose place they are.
        (LLAMA_3_8B | {"num_local_experts": 8, "num_experts_per_tok": 2}, (4096, 14336, 8, 2)),
        ({"text_config": GLM_5, "hidden_size_": 0}, (6144, 2048, 256, 8)),
    ],
)
def test_models_name_their_experts_differently(
    config: dict[str, Any], shape: tuple[int, ...], path: Path
) -> None:
    assert [found.key for found in mixtures(path, config)] == [shape]


def test_a_model_without_experts_has_none(path: Path) -> None:
    assert mixtures(path, LLAMA_3_8B) == []
    assert mixtures(path, LLAMA_3_8B | {"num_experts": 0}) == []


@pytest.mark.parametrize(
    ("change", "tp", "ep", "message"),
    [
        ({"num_experts_per_tok": None}, 1, 1, "'num_experts_per_tok': got nothing"),
        ({}, 1, 7, "has 256 experts, which --ep 7 does not divide"),
        ({}, 32, 48, "--ep 48 and --tp 32: one of them has to divide the other"),
        ({"n_routed_experts": "256"}, 1, 1, "'n_routed_experts': got '256'"),
    ],
)
def test_experts_that_cannot_be(
    change: dict[str, Any], tp: int, ep: int, message: str, path: Path
) -> None:
    config = GLM_5 | change | {"num_attention_heads": 96, "intermediate_size": 12288}
    with pytest.raises(TacticsError) as caught:
        mixtures(path, config, tp, ep)
    assert message in str(caught.value)


def test_a_list_of_both(path: Path) -> None:
    mixture = {"hidden_size": 64, "intermediate_size": 32, "experts": 4, "top_k": 2}
    content = [[32, 64], mixture, mixture | {"ep_size": 4, "top_k": 16}, mixture | {"name": "b"}]
    path.write_text(json.dumps(content))
    found = read(path)
    assert found.dense == [Shape(32, 64)]
    assert found.moe == [MoeShape(64, 32, 4, 2, 1, "b"), MoeShape(64, 32, 4, 16, 4)]
    assert [shape.fits for shape in found.moe] == [True, True]
    assert not MoeShape(64, 48, 4, 2).fits


@pytest.mark.parametrize(
    "change", [{"top_k": 5}, {"top_k": 0}, {"experts": None}, {"experts": True}, {"ep_size": "2"}]
)
def test_what_is_no_mixture(change: dict[str, Any], path: Path) -> None:
    item = {"hidden_size": 64, "intermediate_size": 32, "experts": 4, "top_k": 2} | change
    with pytest.raises(TacticsError, match=r"item 0: got .*\"experts\": E"):
        mixtures(path, [item])
