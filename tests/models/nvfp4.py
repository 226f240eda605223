"""A model's projections and experts in NVFP4."""

from __future__ import annotations

import copy
import re

import torch

from fp4aot import nn
from models.experts import masked_experts
from models.layers import Experts, Glm5, MoE

# What NVFP4 checkpoints of such models leave in bfloat16 (routers are no linear layers here).
_KEPT = re.compile(r"lm_head|indexer\.(?:wk|weights_proj)$")
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.(\w+)$")


@torch.no_grad()
def quantize(model: Glm5, sample: tuple[torch.Tensor, torch.Tensor]) -> Glm5:
    """Return a copy in NVFP4, calibrated on a sample's ids and positions.

    Every projection becomes `fp4aot.nn.NVFP4Linear`, with ModelOpt's tensors. All experts of a
    layer get one input scale for each of their two GEMMs, as a fused operator wants it.
    """
    model = copy.deepcopy(model)
    with nn.record_input_amax(model) as amax:
        model(*sample)
    kept = [name for name in amax if _KEPT.search(name)]
    for name in kept:
        del amax[name]
    shared: dict[tuple[str, ...], list[str]] = {}
    for name in amax:
        if match := _EXPERT.match(name):
            shared.setdefault(match.groups(), []).append(name)
    for names in shared.values():
        largest = torch.stack([amax[name] for name in names]).amax()
        amax.update(dict.fromkeys(names, largest))
    nn.replace_linears(model, amax)
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, Experts):
            module.experts = NVFP4Experts(module.experts)
    return model


class NVFP4Experts(torch.nn.Module):
    """The experts' tensors, stacked as `cutlass_fused_moe` takes them.

    Buffers are named as that function's arguments: see `experts.masked_experts`.
    """

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        for number, name in ((1, "gate_up_proj"), (2, "down_proj")):
            layers: list[nn.NVFP4Linear] = [getattr(expert, name) for expert in experts]
            self._stack(f"fc{number}_expert_weights", [layer.weight for layer in layers])
            self._stack(
                f"fc{number}_weight_block_sf", [layer.swizzled_weight_scale for layer in layers]
            )
            self._stack(f"fc{number}_global", [layer.alpha.reshape(()) for layer in layers])
            scales = torch.cat([layer.input_global_scale for layer in layers])
            assert (scales == scales[0]).all(), "the experts' input scales differ"
            self.register_buffer(f"fc{number}_act_global", scales[:1].clone())

    def _stack(self, name: str, tensors: list[torch.Tensor]) -> None:
        self.register_buffer(name, torch.stack(tensors))

    def forward(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, split: bool
    ) -> torch.Tensor:
        """Return `[T, hidden]`."""
        arguments = (
            x,
            chosen,
            weights,
            self.fc1_expert_weights,
            self.fc2_expert_weights,
            self.fc1_act_global,
            self.fc1_weight_block_sf,
            self.fc1_global,
            self.fc2_act_global,
            self.fc2_weight_block_sf,
            self.fc2_global,
        )
        if not split:
            return masked_experts(*arguments)
        output = torch.empty_like(x)
        torch.ops.glm5.moe(*arguments, output)
        return output
