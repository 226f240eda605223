"""Random weights with what makes real ones hard to quantize, and random tokens."""

from __future__ import annotations

import torch

from models.config import Glm5Config
from models.layers import Glm5


@torch.no_grad()
def build(config: Glm5Config, seed: int = 0) -> Glm5:
    """Build a bfloat16 model in evaluation mode.

    Matrices are Gaussian, so wide that activations keep their size; every hundredth input channel
    (at least one) is eight times larger, and norms have such channels too: language models show
    both, and they are what NVFP4's blocks of 16 are there for. Layers that write into the residual
    stream are smaller, as trained ones are.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Glm5(config).eval().requires_grad_(False)
    depth = (2 * config.num_hidden_layers) ** -0.5
    for name, tensor in model.named_parameters():
        values = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() == 1:
            if name.endswith("e_score_correction_bias"):
                values *= 0.05
            elif name.endswith("bias"):
                values *= 0.1
            else:
                values = torch.exp(0.2 * values)
                values[_outliers(len(values), generator)] *= 4
        elif not name.startswith("embed_tokens"):
            columns = tensor.shape[1]
            values[:, _outliers(columns, generator)] *= 8
            values /= values.square().mean().sqrt() * columns**0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                values *= depth
        tensor.copy_(values)
    return model


def tokens(
    config: Glm5Config, count: int, seed: int = 0, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw token ids `[count]`; return them with their positions."""
    generator = torch.Generator().manual_seed(1000 * seed + count)
    ids = torch.randint(0, config.vocab_size, (count,), generator=generator)
    return ids.to(device), torch.arange(count, device=device)


def _outliers(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(size, generator=generator)[: max(1, size // 100)]
