"""The stacked tensors of experts: what they are named in checkpoints, and what kernels read."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import _layouts
from fp4aot.nn import checkpoint, expert_tensors
from fp4aot.nn.expert_tensors import Place
from fp4aot.nn.prepared import Prepared
from fp4aot.nn.ranges import BLOCK, usable
from fp4aot.operators.arithmetic import scales


class StackedExperts(Prepared):
    """The tensors of a rank's experts, stacked. `NVFP4MoE` describes them.

    Parameters
    ----------
    num_experts, hidden_size, intermediate_size
        Of all ranks.
    is_gated
        Whether experts have a gate.
    tp_size, tp_rank, ep_size, ep_rank
        Which part is this rank's.
    per_expert_input_scale
        Whether each expert's inputs have a scale of their own.
    device
        Where the tensors are.
    """

    fc1_weight: torch.Tensor
    fc1_weight_scale_2: torch.Tensor
    fc1_weight_block_scales: torch.Tensor
    fc1_alpha: torch.Tensor
    fc1_act_global_scale: torch.Tensor
    fc2_weight: torch.Tensor
    fc2_weight_block_scales: torch.Tensor
    fc2_alpha: torch.Tensor
    fc2_act_global_scale: torch.Tensor

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        is_gated: bool,
        tp_size: int,
        tp_rank: int,
        ep_size: int,
        ep_rank: int,
        per_expert_input_scale: bool,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.num_experts, self.num_local_experts = num_experts, num_experts // ep_size
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.tp_size, self.tp_rank, self.ep_size, self.ep_rank = tp_size, tp_rank, ep_size, ep_rank
        self.per_expert_input_scale = per_expert_input_scale
        self._projections = expert_tensors.projections(is_gated)
        self._first_expert = ep_rank * self.num_local_experts

        local = intermediate_size // tp_size
        for product, parts, rows, columns in (
            (1, 2, 2 * local, hidden_size) if is_gated else (1, 1, local, hidden_size),
            (2, 1, hidden_size, local),
        ):
            for name, shape in (
                ("weight", (rows, columns // 2)),
                ("weight_scale", (rows, columns // BLOCK)),
                ("weight_scale_2", (parts,)),
                ("input_scale", (parts,)),
            ):
                held = checkpoint.DTYPES[name][0]
                # torch does not fill float8 tensors on every device; their bytes it does.
                filled = torch.uint8 if held == torch.float8_e4m3fn else held
                zeros = torch.zeros((self.num_local_experts, *shape), dtype=filled, device=device)
                # `state_dict` has each expert's own tensors instead.
                self.register_buffer(f"fc{product}_{name}", zeros.view(held), persistent=False)
        for name, tensor in self._prepared().items():
            self.register_buffer(name, tensor, persistent=False)

    def prepare(self) -> None:
        """Make what the kernels read of what checkpoints hold.

        Writes into the tensors that are there, so that a captured CUDA graph stays valid when the
        experts are loaded again.

        Raises
        ------
        ValueError
            An expert's gate and up have different `weight_scale_2`.
        """
        if differing := self._differing():
            raise ValueError("fp4aot.nn.NVFP4MoE: " + "; ".join(differing))
        super().prepare()

    def _differing(self) -> list[str]:
        """Name the experts whose gate and up no single alpha can serve."""
        global_scales = self.fc1_weight_scale_2
        if global_scales.is_meta or global_scales.shape[1] == 1:
            return []
        up, gate = global_scales.unbind(dim=1)
        # One of 0 is that of a matrix of zeros, or has not been loaded yet.
        wrong = ((up != gate) & (up != 0) & (gate != 0)).nonzero().flatten().tolist()
        return [
            f"{self._first_expert + expert}.up_proj.weight_scale_2: got {float(up[expert])}, "
            f"expected {float(gate[expert])}, as gate_proj has: the kernels have one alpha for "
            "both; quantize them with one weight_scale_2, as ModelOpt's export does"
            for expert in wrong
        ]

    def _prepared(self) -> dict[str, torch.Tensor]:
        tensors = {}
        for product in (1, 2):
            weight_scale_2 = self._stacked(product, "weight_scale_2")
            scale_bytes = self._stacked(product, "weight_scale").view(torch.uint8)
            # Parts whose weight_scale_2 is 0 are zeros whatever they hold; alpha is the other's.
            parts = scale_bytes.view(*weight_scale_2.shape, -1, scale_bytes.shape[-1])
            parts = parts.masked_fill((weight_scale_2 == 0)[:, :, None, None], 0)
            input_scale = self._stacked(product, "input_scale").amax(dim=1)
            if not self.per_expert_input_scale:
                input_scale = input_scale.amax(dim=0, keepdim=True)
            input_scale = usable(input_scale)
            prefix = f"fc{product}_"
            tensors[prefix + "weight_block_scales"] = scales.arrange(
                parts.flatten(1, 2), _layouts.SfLayout.layout_128x4
            )
            tensors[prefix + "alpha"] = input_scale * weight_scale_2.amax(dim=1)
            tensors[prefix + "act_global_scale"] = 1 / input_scale
        return tensors

    def state_dict_views(self) -> dict[str, torch.Tensor]:
        """Return a checkpoint's tensors of this rank's experts, as views of the stacked ones."""
        here = range(self._first_expert, self._first_expert + self.num_local_experts)
        places = (
            Place(expert, projection, name)
            for expert in here
            for projection in self._projections
            for name in checkpoint.DTYPES
        )
        return {place.key: self._view(place) for place in places}

    def is_here(self, expert: int) -> bool:
        """Whether an expert is one of this rank's."""
        return 0 <= expert - self._first_expert < self.num_local_experts

    def take(self, place: Place, tensor: torch.Tensor) -> str | None:
        """Copy a checkpoint's tensor to where it belongs; say why if that cannot be.

        One of another rank's experts is left alone. One of all ranks of tensor parallelism is cut.
        """
        if not self.is_here(place.expert):
            return None
        if refusal := checkpoint.refusal(place.tensor, tensor):
            return refusal
        target = self._view(place)
        if target.dim() == 0:
            tensor = tensor.reshape(())
        else:
            dim = 0 if place.projection.product == 1 else 1
            whole = list(target.shape)
            whole[dim] *= self.tp_size
            if list(tensor.shape) == whole:
                tensor = tensor.narrow(dim, self.tp_rank * target.shape[dim], target.shape[dim])
            elif tensor.shape != target.shape:
                return f"got shape {list(tensor.shape)}, expected {whole}" + (
                    f", or {list(target.shape)} for this rank" if self.tp_size > 1 else ""
                )
            # torch does not copy all of these dtypes; their bytes it does.
            tensor, target = tensor.contiguous().view(torch.uint8), target.view(torch.uint8)
        target.copy_(tensor)
        return None

    def _stacked(self, product: int, name: str) -> torch.Tensor:
        return self.get_buffer(f"fc{product}_{name}")

    def _view(self, place: Place) -> torch.Tensor:
        projection = place.projection
        stacked = self._stacked(projection.product, place.tensor)[place.expert - self._first_expert]
        if place.tensor in checkpoint.SCALARS:
            return stacked[projection.part]
        parts = self._stacked(projection.product, "input_scale").shape[1]
        rows = stacked.shape[0] // parts
        return stacked[projection.part * rows : (projection.part + 1) * rows]

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for name, tensor in self.state_dict_views().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()

    @torch.no_grad()
    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Copy a checkpoint's tensors of this rank's experts and prepare them."""
        # Nothing is saved under the buffers' own names: this runs hooks, and loads nothing.
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, False, missing_keys, unexpected_keys, error_msgs
        )
        places: dict[str, Place] = {}
        found: set[str] = set()
        for key in state_dict:
            if not key.startswith(prefix):
                continue
            place = expert_tensors.place_of(key[len(prefix) :], self._projections)
            # One may be there under both of its names: the second is one too many.
            if place is not None and place.expert < self.num_experts and place.key not in found:
                places[key] = place
                found.add(place.key)
            elif strict:
                unexpected_keys.append(key)
        if strict:
            missing_keys += [prefix + key for key in self.state_dict_views() if key not in found]
        if not places:
            return
        device = next(state_dict[key].device for key in places)
        if self.fc1_weight.is_meta and device.type != "meta":
            if not local_metadata.get("assign_to_params_buffers", False):
                error_msgs.append(
                    f"{prefix}*: the experts are on the meta device; pass assign=True, or call "
                    "to_empty first"
                )
                return
            self._allocate(device)
        for key, place in places.items():
            if problem := self.take(place, state_dict[key]):
                error_msgs.append(f"{key}: {problem}")
        if differing := self._differing():
            error_msgs += [prefix + problem for problem in differing]
        else:
            self.prepare()

    def _allocate(self, device: torch.device) -> None:
        for name, buffer in list(self.named_buffers()):
            zeros = torch.zeros(buffer.shape, dtype=torch.uint8, device=device)
            if buffer.dtype != torch.float8_e4m3fn:
                zeros = zeros.to(buffer.dtype)
            setattr(self, name, zeros.view(buffer.dtype))
