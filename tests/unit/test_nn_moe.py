"""`NVFP4MoE`: checkpoints, quantizing plain experts, ranks, routing, tracing."""

from __future__ import annotations

import copy

import pytest
import torch
from models.experts import masked_experts
from torch._dynamo.testing import CompileCounterWithBackend

from fp4aot import fused_moe, nn
from fp4aot._activations import ActivationType
from fp4aot._layouts import SfLayout
from fp4aot.operators.arithmetic.scales import arrange

EXPERTS, HIDDEN, INTER, TOP_K = 4, 96, 64, 2
NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
TENSORS = ("weight", "weight_scale", "weight_scale_2", "input_scale")
SIZES = (0, 2, 3, 16, 129)


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def checkpoint(seed: int = 1, experts: int = EXPERTS) -> dict[str, torch.Tensor]:
    """Make experts' tensors as ModelOpt exports them; no two experts' scales are alike."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for expert in range(experts):
        for name in NAMES:
            rows, columns = (HIDDEN, INTER) if name == "down_proj" else (INTER, HIDDEN)
            scales = torch.randint(1, 120, (rows, columns // 16), generator=generator).byte()
            first = name != "down_proj"
            made = (
                torch.randint(0, 256, (rows, columns // 2), generator=generator).byte(),
                scales.view(torch.float8_e4m3fn),
                torch.tensor((3.1e-5 if first else 4.3e-4) * seed * (1 + expert)),
                torch.tensor((4 if first else 900) / (448 * 6.0) * (1 + expert / 8)),
            )
            tensors |= {
                f"{expert}.{name}.{tensor}": value
                for tensor, value in zip(TENSORS, made, strict=True)
            }
    return tensors


def loaded(tensors: dict[str, torch.Tensor], **options) -> nn.NVFP4MoE:
    module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER, **options)
    module.load_state_dict(tensors)
    return module


def tokens(count: int = 33, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw inputs, selected experts and their weights; a token may select an expert twice."""
    generator = torch.Generator().manual_seed(count + 1000 * seed)
    x = torch.randn(count, HIDDEN, generator=generator).clamp(-4, 4).bfloat16()
    chosen = torch.randint(0, EXPERTS, (count, TOP_K), generator=generator).int()
    return x, chosen, torch.rand(count, TOP_K, generator=generator) + 0.1


def weights(seed: int = 0) -> list[torch.Tensor]:
    """Draw gate, up and down of all experts."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER))
    return [torch.randn(EXPERTS, *shape, generator=generator) / shape[1] ** 0.5 for shape in shapes]


def plain(x, chosen, scales, gate, up, down) -> torch.Tensor:
    """Compute the mixture of unquantized experts, in float32."""
    total = torch.zeros(x.shape)
    for expert in range(EXPERTS):
        hidden = torch.nn.functional.silu(x.float() @ gate[expert].T) * (x.float() @ up[expert].T)
        share = torch.where(chosen == expert, scales, 0.0).sum(dim=1, keepdim=True)
        total += hidden @ down[expert].T * share
    return total


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.float() - exact.float()).norm() / exact.float().norm())


def stack(tensors: dict[str, torch.Tensor], name: str, tensor: str) -> torch.Tensor:
    return torch.stack([tensors[f"{expert}.{name}.{tensor}"] for expert in range(EXPERTS)])


def by_hand(tensors, x, chosen, scales, per_expert: bool = False, **options) -> torch.Tensor:
    """Call the operator with a checkpoint's tensors, without the module."""

    def block_scales(*names: str) -> torch.Tensor:
        parts = [stack(tensors, name, "weight_scale").view(torch.uint8) for name in names]
        return arrange(torch.cat(parts, dim=1), SfLayout.layout_128x4)

    def products(*names: str) -> list[torch.Tensor]:
        scale = stack(tensors, names[0], "input_scale")
        if not per_expert:
            scale = scale.max().reshape(1)
        alpha = scale * stack(tensors, names[0], "weight_scale_2")
        return [1 / scale, block_scales(*names), alpha]

    up, gate, down = (stack(tensors, name, "weight") for name in ("up_proj", *NAMES[::2]))
    quant_scales = [*products("up_proj", "gate_proj"), *products("down_proj")]
    return fused_moe.cutlass_fused_moe(
        x, chosen, scales, torch.cat((up, gate), dim=1), down, x.dtype, quant_scales, **options
    )


