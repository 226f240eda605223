"""The checks that every operator is made of, and the form of their errors.

The C++ kernels make the same checks in the same words, so a wrong call reads alike on the CPU, on a
GPU and while tracing:

    fp4aot::<operator>: argument '<name>': got <what>, expected <what>; <what to do>

An error is a RuntimeError, the only kind that the C++ kernels can raise. Nothing here reads a
tensor's data. Sizes may be symbolic: a check that would only bound a size (the kernels' 32-bit
indices) is left to run time then, because a bound would become a condition on the exported program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from fp4aot import _layouts, _recipes

NVFP4_BLOCK = 16
"""Values that share a scale in NVFP4."""
OUTPUT_DTYPES = (torch.bfloat16, torch.float16)
"""What products and dequantized values may be."""
PACKED_DTYPES = (torch.uint8, torch.float4_e2m1fn_x2)
"""How two E2M1 values in a byte may be held."""
E4M3_DTYPES = (torch.uint8, torch.float8_e4m3fn)
"""How E4M3 scales may be held."""

_LARGEST_INT32 = 2**31 - 1


def fail(operator: str, argument: str, got: str, expected: str, what_to_do: str) -> NoReturn:
    """Raise the error that every refused argument gets."""
    raise RuntimeError(
        f"fp4aot::{operator}: argument '{argument}': got {got}, expected {expected}; {what_to_do}"
    )


def fail_shape(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    expected: str,
    what_to_do: str,
    note: str = "",
) -> NoReturn:
    """Raise the error for a tensor's shape, to which a note may be added."""
    fail(operator, argument, f"shape {shape_text(tensor)}{note}", expected, what_to_do)


def shape_text(tensor: torch.Tensor) -> str:
    """Write a shape as the errors do: `[4, 128]`."""
    return str(list(tensor.shape))


def check_dtype(
    operator: str, argument: str, tensor: torch.Tensor, accepted: Sequence[torch.dtype]
) -> None:
    """Refuse a tensor of another dtype than the accepted ones."""
    if tensor.dtype not in accepted:
        expected = " or ".join(str(dtype) for dtype in accepted)
        fail(operator, argument, f"dtype {tensor.dtype}", expected, "convert the tensor first")


def check_rank(operator: str, argument: str, tensor: torch.Tensor, accepted: Sequence[int]) -> None:
    """Refuse a tensor with another number of dimensions than the accepted ones."""
    if tensor.dim() not in accepted:
        expected = " or ".join(str(rank) for rank in accepted) + " dimensions"
        fail_shape(operator, argument, tensor, expected, "reshape the tensor first")


def check_shape(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    shape: Sequence[int],
    what_to_do: str,
    note: str = "",
) -> None:
    """Refuse a tensor of another shape; the note explains the shape."""
    if tuple(tensor.shape) != tuple(shape):
        fail_shape(operator, argument, tensor, f"{list(shape)}{note}", what_to_do)


