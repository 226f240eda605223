"""Mixture of experts in plain PyTorch: routing, and products of dequantized matrices.

Each step of FlashInfer's CUTLASS runner is repeated in its order, with its roundings
(`expandInputRowsKernel`, `doActivationKernel` and `finalizeMoeRoutingKernel` of FlashInfer 0.7.2's
`cutlass_fused_moe_kernels.cuh`): each expert's rows are quantized with its scale; the first product
times alpha is rounded to the output dtype; bias and activation are float32, and are rounded to the
output dtype before they are quantized again; the second product times alpha is rounded too; bias,
weights and the sum over a token's experts are float32, in the order in which they were selected.

That is what the kernels do without `use_fused_finalize`. With it, the second product is rounded
only after bias and weight, and rows are added up in the output dtype in any order, so that not even
two runs on a GPU agree in every bit. As in `mm_fp4`, the sum inside a product is exact here and
float32 there, and an activation's last bits are those of each side's exponential.

Only experts that a token selected are dequantized, and only their rows are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fp4aot import _layouts
from fp4aot.operators.argument_checks import NVFP4_BLOCK
from fp4aot.operators.arithmetic import blocks, e2m1, moe_activations, nvfp4, scales
from fp4aot.operators.arithmetic.blocks import Blocks
from fp4aot.operators.mixture_of_experts_arguments import MoeArguments

_SWIZZLED = _layouts.SfLayout.layout_128x4


class _Routes(NamedTuple):
    """Which token goes to which expert of this rank, in the order of the experts.

    Attributes
    ----------
    token
        Row of the input.
    choice
        Which of the token's selections it is.
    counts
        How many routes each expert has.
    """

    token: torch.Tensor
    choice: torch.Tensor
    counts: list[int]

    def by_expert(self) -> Iterator[tuple[int, slice]]:
        """Yield each expert that has routes, and where they are."""
        start = 0
        for expert, count in enumerate(self.counts):
            if count:
                yield expert, slice(start, start + count)
            start += count


def _routes(arguments: MoeArguments) -> _Routes:
    """Sort what was selected; what is no expert of this rank is left out."""
    first = arguments.ep_rank * arguments.experts
    local = arguments.token_selected_experts.to(torch.int64) - first
    token, choice = ((local >= 0) & (local < arguments.experts)).nonzero(as_tuple=True)
    expert = local[token, choice]
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=arguments.experts)
    return _Routes(token[order], choice[order], counts.tolist())


def mixture(arguments: MoeArguments) -> torch.Tensor:
    """Compute the mixture. All-to-all, finalizing, launch dependence and tactics change nothing."""
    routes = _routes(arguments)
    rows = arguments.input.new_empty(
        (len(routes.token), arguments.hidden_size), dtype=torch.float32
    )
    inputs = _Inputs(arguments)
    for expert, here in routes.by_expert():
        rows[here] = _expert(arguments, expert, inputs.of(expert, routes.token[here]))
    return _combine(arguments, routes, rows).to(arguments.output_dtype)


def _combine(arguments: MoeArguments, routes: _Routes, rows: torch.Tensor) -> torch.Tensor:
    """Weight and add up each token's rows in the order of its selections."""
    total = rows.new_zeros((arguments.tokens, arguments.hidden_size))
    for choice in range(arguments.top_k):
        here = routes.choice == choice
        token, row = routes.token[here], rows[here]
        if arguments.token_final_scales is not None:
            row = row * arguments.token_final_scales[token, choice].unsqueeze(1)
        # Each token is there at most once.
        total[token] += row
    return total


def _expert(arguments: MoeArguments, expert: int, quantized: Blocks) -> torch.Tensor:
    """Apply one expert to its rows; return float32."""
    dtype = arguments.output_dtype
    hidden = _product(
        quantized,
        arguments.fc1_expert_weights[expert],
        arguments.fc1_weight_block_scales[expert],
        arguments.fc1_alpha[expert],
        dtype,
    )
    if arguments.fc1_expert_biases is not None:
        hidden = hidden + arguments.fc1_expert_biases[expert].to(torch.float32)
    activated = moe_activations.apply(arguments, expert, hidden).to(dtype)
    result = _product(
        _quantize(activated, _scale_of(arguments.fc2_act_global_scale, expert)),
        arguments.fc2_expert_weights[expert],
        arguments.fc2_weight_block_scales[expert],
        arguments.fc2_alpha[expert],
        dtype,
    )
    if arguments.fc2_expert_biases is not None and arguments.tp_rank == 0:
        result = result + arguments.fc2_expert_biases[expert].to(torch.float32)
    return result


class _Inputs:
    """The rows of the input, quantized or not, with their scales in row-major order."""

    def __init__(self, arguments: MoeArguments) -> None:
        self._arguments = arguments
        if arguments.input_sf is not None:
            self._packed = _bytes(arguments.input)
            layout = _layouts.layout_from_flags(arguments.swizzled_input_sf, False)
            self._scale_codes = scales.row_major(
                arguments.input_sf, arguments.tokens, arguments.hidden_size // NVFP4_BLOCK, layout
            )

    def of(self, expert: int, tokens: torch.Tensor) -> Blocks:
        """Return the rows of some tokens, quantized for an expert unless they were before."""
        if self._arguments.is_quantized:
            return _blocks(self._packed[tokens], self._scale_codes[tokens])
        scale = _scale_of(self._arguments.fc1_act_global_scale, expert)
        return _quantize(self._arguments.input[tokens], scale)


def _scale_of(scale: torch.Tensor, expert: int) -> torch.Tensor:
    """Return an expert's scale, of one for all or one for each."""
    return scale[expert] if scale.numel() > 1 else scale


def _quantize(rows: torch.Tensor, global_scale: torch.Tensor) -> Blocks:
    return nvfp4.quantize(blocks.split(rows, NVFP4_BLOCK), scales.row_factors(global_scale))


def _product(
    left: Blocks,
    weights: torch.Tensor,
    block_scales: torch.Tensor,
    alpha: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return alpha * (left @ weights.T), rounded to a dtype, as float32."""
    packed = _bytes(weights)
    scale_codes = scales.row_major(
        block_scales, packed.shape[0], packed.shape[1] * 2 // NVFP4_BLOCK, _SWIZZLED
    )
    right = _values(_blocks(packed, scale_codes))
    total = torch.matmul(_values(left), right.t()).to(torch.float32)
    return scales.multiply(total, scales.flush_subnormals(alpha)).to(dtype).to(torch.float32)


def _values(quantized: Blocks) -> torch.Tensor:
    """Dequantize to float64 `[rows, K]`, which is exact."""
    factors = scales.decode_e4m3(quantized.scale_codes)
    return blocks.scale(e2m1.decode(quantized.codes.flatten(1)), factors).to(torch.float64)


def _blocks(packed: torch.Tensor, scale_codes: torch.Tensor) -> Blocks:
    codes = e2m1.unpack(packed)
    return Blocks(codes.reshape(*scale_codes.shape, NVFP4_BLOCK), scale_codes)


def _bytes(packed: torch.Tensor) -> torch.Tensor:
    """Return packed values as bytes; two, or sixteen in an int64, are an element of the tensor."""
    if packed.dtype == torch.int64:
        packed = packed.contiguous()
    return packed.view(torch.uint8)