# Checkpoints


@pytest.mark.parametrize("per_expert", [False, True])
def test_the_module_is_the_operator(per_expert):
    tensors, arguments = checkpoint(), tokens()
    result = loaded(tensors, per_expert_input_scale=per_expert)(*arguments)
    assert torch.equal(result, by_hand(tensors, *arguments, per_expert=per_expert))
    other = loaded(tensors, per_expert_input_scale=not per_expert)(*arguments)
    assert not torch.equal(result, other)
    assert result.isfinite().all()
    assert result.abs().max() > 0.1


def test_the_module_is_the_loop_over_experts():
    """Nothing of the fused operator is in that loop: order of gate and up, scales, alphas."""
    module, (x, chosen, scales) = loaded(checkpoint()), tokens(130)
    arguments = (x, chosen, scales, module.fc1_weight, module.fc2_weight, *module.quant_scales)
    assert relative_error(module(x, chosen, scales), masked_experts(*arguments)) < 0.005


def test_a_checkpoint_round_trips():
    tensors = checkpoint()
    state = loaded(tensors).state_dict()
    assert list(state) == list(tensors)
    torch.testing.assert_close(dict(state), tensors, rtol=0, atol=0)


def test_the_state_dict_is_no_copy():
    module = loaded(checkpoint())
    module.state_dict()["1.up_proj.weight"].fill_(7)
    assert (module.fc1_weight[1, :INTER] == 7).all()
    assert not (module.fc1_weight[1, INTER:] == 7).all()