def check_same_device(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    """Refuse a tensor that is not on the device of the reference argument."""
    if tensor.device != reference.device:
        expected = f"{reference.device} (the device of '{reference_argument}')"
        what_to_do = "move the tensor there first"
        fail(operator, argument, f"device {tensor.device}", expected, what_to_do)


def check_contiguous(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    expected: str = "a contiguous tensor",
    what_to_do: str = "make it contiguous once, where it is loaded",
) -> None:
    """Refuse what the kernels could only read after a copy, which every call would pay."""
    if not tensor.is_contiguous():
        note = f" with strides {list(tensor.stride())}"
        fail_shape(operator, argument, tensor, expected, what_to_do, note)


def check_scalar_scale(
    operator: str,
    argument: str,
    scale: torch.Tensor,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    """Refuse what is not one float32 element on the device of the reference argument."""
    check_dtype(operator, argument, scale, (torch.float32,))
    if scale.numel() != 1:
        fail_shape(operator, argument, scale, "one element", "pass a tensor of shape [1]")
    check_same_device(operator, argument, scale, reference_argument, reference)


def check_row_scales(
    operator: str,
    argument: str,
    scale: torch.Tensor,
    rows: int,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    """Refuse what is neither one float32 global scale nor one for each row."""
    check_dtype(operator, argument, scale, (torch.float32,))
    if scale.numel() not in (1, rows):
        what_to_do = "pass a tensor of shape [1], or of shape [rows]"
        fail_shape(operator, argument, scale, f"1 element, or one per row: {rows}", what_to_do)
    check_same_device(operator, argument, scale, reference_argument, reference)


def check_positive_multiple(
    operator: str, argument: str, tensor: torch.Tensor, size: int, what: str, multiple: int
) -> None:
    """Refuse a tensor whose number of `what` the kernels' vectors do not divide, or none at all."""
    if size == 0 or size % multiple != 0:
        expected, what_to_do = (
            f"a positive multiple of {multiple} {what}",
            "pad it with zeros before quantizing",
        )
        fail_shape(operator, argument, tensor, expected, what_to_do, f" ({size} {what})")


def check_blocks(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    multiple: int = NVFP4_BLOCK,
    values_of_element: int = 1,
) -> None:
    """Refuse rows that do not divide into blocks."""
    columns = tensor.shape[-1] * values_of_element
    if columns % multiple != 0:
        expected, note = f"a multiple of {multiple} values a row", f" ({columns} values a row)"
        fail_shape(operator, argument, tensor, expected, "pad the rows", note)


def check_int32(operator: str, argument: str, value: int, what: str) -> None:
    """Refuse a size that the kernels cannot index; a symbolic size is left to run time."""
    if isinstance(value, int) and value > _LARGEST_INT32:
        what_to_do = "split the call: the kernel indexes with 32-bit integers"
        fail(operator, argument, f"{what} {value}", f"{what} below 2**31", what_to_do)


def check_output_dtype(operator: str, argument: str, dtype: torch.dtype) -> None:
    """Refuse another dtype of the result than the kernels write."""
    if dtype not in OUTPUT_DTYPES:
        expected = "torch.bfloat16 or torch.float16"
        fail(operator, argument, str(dtype), expected, "convert the result instead")


def check_tactic(operator: str, argument: str, tactic: int) -> None:
    """Refuse what is no number of a tactic."""
    if tactic < -1:
        expected = "the number of a tactic, or -1 to have one chosen"
        fail(operator, argument, f"{tactic}", expected, "pass -1")


def check_layout_flags(operator: str, is_sf_swizzled_layout: bool, is_sf_8x4_layout: bool) -> None:
    """Refuse the 8x4 layout without the swizzled one: the two flags contradict each other."""
    if is_sf_8x4_layout and not is_sf_swizzled_layout:
        got, expected = "True with is_sf_swizzled_layout=False", "False for the linear layout"
        what_to_do = "pass is_sf_swizzled_layout=True for the 8x4 layout"
        fail(operator, "is_sf_8x4_layout", got, expected, what_to_do)


def check_sf_layout(operator: str, sf_layout: int) -> _layouts.SfLayout:
    """Return the layout that a number stands for."""
    if sf_layout not in (0, 1, 2):
        expected = "0 (128x4), 1 (8x4) or 2 (linear)"
        fail(operator, "sf_layout", f"{sf_layout}", expected, "pass an SfLayout")
    return _layouts.SfLayout(sf_layout)


def check_recipe(operator: str, code: int, argument: str, tensor: torch.Tensor) -> None:
    """Refuse what is not the code of a recipe, and 4-over-6 for a tensor of float8."""
    if not _recipes.is_recipe_code(code):
        expected = "0 (the standard recipe) or the code of a 4-over-6 recipe"
        what_to_do = "pass what fp4aot.nvfp4_4over6_code returns"
        fail(operator, "nvfp4_4over6", f"{code}", expected, what_to_do)
    if code != _recipes.STANDARD and tensor.dtype == torch.float8_e4m3fn:
        got, expected = (
            f"{code} with '{argument}' of {tensor.dtype}",
            "0 (float8 values have no other recipe)",
        )
        what_to_do = "pass the standard recipe, or float16 or bfloat16 values"
        fail(operator, "nvfp4_4over6", got, expected, what_to_do)
