"""Scales of `cutlass_fused_moe`: the input's, and those of the two products."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fp4aot import _layouts
from fp4aot._checks import common
from fp4aot._checks.moe_arguments import MoeArguments

_NAME = "cutlass_fused_moe"
_BLOCK = 16
# FlashInfer's kernel takes linear scales for rows of whole groups of four.
_LINEAR_MULTIPLE = 4 * _BLOCK
_SCALES = (torch.uint8, torch.float8_e4m3fn)
# FlashInfer's callers view four scales as an int32.
_WEIGHT_SCALES = (*_SCALES, torch.int32)


def check_input_scales(arguments: MoeArguments) -> None:
    """Require scales for a quantized input, in the layout that the flag says, and none else."""
    scales = arguments.input_sf
    if not arguments.is_quantized:
        if scales is not None:
            got = f"a tensor with an input of {arguments.input.dtype}"
            what_to_do = "pass it with the packed input that it belongs to"
            common.fail(_NAME, "input_sf", got, "None", what_to_do)
        return
    if scales is None:
        expected = "the block scales of the packed input"
        what_to_do = "pass what quantized the input, or the input in bfloat16 or float16"
        common.fail(_NAME, "input_sf", "None", expected, what_to_do)
    common.check_dtype(_NAME, "input_sf", scales, _SCALES)
    common.check_same_device(_NAME, "input_sf", scales, "input", arguments.input)
    check_contiguous("input_sf", scales)
    if not arguments.swizzled_input_sf and arguments.hidden_size % _LINEAR_MULTIPLE != 0:
        common.fail(
            _NAME,
            "swizzled_input_sf",
            f"False with {arguments.hidden_size} values a row",
            f"True, or a multiple of {_LINEAR_MULTIPLE} values a row",
            "quantize with the 128x4 layout",
        )
    layout = _input_layout(arguments.swizzled_input_sf)
    expected_count = _input_scale_count(arguments, layout)
    if scales.numel() != expected_count:
        other = _input_layout(not arguments.swizzled_input_sf)
        likeness = (
            f", as many as {other.name} has"
            if scales.numel() == _input_scale_count(arguments, other)
            else ""
        )
        common.fail(
            _NAME,
            "input_sf",
            f"{scales.numel()} scales{likeness}",
            f"{expected_count} ({layout.name} for {arguments.tokens} rows of "
            f"{arguments.hidden_size} values)",
            "quantize with that layout, or pass the swizzled_input_sf of another",
        )


def _input_layout(swizzled: bool) -> _layouts.SfLayout:
    return _layouts.layout_from_flags(swizzled, False)


def _input_scale_count(arguments: MoeArguments, layout: _layouts.SfLayout) -> int:
    rows, columns = _layouts.scale_shape(arguments.tokens, arguments.hidden_size // _BLOCK, layout)
    return rows * columns


def check_product_scales(arguments: MoeArguments) -> None:
    """Check the three scales of the first product, then those of the second."""
    for product, act_global_scale, block_scales, alpha, rows, columns in (
        (
            "fc1",
            arguments.fc1_act_global_scale,
            arguments.fc1_weight_block_scales,
            arguments.fc1_alpha,
            arguments.fc1_rows,
            arguments.hidden_size,
        ),
        (
            "fc2",
            arguments.fc2_act_global_scale,
            arguments.fc2_weight_block_scales,
            arguments.fc2_alpha,
            arguments.hidden_size,
            arguments.inter_size,
        ),
    ):
        _act_global_scale(arguments, f"{product}_act_global_scale", act_global_scale)
        _block_scales(arguments, f"{product}_weight_block_scales", block_scales, rows, columns)
        check_one_for_each_expert(arguments, f"{product}_alpha", alpha)


def _act_global_scale(arguments: MoeArguments, argument: str, scale: torch.Tensor) -> None:
    common.check_dtype(_NAME, argument, scale, (torch.float32,))
    check_shape(argument, scale, ((), (1,), (arguments.experts,)))
    common.check_same_device(_NAME, argument, scale, "input", arguments.input)


def _block_scales(
    arguments: MoeArguments, argument: str, scales: torch.Tensor, rows: int, columns: int
) -> None:
    """Require 128x4 scales of every expert's weights `[rows, columns]`, each padded by itself."""
    common.check_dtype(_NAME, argument, scales, _WEIGHT_SCALES)
    padded_rows, padded_columns = _layouts.scale_shape(
        rows, columns // _BLOCK, _layouts.SfLayout.layout_128x4
    )
    shape = [arguments.experts, padded_rows, padded_columns // scales.dtype.itemsize]
    if list(scales.shape) != shape:
        common.fail(
            _NAME,
            argument,
            f"shape {common.shape_text(scales)}",
            f"{shape} (layout_128x4 for each of {arguments.experts} experts with {rows} rows of "
            f"{columns} values)",
            "swizzle the scales of each expert with block_scale_interleave",
        )
    common.check_same_device(_NAME, argument, scales, "input", arguments.input)
    check_contiguous(argument, scales)


def check_one_for_each_expert(arguments: MoeArguments, argument: str, tensor: torch.Tensor) -> None:
    """Require float32 `[experts]`."""
    common.check_dtype(_NAME, argument, tensor, (torch.float32,))
    check_shape(argument, tensor, ((arguments.experts,),))
    common.check_same_device(_NAME, argument, tensor, "input", arguments.input)


def check_shape(argument: str, tensor: torch.Tensor, accepted: Sequence[Sequence[int]]) -> None:
    """Refuse a tensor of another shape than the accepted ones."""
    if tuple(tensor.shape) not in [tuple(shape) for shape in accepted]:
        common.fail(
            _NAME,
            argument,
            f"shape {common.shape_text(tensor)}",
            " or ".join(str(list(shape)) for shape in accepted),
            "pass the tensor of the experts of this rank",
        )


def check_contiguous(argument: str, tensor: torch.Tensor) -> None:
    """Refuse what the kernels could only read after a copy, which every call would pay."""
    if not tensor.is_contiguous():
        common.fail(
            _NAME,
            argument,
            f"shape {common.shape_text(tensor)} with strides {list(tensor.stride())}",
            "a contiguous tensor",
            "make it contiguous once, where it is loaded",
        )
