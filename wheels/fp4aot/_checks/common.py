"""The checks that every operator is made of, and the form of their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from fp4aot import _layouts

_LARGEST_INT32 = 2**31 - 1


def fail(operator: str, argument: str, got: str, expected: str, what_to_do: str) -> NoReturn:
    """Raise the error that every refused argument gets."""
    raise RuntimeError(
        f"fp4aot::{operator}: argument '{argument}': got {got}, expected {expected}; {what_to_do}"
    )


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
        fail(
            operator, argument, f"shape {shape_text(tensor)}", expected, "reshape the tensor first"
        )


def check_same_device(
    operator: str,
    argument: str,
    tensor: torch.Tensor,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    """Refuse a tensor that is not on the device of the reference argument."""
    if tensor.device != reference.device:
        fail(
            operator,
            argument,
            f"device {tensor.device}",
            f"{reference.device} (the device of '{reference_argument}')",
            "move the tensor there first",
        )


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
        got = f"shape {shape_text(scale)}"
        fail(operator, argument, got, "one element", "pass a tensor of shape [1]")
    check_same_device(operator, argument, scale, reference_argument, reference)


def check_positive_multiple(
    operator: str, argument: str, tensor: torch.Tensor, size: int, what: str, multiple: int
) -> None:
    """Refuse a tensor whose number of `what` the kernels' vectors do not divide, or none at all."""
    if size == 0 or size % multiple != 0:
        fail(
            operator,
            argument,
            f"shape {shape_text(tensor)} ({size} {what})",
            f"a positive multiple of {multiple} {what}",
            "pad it with zeros before quantizing",
        )


def check_int32(operator: str, argument: str, value: int, what: str) -> None:
    """Refuse a size that the kernels cannot index; a symbolic size is left to run time."""
    if isinstance(value, int) and value > _LARGEST_INT32:
        fail(
            operator,
            argument,
            f"{what} {value}",
            f"{what} below 2**31",
            "split the call: the kernel indexes with 32-bit integers",
        )


def check_output(
    operator: str,
    argument: str,
    output: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    reference_argument: str,
    reference: torch.Tensor,
    transposed: bool = False,
) -> None:
    """Require the layout of the functional form; `shape` is its contiguous one, maybe transposed.

    Strides of dimensions of size 0 or 1 do not matter.
    """
    order = list(range(len(shape)))
    if transposed:
        order[-2:] = reversed(order[-2:])
    check_permuted_output(
        operator, argument, output, shape, order, dtype, reference_argument, reference
    )


def check_permuted_output(
    operator: str,
    argument: str,
    output: torch.Tensor,
    shape: Sequence[int],
    order: Sequence[int],
    dtype: torch.dtype,
    reference_argument: str,
    reference: torch.Tensor,
) -> None:
    """Require a contiguous buffer of `shape`, its dimensions in another order."""
    check_dtype(operator, argument, output, (dtype,))
    check_same_device(operator, argument, output, reference_argument, reference)
    contiguous = _layouts.contiguous_strides(shape)
    sizes, strides = [shape[i] for i in order], [contiguous[i] for i in order]
    if not _has_layout(output, sizes, strides):
        fail(
            operator,
            argument,
            f"shape {shape_text(output)} with strides {list(output.stride())}",
            f"shape {sizes} with strides {strides}",
            "allocate it as the functional form returns it",
        )


def _has_layout(tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    if tensor.dim() != len(sizes):
        return False
    actual = zip(tensor.shape, tensor.stride(), sizes, strides, strict=True)
    return all(
        got_size == size and (size <= 1 or got_stride == stride)
        for got_size, got_stride, size, stride in actual
    )


def check_layout_flags(operator: str, is_sf_swizzled_layout: bool, is_sf_8x4_layout: bool) -> None:
    """Refuse the 8x4 layout without the swizzled one: the two flags contradict each other."""
    if is_sf_8x4_layout and not is_sf_swizzled_layout:
        fail(
            operator,
            "is_sf_8x4_layout",
            "True with is_sf_swizzled_layout=False",
            "False for the linear layout",
            "pass is_sf_swizzled_layout=True for the 8x4 layout",
        )