def test_from_modelopt_finds_the_experts_under_a_prefix():
    tensors, arguments = checkpoint(), tokens()
    prefix = "model.layers.3.mlp.experts"
    whole = {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
    whole["model.layers.3.mlp.gate.weight"] = torch.zeros(EXPERTS, HIDDEN)
    whole[f"{prefix}_shared.up_proj.weight"] = torch.zeros(3)
    for module in (
        nn.NVFP4MoE.from_modelopt(whole, prefix),
        nn.NVFP4MoE.from_modelopt(whole, prefix + "."),
        nn.NVFP4MoE.from_modelopt(tensors),
    ):
        assert (module.num_experts, module.hidden_size, module.intermediate_size) == (4, 96, 64)
        assert torch.equal(module(*arguments), by_hand(tensors, *arguments))
    with pytest.raises(
        ValueError, match=r"no expert's up_proj\.weight.*under 'model\.layers\.4\.'"
    ):
        nn.NVFP4MoE.from_modelopt(whole, "model.layers.4")


@pytest.mark.parametrize("assign", [False, True])
def test_other_forms_of_the_same_checkpoint(assign):
    tensors, arguments = checkpoint(), tokens()
    expected = loaded(tensors)(*arguments)
    forms = (
        lambda name, t: (name, t.reshape(1) if t.dim() == 0 else t),
        lambda name, t: (name, t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t),
        lambda name, t: (name, t.view(torch.float4_e2m1fn_x2) if t.dtype == torch.uint8 else t),
        lambda name, t: (".".join(MIXTRAL.get(part, part) for part in name.split(".")), t),
    )
    for form in forms:
        module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER)
        module.load_state_dict(dict(form(*item) for item in tensors.items()), assign=assign)
        assert torch.equal(module(*arguments), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"1.up_proj.weight": torch.zeros(INTER, HIDDEN)},
            r"1\.up_proj\.weight: got dtype .*NVFP4",
        ),
        ({"0.w1.weight_scale": torch.zeros(64, 6)}, r"0\.w1\.weight_scale: got dtype torch\.float"),
        (
            {"2.down_proj.weight": torch.zeros(HIDDEN, HIDDEN // 2).byte()},
            r"m\.2\.down_proj\.weight: got shape \[96, 48\], expected \[96, 32\]",
        ),
        ({"3.up_proj.weight_scale": torch.zeros(128, 8).byte()}, r"got shape \[128, 8\]"),
        ({"3.down_proj.input_scale": torch.zeros(2)}, r"got shape \[2\], expected one element"),
        ({"3.down_proj.input_scale": torch.tensor(1.0).double()}, r"input_scale: got dtype"),
        ({"4.up_proj.weight": torch.zeros(INTER, 48).byte()}, r'Unexpected key.*"m\.4\.up_proj'),
        ({"0.up_proj.bias": torch.zeros(INTER)}, r'Unexpected key.*"m\.0\.up_proj\.bias"'),
        ({"0.proj.weight": torch.zeros(INTER)}, r'Unexpected key.*"m\.0\.proj\.weight"'),
        ({"0.w3.weight": torch.zeros(INTER, 48).byte()}, r'Unexpected key.*"m\.0\.w3\.weight"'),
        (
            {"1.gate_proj.weight_scale_2": torch.tensor(0.25)},
            r"m\.1\.up_proj\.weight_scale_2: got 6\.\d+e-05, expected 0\.25, as gate",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit(changes, words):
    model = torch.nn.Module()
    model.m = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER)
    tensors = checkpoint()
    if any(".w1." in name for name in changes):
        del tensors["0.gate_proj.weight_scale"]
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict({f"m.{name}": t for name, t in {**tensors, **changes}.items()})


@pytest.mark.parametrize("name", ["0.gate_proj.weight", "3.down_proj.input_scale"])
def test_a_missing_tensor_is_named(name):
    tensors = checkpoint()
    del tensors[name]
    with pytest.raises(RuntimeError, match=rf'Missing key.*"{name}"'):
        nn.NVFP4MoE.from_modelopt(tensors)
    module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER)
    assert module.load_state_dict(tensors, strict=False).missing_keys == [name]


def test_shards_load_in_any_order():
    """Gate and up may lie in different files: until both are there, nothing is refused."""
    tensors, arguments = checkpoint(), tokens()
    module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER, device="meta")
    for name in reversed(tensors):
        module.load_state_dict({name: tensors[name]}, strict=False, assign=True)
    assert torch.equal(module(*arguments), by_hand(tensors, *arguments))


def test_a_module_made_on_meta():
    tensors, (x, *routing) = checkpoint(), tokens()
    module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER, device="meta")
    assert module(*(tensor.to("meta") for tensor in (x, *routing))).shape == x.shape
    with pytest.raises(RuntimeError, match="experts are on the meta device; pass assign=True"):
        module.load_state_dict(tensors)
    module = module.to_empty(device="cpu")
    module.load_state_dict(tensors)
    assert torch.equal(module(x, *routing), by_hand(tensors, x, *routing))


def test_loading_again_writes_into_the_same_memory():
    """A captured CUDA graph reads from the addresses that it was captured with."""
    first, second, arguments = checkpoint(), checkpoint(seed=2), tokens()
    module = loaded(first)
    before = {name: tensor.data_ptr() for name, tensor in module.named_buffers()}
    module.load_state_dict(second)
    assert {name: tensor.data_ptr() for name, tensor in module.named_buffers()} == before
    assert torch.equal(module(*arguments), by_hand(second, *arguments))
    assert not torch.equal(module(*arguments), by_hand(first, *arguments))


def test_prepare_after_writing_to_a_tensor():
    module, arguments = loaded(checkpoint()), tokens()
    expected = module(*arguments).float()
    module.fc2_weight_scale_2.mul_(2)
    module.prepare()
    assert torch.equal(module(*arguments).float(), 2 * expected)
    module.fc1_weight_scale_2[2, 1] = 0.5
    with pytest.raises(ValueError, match=r"2\.up_proj\.weight_scale_2: got .*expected 0\.5"):
        module.prepare()


