"""FP4 matrix multiplication: `mm_fp4`, and the arguments of `fp4_linear`, which is made of it.

The CUTLASS kernels multiply e2m1 values with their E4M3 scales exactly, add up in float32 in an
order of their own, multiply the sum by alpha in float32, and round once to the output dtype. Here
the sum is exact instead, so that it depends neither on an order nor on how many rows there are: in
float64 every product is a multiple of 2^-20 and below 2^23, so up to K = 1024 no sum can round, and
beyond it the relative error is K * 2^-53 at most, of the sum of magnitudes. A kernel's float32 sum
may be off by K * 2^-24 of that.
"""

from __future__ import annotations

import math

import torch

from fp4aot import _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, e2m1, scales
from fp4aot.operators.structured import Layout, operator

_LAYOUT = _layouts.SfLayout.layout_128x4
# K and N: the kernels load and store vectors that hold 32 packed values.
_MULTIPLE = 32

_Tensor = torch.Tensor
LinearArguments = tuple[_Tensor, _Tensor, _Tensor, _Tensor, _Tensor, _Tensor | None, torch.dtype]
"""x, weight, weight_scale, alpha, input_global_scale, bias and out_dtype of `fp4_linear`."""


@operator
def mm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    out_dtype: torch.dtype,
    tactic: int,
) -> Layout:
    """Refuse what cannot be multiplied; return `[..., M, N]`."""
    name = "mm_fp4"
    checks.check_output_dtype(name, "out_dtype", out_dtype)
    checks.check_dtype(name, "a", a, checks.PACKED_DTYPES)
    checks.check_rank(name, "a", a, (2, 3))
    checks.check_dtype(name, "b", b, checks.PACKED_DTYPES)
    checks.check_rank(name, "b", b, (a.dim(),))
    checks.check_same_device(name, "b", b, "a", a)
    _check_factors(name, a, b)
    _check_block_scales(name, "a_descale", a_descale, a, ("a", a))
    weight = b.transpose(-2, -1)
    _check_block_scales(name, "b_descale", b_descale, weight, ("a", a), accept_transposed=True)
    if alpha is None:
        expected = "a float32 tensor (the kernels always read it)"
        what_to_do = "pass 1 / (a_global_sf * b_global_sf) as a tensor of shape [1]"
        checks.fail(name, "alpha", "None", expected, what_to_do)
    checks.check_dtype(name, "alpha", alpha, (torch.float32,))
    if alpha.numel() != 1:
        expected = "one element (no kernel here applies another alpha to each row)"
        what_to_do = "pass a tensor of shape [1] and scale the rows of the result"
        checks.fail_shape(name, "alpha", alpha, expected, what_to_do)
    checks.check_same_device(name, "alpha", alpha, "a", a)
    checks.check_tactic(name, "tactic", tactic)
    return Layout((*a.shape[:-1], b.shape[-1]), out_dtype)


@mm_fp4.reference
def _(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor,
    out_dtype: torch.dtype,
    tactic: int,
) -> torch.Tensor:
    if not b_descale.is_contiguous():
        b_descale = b_descale.transpose(-2, -1)
    weight = _dequantize(b.transpose(-2, -1), b_descale)
    total = torch.matmul(_dequantize(a, a_descale), weight.transpose(-2, -1)).to(torch.float32)
    return scales.multiply(total, scales.flush_subnormals(alpha.reshape(()))).to(out_dtype)


def _dequantize(packed: torch.Tensor, block_scales: torch.Tensor) -> torch.Tensor:
    """Return the values of `[..., rows, K / 2]` as float64."""
    *batch, rows, half_columns = packed.shape
    codes = scales.row_major(
        block_scales, rows, half_columns * 2 // checks.NVFP4_BLOCK, _LAYOUT, batch
    )
    values = e2m1.decode(e2m1.unpack(packed.view(torch.uint8)))
    # Exact: an E2M1 value times an E4M3 scale has at most six significant bits.
    return blocks.scale(values, scales.decode_e4m3(codes)).to(torch.float64)


