"""What `cutlass_fused_moe` takes, and the sizes that follow from it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fp4aot._activations import ActivationType

PACKED_DTYPES = (torch.uint8, torch.float4_e2m1fn_x2, torch.int64)
"""How e2m1 values may be held: two in a byte, or sixteen in an int64 (FlashInfer's callers)."""


def values_a_row(tensor: torch.Tensor) -> int:
    """Return the number of values in a row, which may be packed."""
    columns = tensor.shape[-1]
    if tensor.dtype not in PACKED_DTYPES:
        return columns
    return columns * 2 * tensor.dtype.itemsize


def packed_columns(tensor: torch.Tensor, values: int) -> int:
    """Return how many elements of a packed tensor hold a row of `values`."""
    return values // (2 * tensor.dtype.itemsize)


class MoeArguments(NamedTuple):
    """The operator's arguments, in its order; `fp4aot.cutlass_fused_moe` describes them.

    The sizes are those that the tensors have once they are checked.
    """

    input: torch.Tensor
    token_selected_experts: torch.Tensor
    token_final_scales: torch.Tensor | None
    fc1_expert_weights: torch.Tensor
    fc2_expert_weights: torch.Tensor
    fc1_act_global_scale: torch.Tensor
    fc1_weight_block_scales: torch.Tensor
    fc1_alpha: torch.Tensor
    fc2_act_global_scale: torch.Tensor
    fc2_weight_block_scales: torch.Tensor
    fc2_alpha: torch.Tensor
    output_dtype: torch.dtype
    fc1_expert_biases: torch.Tensor | None
    fc2_expert_biases: torch.Tensor | None
    input_sf: torch.Tensor | None
    swiglu_alpha: torch.Tensor | None
    swiglu_beta: torch.Tensor | None
    swiglu_limit: torch.Tensor | None
    tp_size: int
    tp_rank: int
    ep_size: int
    ep_rank: int
    enable_alltoall: bool
    enable_pdl: bool | None
    activation_type: int
    swizzled_input_sf: bool
    use_fused_finalize: bool
    gemm1_tactic: int
    gemm2_tactic: int

    @property
    def tokens(self) -> int:
        """Rows of the input."""
        return self.input.shape[0]

    @property
    def top_k(self) -> int:
        """Experts selected for each token."""
        return self.token_selected_experts.shape[1]

    @property
    def experts(self) -> int:
        """Experts of this rank."""
        return self.fc1_expert_weights.shape[0]

    @property
    def hidden_size(self) -> int:
        """Values in a row of the input and of the output."""
        return values_a_row(self.input)

    @property
    def fc1_rows(self) -> int:
        """Values that the first product makes of a row."""
        return self.fc1_expert_weights.shape[1]

    @property
    def inter_size(self) -> int:
        """Values that the activation leaves of them."""
        return self.fc1_rows // 2 if self.is_gated else self.fc1_rows

    @property
    def is_gated(self) -> bool:
        """Whether the first product makes an up and a gate row."""
        return ActivationType(self.activation_type).is_gated

    @property
    def is_quantized(self) -> bool:
        """Whether the input is packed e2m1."""
        return self.input.dtype in PACKED_DTYPES