def test_a_weight_of_zeros_has_no_scale_of_its_own():
    """ModelOpt's scale of a matrix of zeros is 0, whatever its block scales and codes are."""
    tensors, arguments = checkpoint(), tokens()
    for expert in range(EXPERTS):
        tensors[f"{expert}.gate_proj.weight_scale_2"] = torch.tensor(0.0)
    assert torch.equal(loaded(tensors)(*arguments), torch.zeros(33, HIDDEN).bfloat16())
    x, chosen, scales = tokens()
    tensors = checkpoint() | {"2.up_proj.weight_scale_2": torch.tensor(0.0)}
    expected = by_hand(checkpoint(), x, torch.where(chosen == 2, -1, chosen), scales)
    assert torch.equal(loaded(tensors)(x, chosen, scales), expected)


# The module


def test_a_new_module():
    module = nn.NVFP4MoE(EXPERTS, HIDDEN, INTER)
    assert not list(module.parameters())
    assert list(module.state_dict()) == list(checkpoint())
    assert torch.equal(module(*tokens()), torch.zeros(33, HIDDEN).bfloat16())
    assert (
        "num_experts=4, hidden_size=96, intermediate_size=64, activation=Swiglu, "
        "dtype=torch.bfloat16"
    ) in repr(module)
    module = nn.NVFP4MoE(8, HIDDEN, 128, ep_size=2, ep_rank=1, tp_size=4, dtype=torch.float16)
    assert "tp_rank=0 of 4, ep_rank=1 of 2, dtype=torch.float16" in repr(module)
    assert module.fc1_weight.shape == (4, 64, 48)
    assert next(iter(module.state_dict())) == "4.gate_proj.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 0}, "num_experts=0 is not a positive multiple of ep_size"),
        ({"num_experts": 5, "ep_size": 2}, "num_experts=5 is not a positive multiple of ep_size"),
        ({"hidden_size": 48}, "hidden_size=48 is not a positive multiple of 32"),
        ({"tp_size": 4}, r"intermediate_size=64 is not a positive multiple of 32 \* tp_size"),
        ({"tp_size": 2, "tp_rank": 2}, "tp_rank=2 of tp_size=2"),
        ({"ep_size": 0}, "ep_rank=0 of ep_size=0"),
        ({"ep_rank": -1}, "ep_rank=-1 of ep_size=1"),
        ({"dtype": torch.float32}, "dtype=torch.float32; pass torch.bfloat16"),
        ({"activation_type": ActivationType.Situ}, "Situ.*not in this package; pass one of Gelu"),
    ],
)
def test_a_module_that_cannot_be(changes, words):
    sizes = {"num_experts": EXPERTS, "hidden_size": HIDDEN, "intermediate_size": INTER}
    with pytest.raises(ValueError, match=words):
        nn.NVFP4MoE(**sizes | changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x, chosen, w: (x.float(), chosen, w),
            r"argument 'input': got dtype torch\.float32",
        ),
        (
            lambda x, chosen, w: (x, chosen.long(), w),
            "argument 'token_selected_experts': got dtype",
        ),
        (lambda x, chosen, w: (x, chosen, w[:, :1]), "argument 'token_final_scales': got shape"),
        (lambda x, chosen, w: (x[:, :64], chosen, w), "argument 'fc1_expert_weights': got shape"),
    ],
)
def test_the_wrong_input_is_refused(change, words):
    with pytest.raises(RuntimeError, match=words):
        loaded(checkpoint())(*change(*tokens()))


@pytest.mark.parametrize(
    "convert",
    [
        lambda module: module.half(),
        lambda module: module.double().to("cpu", torch.bfloat16),
        copy.deepcopy,
        lambda module: torch.nn.Sequential(module).half()[0],
    ],
)
def test_conversions_leave_the_numbers_alone(convert):
    module, arguments = loaded(checkpoint()), tokens()
    expected = module(*arguments)
    dtypes = {name: tensor.dtype for name, tensor in module.named_buffers()}
    converted = convert(module)
    assert {name: tensor.dtype for name, tensor in converted.named_buffers()} == dtypes
    assert torch.equal(converted(*arguments), expected)
    converted.load_state_dict(checkpoint(seed=2))
    assert torch.equal(converted(*arguments), by_hand(checkpoint(seed=2), *arguments))


