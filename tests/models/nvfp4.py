"""A model's projections and experts in NVFP4."""

from __future__ import annotations

import copy
import re

import torch

from fp4aot import nn
from models.layers import Glm5, MoE

# What NVFP4 checkpoints of such models leave in bfloat16 (routers are no linear layers here).
_KEPT = re.compile(r"lm_head|indexer\.(?:wk|weights_proj)$")
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.(\w+)$")


@torch.no_grad()
def quantize(model: Glm5, sample: tuple[torch.Tensor, torch.Tensor]) -> Glm5:
    """Return a copy in NVFP4, calibrated on a sample's ids and positions.

    Every projection becomes `fp4aot.nn.NVFP4Linear`, and every mixture's experts become
    `fp4aot.nn.NVFP4MoE`, with ModelOpt's tensors and one input scale for each of their two
    products.
    """
    model = copy.deepcopy(model)
    with nn.record_input_amax(model) as amax:
        model(*sample)
    largest: dict[tuple[str, int], torch.Tensor] = {}
    for name in list(amax):
        if match := _EXPERT.match(name):
            key = (match[1], 1 if match[2] == "gate_up_proj" else 2)
            seen = amax.pop(name)
            largest[key] = torch.maximum(largest.get(key, seen), seen)
        elif _KEPT.search(name):
            del amax[name]
    nn.replace_linears(model, amax)
    for name, module in model.named_modules():
        if isinstance(module, MoE):
            module.experts = NVFP4Experts.from_linears(
                module.experts, (largest[f"{name}.experts", 1], largest[f"{name}.experts", 2])
            )
    return model


class NVFP4Experts(nn.NVFP4MoE):
    """The fused operator, or the operator of this folder around it to split a graph at."""

    def forward(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, split: bool
    ) -> torch.Tensor:
        """Return `[T, hidden]`."""
        if not split:
            return super().forward(x, chosen, weights)
        output = torch.empty_like(x)
        torch.ops.glm5.moe(*self.arguments(x, chosen, weights), output)
        return output

    def arguments(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return what `experts.masked_experts` takes."""
        return (x, chosen, weights, self.fc1_weight, self.fc2_weight, *self.quant_scales)
