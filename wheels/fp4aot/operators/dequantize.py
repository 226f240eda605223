"""FP4 back to float32.

`e2m1_and_ufp8sf_scale_to_float` and `mxfp4_dequantize` serve CUDA tensors as well: FlashInfer has
only host code for them. So nothing here may wait for the device: no `.item()`, no copy from the
host, no indexing by a boolean mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fp4aot import _layouts
from fp4aot.operators import argument_checks as checks
from fp4aot.operators.arithmetic import blocks, e2m1, scales
from fp4aot.operators.structured import Layout, operator

_MXFP4_BLOCK = 32


@operator(keys=("CPU", "CUDA"))
def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None,
    sf_vec_size: int,
    ufp8_type: int,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
) -> Layout:
    """Refuse what cannot be dequantized; return float32 `[M, K]`."""
    name = "e2m1_and_ufp8sf_scale_to_float"
    if ufp8_type not in (0, 1):
        expected = "0 (UE8M0) or 1 (E4M3)"
        checks.fail(name, "ufp8_type", f"{ufp8_type}", expected, "pass the scales' format")
    if sf_vec_size < 2 or sf_vec_size % 2 != 0:
        expected, what_to_do = "a positive even number", "NVFP4 uses 16 and MXFP4 uses 32"
        checks.fail(name, "sf_vec_size", f"{sf_vec_size}", expected, what_to_do)
    checks.check_layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    packed, block_scales = ("e2m1_tensor", e2m1_tensor), ("ufp8_scale_tensor", ufp8_scale_tensor)
    _check_packed_with_scales(name, packed, block_scales, sf_vec_size, layout)
    if global_scale_tensor is not None:
        checks.check_scalar_scale(name, "global_scale_tensor", global_scale_tensor, *packed)
    elif ufp8_type == 1:
        expected = "a float32 tensor (E4M3 scales need one)"
        what_to_do = "pass the reciprocal of the global scale that fp4_quantize was given"
        checks.fail(name, "global_scale_tensor", "None", expected, what_to_do)
    return _float32(e2m1_tensor)


@e2m1_and_ufp8sf_scale_to_float.reference
def _(*arguments: Any) -> torch.Tensor:
    # As `E2M1AndUFP8SFScaleToFloatV2` in FlashInfer's `fp4Op.cpp`.
    values, block_scales, global_scale, sf_vec_size, ufp8_type, *layout_flags = arguments
    rows, half_columns = values.shape
    layout = _layouts.layout_from_flags(*layout_flags)
    codes = scales.row_major(block_scales, rows, half_columns * 2 // sf_vec_size, layout)
    if ufp8_type == 0:
        factors = scales.decode_ue8m0_by_shift(codes)
    else:
        factors = scales.decode_e4m3(codes) * global_scale.reshape(1, 1)
    return blocks.scale(e2m1.decode(e2m1.unpack(values)), factors)


@operator(keys=("CPU", "CUDA"))
def mxfp4_dequantize(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int) -> Layout:
    """Refuse what cannot be dequantized; return float32 `[M, K]`."""
    name = "mxfp4_dequantize"
    layout = checks.check_sf_layout(name, sf_layout)
    _check_packed_with_scales(name, ("a_fp4", a_fp4), ("a_sf", a_sf), _MXFP4_BLOCK, layout)
    return _float32(a_fp4)


@mxfp4_dequantize.reference
def _(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int) -> torch.Tensor:
    # UE8M0 scales are read by shifting: code 0 is 0.0.
    rows, half_columns = a_fp4.shape
    layout = _layouts.SfLayout(sf_layout)
    codes = scales.row_major(a_sf, rows, half_columns * 2 // _MXFP4_BLOCK, layout)
    return blocks.scale(e2m1.decode(e2m1.unpack(a_fp4)), scales.decode_ue8m0_by_shift(codes))


# FlashInfer's own host code, compiled into the library, is this operator's CPU kernel.
@operator(keys=())
def mxfp4_dequantize_host(weight: torch.Tensor, scale: torch.Tensor, group_size: int) -> Layout:
    """Refuse what the host function cannot dequantize; return float32 `[M, K]`."""
    name = "mxfp4_dequantize_host"
    for argument, tensor in (("weight", weight), ("scale", scale)):
        checks.check_dtype(name, argument, tensor, (torch.uint8,))
        checks.check_rank(name, argument, tensor, (2,))
    if weight.device.type not in ("cpu", "meta"):
        got, expected = f"device {weight.device}", "cpu (this is a host function)"
        checks.fail(name, "weight", got, expected, "use mxfp4_dequantize there")
    checks.check_same_device(name, "scale", scale, "weight", weight)
    if group_size < 1:
        checks.fail(name, "group_size", f"{group_size}", "a positive number", "MXFP4 uses 32")
    rows, columns = weight.shape[0], weight.shape[1] * 2
    if scale.shape[0] != rows or scale.shape[1] * group_size != columns:
        expected = f"[{rows}, {columns} / {group_size}] for weight of shape {list(weight.shape)}"
        checks.fail_shape(name, "scale", scale, expected, "pass linear scales, one for each group")
    checks.check_int32(name, "weight", rows * columns, "a number of values of")
    return _float32(weight)


@mxfp4_dequantize_host.reference
def _(weight: torch.Tensor, scale: torch.Tensor, group_size: int) -> torch.Tensor:
    # Unlike `mxfp4_dequantize`, scale code 0 is 2^-127, code 255 is NaN, and E2M1 code 8 is +0:
    # adding zero turns -0 into +0 and changes nothing else.
    return blocks.scale(e2m1.decode(e2m1.unpack(weight)) + 0.0, scales.decode_ue8m0(scale))


def _float32(packed: torch.Tensor) -> Layout:
    return Layout((packed.shape[0], packed.shape[1] * 2), torch.float32)


def _check_packed_with_scales(
    operator: str,
    packed: tuple[str, torch.Tensor],
    block_scales: tuple[str, torch.Tensor],
    sf_vec_size: int,
    layout: _layouts.SfLayout,
) -> None:
    """Require packed values `[M, K / 2]` and as many scale bytes as the layout holds for them."""
    checks.check_dtype(operator, *packed, (torch.uint8,))
    checks.check_rank(operator, *packed, (2,))
    checks.check_blocks(operator, *packed, sf_vec_size, values_of_element=2)
    checks.check_dtype(operator, *block_scales, (torch.uint8,))
    checks.check_same_device(operator, *block_scales, *packed)
    rows, half_columns = packed[1].shape
    shape = _layouts.scale_shape(rows, half_columns * 2 // sf_vec_size, layout)
    if block_scales[1].numel() != math.prod(shape):
        expected = f"{shape[0]} x {shape[1]} scales in {layout.name}"
        what_to_do = "pass the scales and the layout that the quantizer gave"
        checks.fail_shape(operator, *block_scales, expected, what_to_do)