def test_moving_to_another_device_moves_everything():
    module = loaded(checkpoint()).to("meta", torch.float16)
    assert {tensor.device.type for tensor in module.buffers()} == {"meta"}


# Ranks


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 4)])
def test_the_ranks_add_up_to_the_whole(sizes):
    """Each takes its part of the whole checkpoint; what they saved is loaded alike."""
    tp_size, ep_size = sizes
    tensors, arguments = checkpoint(), tokens(130)
    for name in tensors:  # One range, so that each rank quantizes as the whole does.
        if name.endswith("input_scale"):
            tensors[name] = tensors[f"0.{name[2:]}"]
    expected = by_hand(tensors, *arguments).float()
    total, saved = torch.zeros_like(expected), set()
    for rank in range(tp_size * ep_size):
        options = {
            "tp_size": tp_size,
            "tp_rank": rank % tp_size,
            "ep_size": ep_size,
            "ep_rank": rank // tp_size,
        }
        module = loaded(tensors, **options)
        part = module(*arguments)
        state = module.state_dict()
        assert torch.equal(loaded(state, **options)(*arguments), part)
        assert relative_error(part, expected) > 0.1
        total += part.float()
        saved |= set(state)
    assert relative_error(total, expected) < 0.01
    assert saved == set(tensors)


def test_a_rank_misses_its_own_experts_alone():
    tensors = {name: t for name, t in checkpoint().items() if int(name[0]) < 2}
    assert loaded(tensors, ep_size=2, ep_rank=0).fc1_weight.any()
    with pytest.raises(
        RuntimeError, match=r'Missing key\(s\) in state_dict: "2\.gate_proj\.weight"'
    ):
        loaded(tensors, ep_size=2, ep_rank=1)


# Quantizing plain experts


def expert_modules(stacks: list[torch.Tensor], names: tuple[str, ...]) -> list[torch.nn.Module]:
    modules = []
    for rows in zip(*stacks, strict=True):
        modules.append(torch.nn.Module())
        for name, weight in zip(names, rows, strict=True):
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = torch.nn.Parameter(weight)
            modules[-1].add_module(name, linear)
    return modules


def test_quantized_experts_compute_what_the_plain_ones_do():
    stacks, arguments = weights(), tokens(130)
    module = nn.NVFP4MoE.from_weights(*stacks, (4.0, 4.0))
    assert 0.1 < relative_error(module(*arguments), plain(*arguments, *stacks)) < 0.3
    assert module.fc1_weight_scale.float().amax(dim=(1, 2)).tolist() == [448] * EXPERTS
    gate, up, _ = (stack.bfloat16().abs().amax(dim=(1, 2)).float() for stack in stacks)
    expected = torch.maximum(gate, up) / (448 * 6)
    torch.testing.assert_close(module.fc1_weight_scale_2, expected.unsqueeze(1).expand(-1, 2))
    reloaded = nn.NVFP4MoE.from_modelopt(module.state_dict())
    assert torch.equal(reloaded(*arguments), module(*arguments))


def test_experts_as_modules_and_as_stacked_weights_are_alike():
    gate, up, down = weights()
    arguments = tokens()
    expected = nn.NVFP4MoE.from_weights(gate, up, down, (4.0, 5.0))(*arguments)
    for stacks, names in (
        ([gate, up, down], NAMES),
        ([gate, up, down], ("w1", "w3", "w2")),
        ([torch.cat((gate, up), dim=1), down], ("gate_up_proj", "down_proj")),
    ):
        modules = expert_modules(stacks, names)
        amaxes = (torch.tensor(4.0), torch.full((EXPERTS,), 5.0, requires_grad=True))
        result = nn.NVFP4MoE.from_linears(modules, amaxes)(*arguments)
        assert torch.equal(result, expected)
        assert not result.requires_grad


