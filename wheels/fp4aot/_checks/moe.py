"""Arguments of `cutlass_fused_moe`: options, shapes and routing. `moe_scales` has the scales."""

from __future__ import annotations

import torch

from fp4aot import _activations
from fp4aot._checks import common, moe_scales
from fp4aot._checks.moe_arguments import PACKED, MoeArguments, packed_columns, values_a_row

_NAME = "cutlass_fused_moe"
_OUTPUTS = (torch.bfloat16, torch.float16)
_WORKSPACES = (torch.uint8, torch.int8)
# Hidden and intermediate size: the kernels load and store vectors that hold 32 packed values.
_MULTIPLE = 32


def cutlass_fused_moe(arguments: MoeArguments, output_dtype: torch.dtype) -> None:
    """Refuse what `cutlass_fused_moe` cannot compute."""
    if output_dtype not in _OUTPUTS:
        expected = "torch.bfloat16 or torch.float16"
        common.fail(
            _NAME, "output_dtype", str(output_dtype), expected, "convert the result instead"
        )
    _arguments(arguments, output_dtype)


def cutlass_fused_moe_out(
    arguments: MoeArguments, workspace_buffer: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Check the arguments and the buffers of the `out` form."""
    common.check_dtype(_NAME, "out", out, _OUTPUTS)
    _arguments(arguments, out.dtype)
    shape = (arguments.tokens, arguments.hidden_size)
    common.check_output(_NAME, "out", out, shape, out.dtype, "input", arguments.input)
    if workspace_buffer is not None:
        _workspace(arguments, workspace_buffer)


def _arguments(arguments: MoeArguments, output_dtype: torch.dtype) -> None:
    _activation(arguments.activation_type)
    _rank("tp", arguments.tp_size, arguments.tp_rank)
    _rank("ep", arguments.ep_size, arguments.ep_rank)
    _tactic("gemm1_tactic", arguments.gemm1_tactic)
    _tactic("gemm2_tactic", arguments.gemm2_tactic)
    _input(arguments, output_dtype)
    _fc1_weights(arguments)
    _fc2_weights(arguments)
    _routing(arguments)
    _limits(arguments)
    moe_scales.check_input_scales(arguments)
    moe_scales.check_product_scales(arguments)
    _biases(arguments, output_dtype)
    _activation_parameters(arguments)


def _activation(activation_type: int) -> None:
    if activation_type not in tuple(_activations.COMPILED):
        names = {int(activation): activation.name for activation in _activations.ActivationType}
        name = names.get(activation_type)
        common.fail(
            _NAME,
            "activation_type",
            f"{int(activation_type)}" + (f" ({name})" if name else ""),
            "one of "
            + ", ".join(f"{int(known)} ({known.name})" for known in _activations.COMPILED),
            "call flashinfer.cutlass_fused_moe for another activation",
        )


def _rank(kind: str, size: int, rank: int) -> None:
    if size < 1:
        common.fail(_NAME, f"{kind}_size", f"{size}", "1 or more", "pass the number of ranks")
    if not 0 <= rank < size:
        expected = f"0 to {size - 1}, below {kind}_size"
        common.fail(_NAME, f"{kind}_rank", f"{rank}", expected, "pass the number of this rank")


def _tactic(argument: str, tactic: int) -> None:
    if tactic < -1:
        expected = "the number of a tactic, or -1 to have one chosen"
        common.fail(_NAME, argument, f"{tactic}", expected, "pass -1")


def _input(arguments: MoeArguments, output_dtype: torch.dtype) -> None:
    tensor = arguments.input
    common.check_dtype(_NAME, "input", tensor, (*_OUTPUTS, *PACKED))
    common.check_rank(_NAME, "input", tensor, (2,))
    if not arguments.is_quantized and tensor.dtype != output_dtype:
        common.fail(
            _NAME,
            "input",
            f"dtype {tensor.dtype}",
            f"{output_dtype}, the dtype of the output",
            "convert the input, or ask for its dtype",
        )
    size = arguments.hidden_size
    common.check_positive_multiple(_NAME, "input", tensor, size, "values a row", _MULTIPLE)


def _fc1_weights(arguments: MoeArguments) -> None:
    name, weights = "fc1_expert_weights", arguments.fc1_expert_weights
    _weights(arguments, name, weights)
    if weights.shape[0] == 0:
        got = f"shape {common.shape_text(weights)} (0 experts)"
        common.fail(_NAME, name, got, "one expert or more", "pass the weights of this rank")
    if values_a_row(weights) != arguments.hidden_size:
        common.fail(
            _NAME,
            name,
            f"shape {common.shape_text(weights)} ({values_a_row(weights)} values a row)",
            f"{arguments.hidden_size} values a row, for input of shape "
            f"{common.shape_text(arguments.input)}",
            "pass packed weights [experts, rows, hidden size / 2]",
        )
    # A gated activation takes as many up as gate rows.
    multiple = 2 * _MULTIPLE if arguments.is_gated else _MULTIPLE
    rows = arguments.fc1_rows
    common.check_positive_multiple(_NAME, name, weights, rows, "rows an expert", multiple)


def _fc2_weights(arguments: MoeArguments) -> None:
    name, weights = "fc2_expert_weights", arguments.fc2_expert_weights
    _weights(arguments, name, weights)
    columns = packed_columns(weights, arguments.inter_size)
    shape = [arguments.experts, arguments.hidden_size, columns]
    if list(weights.shape) != shape:
        kind = "up and gate rows" if arguments.is_gated else "rows"
        common.fail(
            _NAME,
            name,
            f"shape {common.shape_text(weights)}",
            f"{shape}, for fc1_expert_weights with {arguments.fc1_rows} {kind} an expert",
            "pass packed weights [experts, hidden size, intermediate size / 2]",
        )


def _weights(arguments: MoeArguments, argument: str, weights: torch.Tensor) -> None:
    common.check_dtype(_NAME, argument, weights, PACKED)
    common.check_rank(_NAME, argument, weights, (3,))
    common.check_same_device(_NAME, argument, weights, "input", arguments.input)
    moe_scales.check_contiguous(argument, weights)


def _routing(arguments: MoeArguments) -> None:
    selected, scales = arguments.token_selected_experts, arguments.token_final_scales
    name = "token_selected_experts"
    common.check_dtype(_NAME, name, selected, (torch.int32,))
    common.check_rank(_NAME, name, selected, (2,))
    if selected.shape[0] != arguments.tokens or selected.shape[1] == 0:
        common.fail(
            _NAME,
            name,
            f"shape {common.shape_text(selected)}",
            f"{arguments.tokens} rows, as input has, of one expert or more",
            "pass the experts of each token, [tokens, top_k]",
        )
    common.check_same_device(_NAME, name, selected, "input", arguments.input)
    if scales is None:
        return
    name = "token_final_scales"
    common.check_dtype(_NAME, name, scales, (torch.float32,))
    if tuple(scales.shape) != tuple(selected.shape):
        common.fail(
            _NAME,
            name,
            f"shape {common.shape_text(scales)}",
            f"{common.shape_text(selected)}, the shape of token_selected_experts",
            "pass one weight for each selected expert, or None",
        )
    common.check_same_device(_NAME, name, scales, "input", arguments.input)


def _limits(arguments: MoeArguments) -> None:
    total = arguments.experts * arguments.ep_size
    for argument, value, what in (
        ("input", arguments.tokens * total, "tokens times experts of all ranks"),
        (
            "token_selected_experts",
            arguments.tokens * arguments.top_k,
            "tokens times selected experts",
        ),
        (
            "token_selected_experts",
            arguments.top_k * total,
            "selected experts times experts of all ranks",
        ),
    ):
        common.check_int32(_NAME, argument, value, f"a number of {what} of")


def _biases(arguments: MoeArguments, output_dtype: torch.dtype) -> None:
    fc1, fc2 = arguments.fc1_expert_biases, arguments.fc2_expert_biases
    if fc1 is None and fc2 is None:
        return
    for argument, bias, other, length in (
        ("fc1_expert_biases", fc1, "fc2_expert_biases", arguments.fc1_rows),
        ("fc2_expert_biases", fc2, "fc1_expert_biases", arguments.hidden_size),
    ):
        if bias is None:
            expected = f"a tensor, as {other} is one"
            common.fail(_NAME, argument, "None", expected, "pass both biases or neither")
        common.check_dtype(_NAME, argument, bias, (output_dtype,))
        moe_scales.check_shape(argument, bias, ((arguments.experts, length),))
        common.check_same_device(_NAME, argument, bias, "input", arguments.input)


def _activation_parameters(arguments: MoeArguments) -> None:
    for argument, parameter, readers in (
        ("swiglu_alpha", arguments.swiglu_alpha, _activations.READING_ALPHA),
        ("swiglu_beta", arguments.swiglu_beta, _activations.READING_ALPHA),
        ("swiglu_limit", arguments.swiglu_limit, _activations.READING_LIMIT),
    ):
        if parameter is None:
            continue
        activation = _activations.ActivationType(arguments.activation_type)
        if activation not in readers:
            common.fail(
                _NAME,
                argument,
                f"a tensor with activation_type={int(activation)} ({activation.name})",
                "None",
                "pass it only with " + " or ".join(reader.name for reader in readers),
            )
        moe_scales.check_one_for_each_expert(arguments, argument, parameter)


def _workspace(arguments: MoeArguments, workspace: torch.Tensor) -> None:
    name = "workspace_buffer"
    common.check_dtype(_NAME, name, workspace, _WORKSPACES)
    common.check_rank(_NAME, name, workspace, (1,))
    common.check_same_device(_NAME, name, workspace, "input", arguments.input)
    if not workspace.is_contiguous():
        got, what_to_do = f"strides {list(workspace.stride())}", "pass it as it was allocated"
        common.fail(_NAME, name, got, "a contiguous tensor", what_to_do)
