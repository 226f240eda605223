"""Arguments of the operators that go back to float32."""

from __future__ import annotations

import torch

from fp4aot import _layouts
from fp4aot._checks import common


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None,
    sf_vec_size: int,
    ufp8_type: int,
    is_sf_swizzled_layout: bool,
    is_sf_8x4_layout: bool,
) -> None:
    """Refuse what `e2m1_and_ufp8sf_scale_to_float` cannot dequantize."""
    name = "e2m1_and_ufp8sf_scale_to_float"
    if ufp8_type not in (0, 1):
        common.fail(
            name, "ufp8_type", f"{ufp8_type}", "0 (UE8M0) or 1 (E4M3)", "pass the scales' format"
        )
    if sf_vec_size < 2 or sf_vec_size % 2 != 0:
        common.fail(
            name,
            "sf_vec_size",
            f"{sf_vec_size}",
            "a positive even number",
            "NVFP4 uses 16 and MXFP4 uses 32",
        )
    common.check_layout_flags(name, is_sf_swizzled_layout, is_sf_8x4_layout)
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    _packed_with_scales(
        name,
        ("e2m1_tensor", e2m1_tensor),
        ("ufp8_scale_tensor", ufp8_scale_tensor),
        sf_vec_size,
        layout,
    )
    if global_scale_tensor is not None:
        common.check_scalar_scale(
            name, "global_scale_tensor", global_scale_tensor, "e2m1_tensor", e2m1_tensor
        )
    elif ufp8_type == 1:
        common.fail(
            name,
            "global_scale_tensor",
            "None",
            "a float32 tensor (E4M3 scales need one)",
            "pass the reciprocal of the global scale that fp4_quantize was given",
        )


def mxfp4_dequantize(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int) -> None:
    """Refuse what `mxfp4_dequantize` cannot dequantize."""
    name = "mxfp4_dequantize"
    if sf_layout not in (0, 1, 2):
        common.fail(
            name,
            "sf_layout",
            f"{sf_layout}",
            "0 (128x4), 1 (8x4) or 2 (linear)",
            "pass an SfLayout",
        )
    layout = _layouts.SfLayout(sf_layout)
    _packed_with_scales(name, ("a_fp4", a_fp4), ("a_sf", a_sf), 32, layout)


def dequantized_out(operator: str, packed: torch.Tensor, out: torch.Tensor) -> None:
    """Refuse a buffer that is not float32 `[M, K]` on the device of `packed` `[M, K / 2]`."""
    argument = "a_fp4" if operator == "mxfp4_dequantize" else "e2m1_tensor"
    shape = (packed.shape[0], packed.shape[1] * 2)
    common.check_output(operator, "out", out, shape, torch.float32, argument, packed)


def mxfp4_dequantize_host(weight: torch.Tensor, scale: torch.Tensor, group_size: int) -> None:
    """Refuse what the host function cannot dequantize."""
    name = "mxfp4_dequantize_host"
    common.check_dtype(name, "weight", weight, (torch.uint8,))
    common.check_rank(name, "weight", weight, (2,))
    common.check_dtype(name, "scale", scale, (torch.uint8,))
    common.check_rank(name, "scale", scale, (2,))
    if weight.device.type not in ("cpu", "meta"):
        common.fail(
            name,
            "weight",
            f"device {weight.device}",
            "cpu (this is a host function)",
            "use mxfp4_dequantize there",
        )
    common.check_same_device(name, "scale", scale, "weight", weight)
    if group_size < 1:
        common.fail(name, "group_size", f"{group_size}", "a positive number", "MXFP4 uses 32")
    rows, columns = weight.shape[0], weight.shape[1] * 2
    if scale.shape[0] != rows or scale.shape[1] * group_size != columns:
        common.fail(
            name,
            "scale",
            f"shape {common.shape_text(scale)}",
            f"[{rows}, {columns} / {group_size}] for weight of shape {common.shape_text(weight)}",
            "pass linear scales, one for each group",
        )
    common.check_int32(name, "weight", rows * columns, "a number of values of")


def mxfp4_dequantize_host_out(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int, out: torch.Tensor
) -> None:
    """Check the arguments and the buffer of the `out` form."""
    mxfp4_dequantize_host(weight, scale, group_size)
    shape = (weight.shape[0], weight.shape[1] * 2)
    common.check_output("mxfp4_dequantize_host", "out", out, shape, torch.float32, "weight", weight)


def _packed_with_scales(
    operator: str,
    packed: tuple[str, torch.Tensor],
    block_scales: tuple[str, torch.Tensor],
    sf_vec_size: int,
    layout: _layouts.SfLayout,
) -> None:
    """Require packed values `[M, K / 2]` and as many scale bytes as the layout holds for them."""
    packed_name, values = packed
    scale_name, scale_bytes = block_scales
    common.check_dtype(operator, packed_name, values, (torch.uint8,))
    common.check_rank(operator, packed_name, values, (2,))
    rows, columns = values.shape[0], values.shape[1] * 2
    if columns % sf_vec_size != 0:
        common.fail(
            operator,
            packed_name,
            f"shape {common.shape_text(values)} ({columns} values a row)",
            f"a multiple of {sf_vec_size} values a row",
            "pad the rows",
        )
    common.check_dtype(operator, scale_name, scale_bytes, (torch.uint8,))
    common.check_same_device(operator, scale_name, scale_bytes, packed_name, values)
    scale_rows, scale_columns = _layouts.scale_shape(rows, columns // sf_vec_size, layout)
    if scale_bytes.numel() != scale_rows * scale_columns:
        common.fail(
            operator,
            scale_name,
            f"shape {common.shape_text(scale_bytes)}",
            f"{scale_rows} x {scale_columns} scales in {layout.name}",
            "pass the scales and the layout that the quantizer gave",
        )