def test_a_range_for_each_expert():
    amaxes = (torch.tensor([1.0, 2, 3, 4]), torch.tensor([8.0, 7, 6, 5]))
    module = nn.NVFP4MoE.from_weights(*weights(), amaxes, per_expert_input_scale=True)
    torch.testing.assert_close(module.fc1_act_global_scale, 448 * 6 / amaxes[0])
    torch.testing.assert_close(module.fc2_act_global_scale, 448 * 6 / amaxes[1])
    module = nn.NVFP4MoE.from_weights(*weights(), amaxes)
    torch.testing.assert_close(module.fc1_act_global_scale, torch.tensor([448 * 6 / 4.0]))


def test_a_rank_quantizes_its_part():
    stacks, options = weights(), {"tp_size": 2, "tp_rank": 1, "ep_size": 2, "ep_rank": 1}
    whole = nn.NVFP4MoE.from_weights(*stacks, (4.0, 5.0))
    part = nn.NVFP4MoE.from_weights(*stacks, (4.0, 5.0), **options)
    expected = nn.NVFP4MoE.from_modelopt(whole.state_dict(), **options)
    torch.testing.assert_close(part.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_plain_activation_has_no_gate():
    _, up, down = weights()
    options = {"activation_type": ActivationType.Relu2, "dtype": torch.float16}
    module = nn.NVFP4MoE.from_weights(None, up, down, (4.0, 8.0), **options)
    assert {name.split(".")[1] for name in module.state_dict()} == {"up_proj", "down_proj"}
    x, chosen, scales = tokens(130)
    exact = torch.zeros(x.shape)
    for expert in range(EXPERTS):
        hidden = (x.float() @ up[expert].T).relu().square()
        share = torch.where(chosen == expert, scales, 0.0).sum(dim=1, keepdim=True)
        exact += hidden @ down[expert].T * share
    assert 0.1 < relative_error(module(x.half(), chosen, scales), exact) < 0.35
    modules = expert_modules([up, down], ("up_proj", "down_proj"))
    other = nn.NVFP4MoE.from_linears(modules, (4.0, 8.0), **options)
    assert torch.equal(other(x.half(), chosen, scales), module(x.half(), chosen, scales))


def test_experts_that_cannot_be_quantized():
    gate, up, down = weights()
    quantize, linears = nn.NVFP4MoE.from_weights, nn.NVFP4MoE.from_linears
    with pytest.raises(ValueError, match=r"got shapes \[\[4, 64, 96\], \[4, 64, 96\], \[4, 64, 96"):
        quantize(gate, up, up, (1.0, 1.0))
    with pytest.raises(ValueError, match=r"input_amax has \[1, 3\] values; pass .* or 4"):
        quantize(gate, up, down, (1.0, torch.ones(3)))
    with pytest.raises(ValueError, match="has 3 weights, but activation Gelu needs up_proj, down"):
        quantize(gate, up, down, (1.0, 1.0), activation_type=ActivationType.Gelu)
    with pytest.raises(ValueError, match="has 2 weights, but activation Swiglu needs gate_proj"):
        quantize(None, up, down, (1.0, 1.0))
    with pytest.raises(ValueError, match=r"expert 0 has the linear layers \['a', 'b'\]; expected"):
        linears(expert_modules([up, down], ("a", "b")), (1.0, 1.0))
    with pytest.raises(ValueError, match="experts is empty"):
        linears([], (1.0, 1.0))
    modules = expert_modules([gate, up, down], NAMES)
    modules[2].up_proj.bias = torch.nn.Parameter(torch.zeros(INTER))
    with pytest.raises(ValueError, match=r"expert 2 has biases in \['up_proj'\]"):
        linears(modules, (1.0, 1.0))
    modules = expert_modules([gate, up, down], NAMES)
    modules[3].down_proj = torch.nn.Linear(32, HIDDEN, bias=False)
    with pytest.raises(ValueError, match=r"expert 3, down_proj\.weight: got shape \[96, 16\]"):
        linears(modules, (1.0, 1.0))


# Routing


def test_softmax_routing():
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    scores = logits.float().softmax(dim=1)
    best, order = scores.topk(3, dim=1)
    chosen, scales = nn.route(logits, 3)
    assert (chosen.dtype, scales.dtype) == (torch.int32, torch.float32)
    assert torch.equal(chosen.long(), order)
    torch.testing.assert_close(scales, best / best.sum(dim=1, keepdim=True))
    torch.testing.assert_close(nn.route(logits, 3, renormalize=False)[1], best)
    # All of them: nothing is left out.
    torch.testing.assert_close(nn.route(logits, 8)[1].sum(dim=1), torch.ones(50))


@pytest.mark.parametrize("factor", [2.5, torch.tensor(2.5)])
def test_sigmoid_routing_with_a_correction(factor):
    """The correction takes part in the choice, and not in the weights."""
    generator = torch.Generator().manual_seed(2)
    logits, bias = torch.randn(50, 8, generator=generator), torch.zeros(8)
    bias[5], bias[6] = 2, -2
    chosen, scales = nn.route(logits, 2, "sigmoid", True, bias, factor)
    assert (chosen[:, 0] == 5).all()
    assert not (chosen == 6).any()
    picked = logits.sigmoid().gather(1, chosen.long())
    torch.testing.assert_close(scales, 2.5 * picked / picked.sum(dim=1, keepdim=True))
    # Scores that are all zero divide by nothing.
    assert nn.route(torch.full((3, 8), -1e4), 2, "sigmoid")[1].isfinite().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scoring": "relu"}, "scoring='relu'; pass 'softmax' or 'sigmoid'"),
        ({"top_k": 0}, "top_k=0 of 8 experts"),
        ({"top_k": 9}, "top_k=9 of 8 experts"),
        ({"correction_bias": torch.zeros(4)}, r"correction_bias of shape \[4\] with 8 experts"),
        ({"router_logits": torch.zeros(5, 8).long()}, r"router_logits is torch\.int64 of shape"),
        (
            {"router_logits": torch.zeros(5, 2, 8)},
            r"router_logits is .* of shape \[5, 2, 8\]; pass float",
        ),
    ],
)
def test_routing_that_cannot_be(changes, words):
    arguments = {"router_logits": torch.zeros(5, 8), "top_k": 2} | changes
    with pytest.raises(ValueError, match=f"fp4aot.nn.route: {words}"):
        nn.route(**arguments)


