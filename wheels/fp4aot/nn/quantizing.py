"""From an expert's plain weights to the tensors that a checkpoint would hold of it."""

from __future__ import annotations

import torch

from fp4aot.nn.ranges import amax_of, scale_of

# Gate and up in one layer, gate rows first, as servers fuse them.
_FUSED = "gate_up_proj"
_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


def weights_of(expert: torch.nn.Module, is_gated: bool, where: str) -> list[torch.Tensor]:
    """Return an expert's gate, up and down weights, or up and down where there is no gate.

    Raises
    ------
    ValueError
        Its linear layers have other names, or biases.
    """
    linears = {
        name: child for name, child in expert.named_children() if isinstance(child, torch.nn.Linear)
    }
    wanted = [*(names if is_gated else names[1:] for names in _NAMES)]
    if is_gated:
        wanted.append((_FUSED, "down_proj"))
    names = next((names for names in wanted if linears.keys() >= set(names)), None)
    if names is None:
        raise ValueError(
            f"{where} has the linear layers {sorted(linears)}; expected "
            + " or ".join(", ".join(names) for names in wanted)
        )
    if biased := [name for name in names if linears[name].bias is not None]:
        raise ValueError(
            f"{where} has biases in {biased}; call fp4aot.cutlass_fused_moe, which takes them"
        )
    weights = [linears[name].weight.detach() for name in names]
    if names[0] == _FUSED:
        weights = [*weights[0].chunk(2), weights[1]]
    return weights


def quantize(
    weights: dict[str, torch.Tensor], amaxes: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Quantize an expert's weights.

    Parameters
    ----------
    weights
        By projection. Rounded to bfloat16 first, unless float16. Those of the first product get one
        `weight_scale_2`, as ModelOpt gives them.
    amaxes
        Largest magnitude of each product's inputs, float32 scalars.

    Returns
    -------
    dict
        `gate_proj.weight` and so on.
    """
    tensors = {}
    first = [name for name in weights if name != "down_proj"]
    for names, amax in ((first, amaxes[0]), (["down_proj"], amaxes[1])):
        rounded = [_rounded(weights[name]) for name in names]
        scale = scale_of(torch.stack([amax_of(weight) for weight in rounded]).amax())
        for name, weight in zip(names, rounded, strict=True):
            values, block_scales = torch.ops.fp4aot.fp4_quantize.default(
                weight.contiguous(), 1 / scale, is_sf_swizzled_layout=False
            )
            tensors[f"{name}.weight"] = values
            tensors[f"{name}.weight_scale"] = block_scales.view(torch.uint8).reshape(
                weight.shape[0], -1
            )
            tensors[f"{name}.weight_scale_2"] = scale
            tensors[f"{name}.input_scale"] = scale_of(amax.to(weight.device))
    return tensors


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    weight = weight.detach()
    return weight if weight.dtype == torch.float16 else weight.to(torch.bfloat16)
