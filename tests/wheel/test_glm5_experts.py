"""The experts of a model with GLM-5's structure in NVFP4, on the CPU reference (1, 2, 24).

The model is traced whole, with its experts as one operator, and one graph serves however tokens are
routed: at random, all to one expert, to the same expert twice, to none; also for zero tokens and
for one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from models import glm5
from models.experts import masked_experts
from models.layers import MoE
from torch._dynamo.testing import CompileCounterWithBackend

from fp4aot import nn

SIZES = (2, 7, 33, 129)
CONFIG = glm5.TINY
EXPERTS = CONFIG.n_routed_experts


PLACES = 12


class FixedRouter(torch.nn.Module):
    """Routes tokens by their places: those of a table, again and again."""

    def __init__(self) -> None:
        super().__init__()
        shape = (PLACES, CONFIG.num_experts_per_tok)
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("chosen", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("weights", torch.rand(shape, generator=generator) + 0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(x.shape[0], device=x.device) % self.chosen.shape[0]
        return self.chosen[rows], self.weights[rows]


def random_experts() -> torch.Tensor:
    """Draw two different experts for each place."""
    scores = torch.rand(PLACES, EXPERTS, generator=torch.Generator().manual_seed(1))
    return scores.topk(CONFIG.num_experts_per_tok, dim=1).indices


def repeated(*experts: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(experts).repeat(PLACES // len(experts), 1)


ROUTES = {
    "random": random_experts(),
    "one expert": repeated((2, -1)),
    "the same expert twice": repeated((3, 3)),
    "some twice": repeated((1, 1), (0, 2), (3, 3)),
    "none": repeated((-1, -1)),
    "some none": repeated((-1, 0), (2, EXPERTS), (-1, -1)),
}


@pytest.fixture(scope="module")
def quantized() -> glm5.Glm5:
    """Calibrated on tokens that no test uses."""
    return glm5.quantize(glm5.build(CONFIG), glm5.tokens(CONFIG, 256, seed=1))


@pytest.fixture
def routed(quantized) -> Iterator[glm5.Glm5]:
    """Give the model a router that does not look at its input."""
    mixture = mixture_of(quantized)
    learned, mixture.gate = mixture.gate, FixedRouter()
    yield quantized
    mixture.gate = learned
    glm5.split_at(quantized)


def each_route(*models: torch.nn.Module) -> Iterator[str]:
    """Set the routers of some modules to each of the routes."""
    for name, chosen in ROUTES.items():
        for model in models:
            (table,) = [b for n, b in model.named_buffers() if n.endswith("mlp.gate.chosen")]
            table.copy_(chosen)
        yield name


def mixture_of(model: glm5.Glm5) -> MoE:
    (mixture,) = [module for module in model.modules() if isinstance(module, MoE)]
    return mixture


def hidden(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, CONFIG.hidden_size, generator=generator).to(torch.bfloat16)


def test_the_whole_model_is_one_graph_for_all_routes_and_token_counts(routed):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(routed, fullgraph=True, dynamic=True, backend=counter)
    for route in each_route(routed):
        for count in SIZES:
            arguments = glm5.tokens(CONFIG, count)
            assert torch.equal(compiled(*arguments), routed(*arguments)), (route, count)
    assert counter.frame_count == 1
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert targets.count("fp4aot.cutlass_fused_moe.default") == 1


@pytest.mark.parametrize("count", [0, 1])
def test_zero_tokens_and_one(routed, count):
    arguments = glm5.tokens(CONFIG, count)
    compiled = torch.compile(routed, fullgraph=True, backend="aot_eager")
    for route in each_route(routed):
        result = routed(*arguments)
        assert result.shape == (count, CONFIG.vocab_size)
        assert result.isfinite().all()
        assert torch.equal(compiled(*arguments), result), route


def test_the_fused_operator_against_a_loop_over_experts(routed):
    """Equal but for the order of sums: half a unit of bfloat16, and codes that it moves."""
    mixture = mixture_of(routed)
    for route in each_route(routed):
        for count in (0, 1, 130):
            x = hidden(count)
            chosen, weights = mixture.gate(x)
            result = mixture.experts(x, chosen, weights, split=False)
            expected = masked_experts(*mixture.experts.arguments(x, chosen, weights))
            assert result.shape == x.shape
            difference = (result.float() - expected.float()).norm()
            assert difference <= 0.005 * expected.float().norm(), (route, count)
            here = ((chosen >= 0) & (chosen < EXPERTS)).any(dim=1)
            assert (result != 0).any(dim=1).equal(here)


def test_the_routes_change_the_logits(routed):
    """A model whose experts do nothing would prove nothing."""
    results = [routed(*glm5.tokens(CONFIG, 33)) for _ in each_route(routed)]
    for number, result in enumerate(results):
        assert not any(torch.equal(result, other) for other in results[:number])


def test_split_from_the_graph_they_compute_the_same(routed):
    for count in (0, 1, 33):
        arguments = glm5.tokens(CONFIG, count)
        for route in each_route(routed):
            glm5.split_at(routed)
            expected = routed(*arguments)
            glm5.split_at(routed, "moe")
            assert torch.equal(routed(*arguments), expected), (route, count)


def test_the_model_saves_a_checkpoints_expert_tensors(quantized):
    """Under the names that ModelOpt exports; another module loads them and computes the same."""
    mixture, state = mixture_of(quantized), quantized.state_dict()
    prefix = f"layers.{CONFIG.first_k_dense_replace}.mlp.experts"
    assert state[f"{prefix}.3.down_proj.weight_scale"].dtype == torch.float8_e4m3fn
    experts = nn.NVFP4MoE.from_modelopt(state, prefix)
    x = hidden(50)
    chosen, weights = mixture.gate(x)
    result = experts(x, chosen, weights)
    assert torch.equal(result, mixture.experts(x, chosen, weights, split=False))
    # Two ranks, each with half of the experts.
    parts = [
        nn.NVFP4MoE.from_modelopt(state, prefix, ep_size=2, ep_rank=rank)(x, chosen, weights)
        for rank in range(2)
    ]
    torch.testing.assert_close(sum(parts), result, rtol=0.02, atol=0.02)


def test_one_exported_program_serves_all_routes(routed):
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    program = torch.export.export(
        routed, glm5.tokens(CONFIG, 33), dynamic_shapes=({0: tokens}, {0: tokens})
    )
    exported = program.module()
    for route in each_route(routed, exported):
        for count in SIZES:
            arguments = glm5.tokens(CONFIG, count)
            assert torch.equal(exported(*arguments), routed(*arguments)), (route, count)