def test_router_to_output():
    module, (x, *_) = loaded(checkpoint()), tokens()
    logits = torch.randn(33, EXPERTS, generator=torch.Generator().manual_seed(3))
    options = ("sigmoid", False, torch.linspace(0, 1, EXPERTS), 1.5)
    expected = module(x, *nn.route(logits, TOP_K, *options))
    assert torch.equal(module.routed(x, logits, TOP_K, *options), expected)
    with pytest.raises(ValueError, match=r"router_logits of shape \[33, 3\] with 4 experts"):
        module.routed(x, logits[:, :3], TOP_K)


# Tracing


class Routed(torch.nn.Module):
    """A router and its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, EXPERTS, bias=False).bfloat16().requires_grad_(False)
        self.gate.weight.copy_(torch.randn(EXPERTS, HIDDEN, generator=torch.Generator()))
        self.experts = loaded(checkpoint())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts.routed(x, self.gate(x), TOP_K)


def test_one_graph_from_router_to_output():
    model = Routed()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for count in SIZES[1:]:
        x, *_ = tokens(count)
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert targets.count("fp4aot.cutlass_fused_moe.default") == 1
    model.load_state_dict(
        {"gate.weight": model.gate.weight}
        | {f"experts.{name}": tensor for name, tensor in checkpoint(seed=2).items()}
    )
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1


def test_an_exported_model_equals_eager():
    model = Routed()
    shapes = ({0: torch.export.Dim("tokens")},)
    program = torch.export.export(model, (tokens(8)[0],), dynamic_shapes=shapes)
    for count in SIZES:
        x, *_ = tokens(count)
        assert torch.equal(program.module()(x), model(x))