def check_fp4_linear(arguments: LinearArguments) -> None:
    """Refuse what `fp4_linear` cannot compute, in the names of its own arguments."""
    x, weight, weight_scale, alpha, input_global_scale, bias, out_dtype = arguments
    name = "fp4_linear"
    checks.check_dtype(name, "x", x, checks.OUTPUT_DTYPES)
    if x.dim() == 0:
        checks.fail(name, "x", "shape []", "[..., K]", "pass a tensor with a dimension for K")
    checks.check_dtype(name, "weight", weight, checks.PACKED_DTYPES)
    checks.check_rank(name, "weight", weight, (2,))
    checks.check_same_device(name, "weight", weight, "x", x)
    rows, columns = weight.shape[0], weight.shape[1] * 2
    if x.shape[-1] != columns:
        expected = f"{x.shape[-1]} values a row, for x of shape {checks.shape_text(x)}"
        what_to_do, note = "pass the packed weight [N, K / 2]", f" ({columns} values a row)"
        checks.fail_shape(name, "weight", weight, expected, what_to_do, note)
    checks.check_positive_multiple(name, "weight", weight, columns, "values a row", _MULTIPLE)
    checks.check_positive_multiple(name, "weight", weight, rows, "rows", _MULTIPLE)
    checks.check_contiguous(name, "weight", weight, f"strides {[weight.shape[1], 1]}")
    _check_block_scales(name, "weight_scale", weight_scale, weight, ("x", x))
    checks.check_scalar_scale(name, "alpha", alpha, "x", x)
    checks.check_scalar_scale(name, "input_global_scale", input_global_scale, "x", x)
    checks.check_output_dtype(name, "out_dtype", out_dtype)
    if bias is not None:
        checks.check_dtype(name, "bias", bias, (out_dtype,))
        checks.check_shape(name, "bias", bias, (rows,), "pass one value for each row of weight")
        checks.check_same_device(name, "bias", bias, "x", x)


def _check_factors(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Require `[..., M, K / 2]` and column-major `[..., K / 2, N]` of sizes for the kernels."""
    transposed = (
        "weight.T of a contiguous weight [N, K / 2]"
        if b.dim() == 2
        else "weight.transpose(-2, -1) of a contiguous weight [B, N, K / 2]"
    )
    if a.dim() == 3 and a.shape[0] != b.shape[0]:
        expected = f"{a.shape[0]} matrices, as in a of shape {checks.shape_text(a)}"
        checks.fail_shape(name, "b", b, expected, "pass one matrix of b for each matrix of a")
    if a.shape[-1] != b.shape[-2]:
        expected = f"{a.shape[-1]} rows (K / 2), for a of shape {checks.shape_text(a)}"
        checks.fail_shape(name, "b", b, expected, f"pass {transposed}")
    checks.check_positive_multiple(name, "a", a, a.shape[-1] * 2, "values a row", _MULTIPLE)
    checks.check_positive_multiple(name, "b", b, b.shape[-1], "columns", _MULTIPLE)
    if a.dim() == 3:
        checks.check_int32(name, "a", a.shape[0], "a number of matrices of")
    checks.check_int32(name, "a", a.shape[-2], "a number of rows of")
    checks.check_int32(name, "a", a.shape[-1] * 2, "a number of values a row of")
    checks.check_int32(name, "b", b.shape[-1], "a number of columns of")
    if not b.transpose(-2, -1).is_contiguous():
        # The kernels could read it only after a copy, which every call would pay.
        rows, columns = b.shape[-2:]
        strides = [1, rows] if b.dim() == 2 else [rows * columns, 1, rows]
        expected, note = f"strides {strides} (column major)", f" with strides {list(b.stride())}"
        checks.fail_shape(name, "b", b, expected, f"pass {transposed}", note)


def _check_block_scales(
    operator: str,
    argument: str,
    scales: torch.Tensor,
    packed: torch.Tensor,
    reference: tuple[str, torch.Tensor],
    accept_transposed: bool = False,
) -> None:
    """Require scales in the 128x4 layout for packed values `[..., rows, K / 2]`.

    Their memory counts, not their shape. `accept_transposed` admits the transpose of a contiguous
    tensor, which is how FlashInfer's callers pass the scales of b.
    """
    checks.check_dtype(operator, argument, scales, checks.E4M3_DTYPES)
    checks.check_same_device(operator, argument, scales, *reference)
    transposed = accept_transposed and scales.dim() >= 2
    if not (transposed and scales.transpose(-2, -1).is_contiguous()):
        accepted = "contiguous scales" + (" or their transpose" if accept_transposed else "")
        what_to_do = "pass them as the quantizer returned them"
        checks.check_contiguous(operator, argument, scales, accepted, what_to_do)
    expected = _scale_count(packed, _LAYOUT)
    if scales.numel() != expected:
        *batch, rows, half_columns = packed.shape
        each = f" for each of {batch[0]} matrices with" if batch else " for"
        checks.fail(
            operator,
            argument,
            f"{scales.numel()} scales{_likeness(scales, packed)}",
            f"{expected} (layout_128x4{each} {rows} rows of {half_columns * 2} values)",
            "quantize with the 128x4 layout" + (", each matrix by itself" if batch else ""),
        )


def _scale_count(packed: torch.Tensor, layout: _layouts.SfLayout) -> int:
    *batch, rows, half_columns = packed.shape
    shape = _layouts.scale_shape(rows, half_columns * 2 // checks.NVFP4_BLOCK, layout)
    return math.prod((*batch, *shape))


def _likeness(scales: torch.Tensor, packed: torch.Tensor) -> str:
    """Name the other layout that has as many scales, which is then what they are likely in."""
    for layout in (_layouts.SfLayout.layout_linear, _layouts.SfLayout.layout_8x4):
        if scales.numel() == _scale_count(packed, layout):
            return f", as many as {layout.name} has"
    return ""
