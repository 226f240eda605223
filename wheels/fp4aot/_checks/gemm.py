"""Arguments of `mm_fp4` and of `fp4_linear`, which is made of it."""

from __future__ import annotations

import math

import torch

from fp4aot import _layouts
from fp4aot._checks import common

_BLOCK = 16
# K and N: the kernels load and store vectors that hold 32 packed values.
_MULTIPLE = 32
_PACKED = (torch.uint8, torch.float4_e2m1fn_x2)
_SCALES = (torch.uint8, torch.float8_e4m3fn)
_OUTPUTS = (torch.bfloat16, torch.float16)


def mm_fp4(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    tactic: int,
    out_dtype: torch.dtype,
) -> None:
    """Refuse what `mm_fp4` cannot multiply."""
    _operands(a, b, a_descale, b_descale, alpha, tactic)
    _output_dtype("mm_fp4", out_dtype)


def mm_fp4_out(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    tactic: int,
    out: torch.Tensor,
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    _operands(a, b, a_descale, b_descale, alpha, tactic)
    common.check_dtype("mm_fp4", "out", out, _OUTPUTS)
    shape = (*a.shape[:-1], b.shape[-1])
    common.check_output("mm_fp4", "out", out, shape, out.dtype, "a", a)


def fp4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> None:
    """Refuse what `fp4_linear` cannot compute, in the names of its own arguments."""
    name = "fp4_linear"
    common.check_dtype(name, "x", x, _OUTPUTS)
    if x.dim() == 0:
        common.fail(name, "x", "shape []", "[..., K]", "pass a tensor with a dimension for K")
    common.check_dtype(name, "weight", weight, _PACKED)
    common.check_rank(name, "weight", weight, (2,))
    common.check_same_device(name, "weight", weight, "x", x)
    if x.shape[-1] != weight.shape[1] * 2:
        common.fail(
            name,
            "weight",
            f"shape {common.shape_text(weight)} ({weight.shape[1] * 2} values a row)",
            f"{x.shape[-1]} values a row, for x of shape {common.shape_text(x)}",
            "pass the packed weight [N, K / 2]",
        )
    common.check_positive_multiple(
        name, "weight", weight, weight.shape[1] * 2, "values a row", _MULTIPLE
    )
    common.check_positive_multiple(name, "weight", weight, weight.shape[0], "rows", _MULTIPLE)
    if not weight.is_contiguous():
        common.fail(
            name,
            "weight",
            f"shape {common.shape_text(weight)} with strides {list(weight.stride())}",
            f"strides {[weight.shape[1], 1]}",
            "make it contiguous once, where it is loaded",
        )
    _block_scales(name, "weight_scale", weight_scale, weight, ("x", x))
    common.check_scalar_scale(name, "alpha", alpha, "x", x)
    common.check_scalar_scale(name, "input_global_scale", input_global_scale, "x", x)
    _output_dtype(name, out_dtype)
    if bias is not None:
        common.check_dtype(name, "bias", bias, (out_dtype,))
        if bias.dim() != 1 or bias.shape[0] != weight.shape[0]:
            got, expected = f"shape {common.shape_text(bias)}", f"[{weight.shape[0]}]"
            common.fail(name, "bias", got, expected, "pass one value for each row of weight")
        common.check_same_device(name, "bias", bias, "x", x)


def _operands(
    a: torch.Tensor,
    b: torch.Tensor,
    a_descale: torch.Tensor,
    b_descale: torch.Tensor,
    alpha: torch.Tensor | None,
    tactic: int,
) -> None:
    """Refuse arguments of `mm_fp4` that are wrong whatever the dtype of the result."""
    name = "mm_fp4"
    common.check_dtype(name, "a", a, _PACKED)
    common.check_rank(name, "a", a, (2, 3))
    common.check_dtype(name, "b", b, _PACKED)
    common.check_rank(name, "b", b, (a.dim(),))
    common.check_same_device(name, "b", b, "a", a)
    _matching_shapes(a, b)
    _column_major(b)
    _block_scales(name, "a_descale", a_descale, a, ("a", a))
    weight = b.transpose(-2, -1)
    _block_scales(name, "b_descale", b_descale, weight, ("a", a), accept_transposed=True)
    if alpha is None:
        common.fail(
            name,
            "alpha",
            "None",
            "a float32 tensor (the kernels always read it)",
            "pass 1 / (a_global_sf * b_global_sf) as a tensor of shape [1]",
        )
    common.check_dtype(name, "alpha", alpha, (torch.float32,))
    if alpha.numel() != 1:
        common.fail(
            name,
            "alpha",
            f"shape {common.shape_text(alpha)}",
            "one element (no kernel here applies another alpha to each row)",
            "pass a tensor of shape [1] and scale the rows of the result",
        )
    common.check_same_device(name, "alpha", alpha, "a", a)
    if tactic < -1:
        expected = "the number of a tactic, or -1 to have one chosen"
        common.fail(name, "tactic", f"{tactic}", expected, "pass -1")


def _matching_shapes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Require `[..., M, K / 2]` and `[..., K / 2, N]`, with sizes that the kernels can take."""
    name = "mm_fp4"
    if a.dim() == 3 and a.shape[0] != b.shape[0]:
        common.fail(
            name,
            "b",
            f"shape {common.shape_text(b)}",
            f"{a.shape[0]} matrices, as in a of shape {common.shape_text(a)}",
            "pass one matrix of b for each matrix of a",
        )
    if a.shape[-1] != b.shape[-2]:
        common.fail(
            name,
            "b",
            f"shape {common.shape_text(b)}",
            f"{a.shape[-1]} rows (K / 2), for a of shape {common.shape_text(a)}",
            _pass_transposed(b),
        )
    common.check_positive_multiple(name, "a", a, a.shape[-1] * 2, "values a row", _MULTIPLE)
    common.check_positive_multiple(name, "b", b, b.shape[-1], "columns", _MULTIPLE)
    if a.dim() == 3:
        common.check_int32(name, "a", a.shape[0], "a number of matrices of")
    common.check_int32(name, "a", a.shape[-2], "a number of rows of")
    common.check_int32(name, "a", a.shape[-1] * 2, "a number of values a row of")
    common.check_int32(name, "b", b.shape[-1], "a number of columns of")


def _column_major(b: torch.Tensor) -> None:
    """Refuse a `b` that the kernels could only read after a copy, which every call would pay."""
    if b.transpose(-2, -1).is_contiguous():
        return
    rows, columns = b.shape[-2], b.shape[-1]
    strides = [1, rows] if b.dim() == 2 else [rows * columns, 1, rows]
    common.fail(
        "mm_fp4",
        "b",
        f"shape {common.shape_text(b)} with strides {list(b.stride())}",
        f"strides {strides} (column major)",
        _pass_transposed(b),
    )


def _pass_transposed(b: torch.Tensor) -> str:
    if b.dim() == 2:
        return "pass weight.T of a contiguous weight [N, K / 2]"
    return "pass weight.transpose(-2, -1) of a contiguous weight [B, N, K / 2]"


def _block_scales(
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
    common.check_dtype(operator, argument, scales, _SCALES)
    common.check_same_device(operator, argument, scales, *reference)
    transposed = accept_transposed and scales.dim() >= 2
    if not scales.is_contiguous() and not (transposed and scales.transpose(-2, -1).is_contiguous()):
        common.fail(
            operator,
            argument,
            f"shape {common.shape_text(scales)} with strides {list(scales.stride())}",
            "contiguous scales" + (" or their transpose" if accept_transposed else ""),
            "pass them as the quantizer returned them",
        )
    expected = _scale_count(packed, _layouts.SfLayout.layout_128x4)
    if scales.numel() != expected:
        rows = f"{packed.shape[-2]} rows of {packed.shape[-1] * 2} values"
        batched = packed.dim() == 3
        common.fail(
            operator,
            argument,
            f"{scales.numel()} scales{_likeness(scales, packed)}",
            f"{expected} (layout_128x4"
            + (
                f" for each of {packed.shape[0]} matrices with {rows})"
                if batched
                else f" for {rows})"
            ),
            "quantize with the 128x4 layout" + (", each matrix by itself" if batched else ""),
        )


def _scale_count(packed: torch.Tensor, layout: _layouts.SfLayout) -> int:
    *batch, rows, half_columns = packed.shape
    return math.prod((*batch, *_layouts.scale_shape(rows, half_columns * 2 // _BLOCK, layout)))


def _likeness(scales: torch.Tensor, packed: torch.Tensor) -> str:
    """Name the other layout that has as many scales, which is then what they are likely in."""
    for layout in (_layouts.SfLayout.layout_linear, _layouts.SfLayout.layout_8x4):
        if scales.numel() == _scale_count(packed, layout):
            return f", as many as {layout.name} has"
    return ""


def _output_dtype(operator: str, out_dtype: torch.dtype) -> None:
    if out_dtype not in _OUTPUTS:
        expected = "torch.bfloat16 or torch.float16"
        common.fail(operator, "out_dtype", str(out_dtype), expected, "convert the result instead")
