"""Arguments of `cutlass_fused_moe`; `mixture_of_experts_reference` computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fp4aot import _activations, _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators import mixture_of_experts_reference
from fp4aot.operators.mixture_of_experts_arguments import (
    PACKED_DTYPES,
    MoeArguments,
    packed_columns,
    values_a_row,
)
from fp4aot.operators.structured import Layout, operator

_NAME = "cutlass_fused_moe"
# Hidden and intermediate size: the kernels load and store vectors that hold 32 packed values.
_MULTIPLE = 32
# FlashInfer's kernel takes linear scales for rows of whole groups of four.
_LINEAR_MULTIPLE = 4 * checks.NVFP4_BLOCK
# FlashInfer's callers view four scales as an int32.
_WEIGHT_SCALES = (*checks.E4M3_DTYPES, torch.int32)


@operator(parameters=MoeArguments._fields)
def cutlass_fused_moe(*arguments: Any) -> Layout:
    """Refuse what cannot be computed; return `[T, H]`."""
    given = MoeArguments(*arguments)
    checks.check_output_dtype(_NAME, "output_dtype", given.output_dtype)
    _check_activation(given.activation_type)
    _check_rank("tp", given.tp_size, given.tp_rank)
    _check_rank("ep", given.ep_size, given.ep_rank)
    checks.check_tactic(_NAME, "gemm1_tactic", given.gemm1_tactic)
    checks.check_tactic(_NAME, "gemm2_tactic", given.gemm2_tactic)
    _check_input(given)
    _check_weights(given)
    _check_routing(given)
    _check_limits(given)
    _check_input_scales(given)
    _check_product_scales(given)
    _check_biases(given)
    _check_activation_parameters(given)
    return Layout((given.tokens, given.hidden_size), given.output_dtype)


@cutlass_fused_moe.buffers
def _(*arguments: Any, workspace_buffer: torch.Tensor | None) -> None:
    # The CPU needs no workspace.
    if workspace_buffer is not None:
        name = "workspace_buffer"
        checks.check_dtype(_NAME, name, workspace_buffer, (torch.uint8, torch.int8))
        checks.check_rank(_NAME, name, workspace_buffer, (1,))
        _check_on_device(MoeArguments(*arguments), name, workspace_buffer)
        if not workspace_buffer.is_contiguous():
            got, what_to_do = (
                f"strides {list(workspace_buffer.stride())}",
                "pass it as it was allocated",
            )
            checks.fail(_NAME, name, got, "a contiguous tensor", what_to_do)


@cutlass_fused_moe.reference
def _(*arguments: Any) -> torch.Tensor:
    return mixture_of_experts_reference.mixture(MoeArguments(*arguments))


def _check_activation(activation_type: int) -> None:
    if activation_type not in tuple(_activations.COMPILED):
        names = {int(activation): activation.name for activation in _activations.ActivationType}
        name = names.get(activation_type)
        checks.fail(
            _NAME,
            "activation_type",
            f"{int(activation_type)}" + (f" ({name})" if name else ""),
            "one of "
            + ", ".join(f"{int(known)} ({known.name})" for known in _activations.COMPILED),
            "call flashinfer.cutlass_fused_moe for another activation",
        )


def _check_rank(kind: str, size: int, rank: int) -> None:
    if size < 1:
        checks.fail(_NAME, f"{kind}_size", f"{size}", "1 or more", "pass the number of ranks")
    if not 0 <= rank < size:
        expected = f"0 to {size - 1}, below {kind}_size"
        checks.fail(_NAME, f"{kind}_rank", f"{rank}", expected, "pass the number of this rank")


def _check_input(given: MoeArguments) -> None:
    checks.check_dtype(_NAME, "input", given.input, (*checks.OUTPUT_DTYPES, *PACKED_DTYPES))
    checks.check_rank(_NAME, "input", given.input, (2,))
    if not given.is_quantized and given.input.dtype != given.output_dtype:
        got, expected = (
            f"dtype {given.input.dtype}",
            f"{given.output_dtype}, the dtype of the output",
        )
        checks.fail(_NAME, "input", got, expected, "convert the input, or ask for its dtype")
    size = given.hidden_size
    checks.check_positive_multiple(_NAME, "input", given.input, size, "values a row", _MULTIPLE)


def _check_weights(given: MoeArguments) -> None:
    name, weights = "fc1_expert_weights", given.fc1_expert_weights
    _check_packed(given, name, weights)
    if given.experts == 0:
        what_to_do = "pass the weights of this rank"
        checks.fail_shape(_NAME, name, weights, "one expert or more", what_to_do, " (0 experts)")
    columns = values_a_row(weights)
    if columns != given.hidden_size:
        expected = (
            f"{given.hidden_size} values a row, for input of shape {checks.shape_text(given.input)}"
        )
        what_to_do = "pass packed weights [experts, rows, hidden size / 2]"
        checks.fail_shape(_NAME, name, weights, expected, what_to_do, f" ({columns} values a row)")
    # A gated activation takes as many up as gate rows.
    multiple = 2 * _MULTIPLE if given.is_gated else _MULTIPLE
    checks.check_positive_multiple(_NAME, name, weights, given.fc1_rows, "rows an expert", multiple)
    name, weights = "fc2_expert_weights", given.fc2_expert_weights
    _check_packed(given, name, weights)
    shape = (given.experts, given.hidden_size, packed_columns(weights, given.inter_size))
    kind = "up and gate rows" if given.is_gated else "rows"
    note = f", for fc1_expert_weights with {given.fc1_rows} {kind} an expert"
    what_to_do = "pass packed weights [experts, hidden size, intermediate size / 2]"
    checks.check_shape(_NAME, name, weights, shape, what_to_do, note)


def _check_packed(given: MoeArguments, argument: str, weights: torch.Tensor) -> None:
    checks.check_dtype(_NAME, argument, weights, PACKED_DTYPES)
    checks.check_rank(_NAME, argument, weights, (3,))
    _check_on_device(given, argument, weights)
    checks.check_contiguous(_NAME, argument, weights)


def _check_routing(given: MoeArguments) -> None:
    name, selected = "token_selected_experts", given.token_selected_experts
    checks.check_dtype(_NAME, name, selected, (torch.int32,))
    checks.check_rank(_NAME, name, selected, (2,))
    if selected.shape[0] != given.tokens or given.top_k == 0:
        expected = f"{given.tokens} rows, as input has, of one expert or more"
        what_to_do = "pass the experts of each token, [tokens, top_k]"
        checks.fail_shape(_NAME, name, selected, expected, what_to_do)
    _check_on_device(given, name, selected)
    name, weights = "token_final_scales", given.token_final_scales
    if weights is not None:
        checks.check_dtype(_NAME, name, weights, (torch.float32,))
        note = ", the shape of token_selected_experts"
        what_to_do = "pass one weight for each selected expert, or None"
        checks.check_shape(_NAME, name, weights, selected.shape, what_to_do, note)
        _check_on_device(given, name, weights)


def _check_limits(given: MoeArguments) -> None:
    total, selected = given.experts * given.ep_size, "token_selected_experts"
    for argument, value, what in (
        ("input", given.tokens * total, "tokens times experts of all ranks"),
        (selected, given.tokens * given.top_k, "tokens times selected experts"),
        (selected, given.top_k * total, "selected experts times experts of all ranks"),
    ):
        checks.check_int32(_NAME, argument, value, f"a number of {what} of")


def _check_input_scales(given: MoeArguments) -> None:
    """Require scales for a quantized input, in the layout that the flag says, and none else."""
    name, scales = "input_sf", given.input_sf
    if not given.is_quantized:
        if scales is not None:
            got = f"a tensor with an input of {given.input.dtype}"
            checks.fail(
                _NAME, name, got, "None", "pass it with the packed input that it belongs to"
            )
        return
    if scales is None:
        expected = "the block scales of the packed input"
        what_to_do = "pass what quantized the input, or the input in bfloat16 or float16"
        checks.fail(_NAME, name, "None", expected, what_to_do)
    checks.check_dtype(_NAME, name, scales, checks.E4M3_DTYPES)
    _check_on_device(given, name, scales)
    checks.check_contiguous(_NAME, name, scales)
    size = given.hidden_size
    if not given.swizzled_input_sf and size % _LINEAR_MULTIPLE != 0:
        expected = f"True, or a multiple of {_LINEAR_MULTIPLE} values a row"
        got, what_to_do = f"False with {size} values a row", "quantize with the 128x4 layout"
        checks.fail(_NAME, "swizzled_input_sf", got, expected, what_to_do)
    layout, other = (
        _layouts.layout_from_flags(swizzled, False)
        for swizzled in (given.swizzled_input_sf, not given.swizzled_input_sf)
    )
    count = _input_scale_count(given, layout)
    if scales.numel() != count:
        is_other = scales.numel() == _input_scale_count(given, other)
        likeness = f", as many as {other.name} has" if is_other else ""
        expected = f"{count} ({layout.name} for {given.tokens} rows of {size} values)"
        what_to_do = "quantize with that layout, or pass the swizzled_input_sf of another"
        checks.fail(_NAME, name, f"{scales.numel()} scales{likeness}", expected, what_to_do)


def _input_scale_count(given: MoeArguments, layout: _layouts.SfLayout) -> int:
    columns = given.hidden_size // checks.NVFP4_BLOCK
    return math.prod(_layouts.scale_shape(given.tokens, columns, layout))


def _check_product_scales(given: MoeArguments) -> None:
    """Check the three scales of the first product, then those of the second."""
    for product, act_global_scale, block_scales, alpha, rows, columns in (
        (
            "fc1",
            given.fc1_act_global_scale,
            given.fc1_weight_block_scales,
            given.fc1_alpha,
            given.fc1_rows,
            given.hidden_size,
        ),
        (
            "fc2",
            given.fc2_act_global_scale,
            given.fc2_weight_block_scales,
            given.fc2_alpha,
            given.hidden_size,
            given.inter_size,
        ),
    ):
        for_all_or_each = ((), (1,), (given.experts,))
        _check_float32(given, f"{product}_act_global_scale", act_global_scale, for_all_or_each)
        _check_block_scales(given, f"{product}_weight_block_scales", block_scales, rows, columns)
        _check_float32(given, f"{product}_alpha", alpha)


def _check_block_scales(
    given: MoeArguments, argument: str, scales: torch.Tensor, rows: int, columns: int
) -> None:
    """Require 128x4 scales of every expert's weights `[rows, columns]`, each padded by itself."""
    checks.check_dtype(_NAME, argument, scales, _WEIGHT_SCALES)
    layout = _layouts.SfLayout.layout_128x4
    padded_rows, padded_columns = _layouts.scale_shape(rows, columns // checks.NVFP4_BLOCK, layout)
    shape = (given.experts, padded_rows, padded_columns // scales.dtype.itemsize)
    each = f"{given.experts} experts with {rows} rows of {columns} values"
    what_to_do = "swizzle the scales of each expert with block_scale_interleave"
    checks.check_shape(
        _NAME, argument, scales, shape, what_to_do, f" (layout_128x4 for each of {each})"
    )
    _check_on_device(given, argument, scales)
    checks.check_contiguous(_NAME, argument, scales)


def _check_biases(given: MoeArguments) -> None:
    fc1, fc2 = given.fc1_expert_biases, given.fc2_expert_biases
    if fc1 is None and fc2 is None:
        return
    for argument, bias, other, length in (
        ("fc1_expert_biases", fc1, "fc2_expert_biases", given.fc1_rows),
        ("fc2_expert_biases", fc2, "fc1_expert_biases", given.hidden_size),
    ):
        if bias is None:
            expected = f"a tensor, as {other} is one"
            checks.fail(_NAME, argument, "None", expected, "pass both biases or neither")
        checks.check_dtype(_NAME, argument, bias, (given.output_dtype,))
        _check_shape_and_device(given, argument, bias, ((given.experts, length),))


def _check_activation_parameters(given: MoeArguments) -> None:
    for argument, parameter, readers in (
        ("swiglu_alpha", given.swiglu_alpha, _activations.READING_ALPHA),
        ("swiglu_beta", given.swiglu_beta, _activations.READING_ALPHA),
        ("swiglu_limit", given.swiglu_limit, _activations.READING_LIMIT),
    ):
        if parameter is None:
            continue
        activation = _activations.ActivationType(given.activation_type)
        if activation not in readers:
            got = f"a tensor with activation_type={int(activation)} ({activation.name})"
            what_to_do = "pass it only with " + " or ".join(reader.name for reader in readers)
            checks.fail(_NAME, argument, got, "None", what_to_do)
        _check_float32(given, argument, parameter)


def _check_float32(
    given: MoeArguments,
    argument: str,
    tensor: torch.Tensor,
    accepted: Sequence[Sequence[int]] = (),
) -> None:
    """Require float32 of an accepted shape, by default one element for each expert."""
    checks.check_dtype(_NAME, argument, tensor, (torch.float32,))
    _check_shape_and_device(given, argument, tensor, accepted or ((given.experts,),))


def _check_shape_and_device(
    given: MoeArguments, argument: str, tensor: torch.Tensor, accepted: Sequence[Sequence[int]]
) -> None:
    if tuple(tensor.shape) not in [tuple(shape) for shape in accepted]:
        expected = " or ".join(str(list(shape)) for shape in accepted)
        what_to_do = "pass the tensor of the experts of this rank"
        checks.fail_shape(_NAME, argument, tensor, expected, what_to_do)
    _check_on_device(given, argument, tensor)


def _check_on_device(given: MoeArguments, argument: str, tensor: torch.Tensor) -> None:
    checks.check_same_device(_NAME, argument, tensor, "input", given.input)
