"""FP4 back to float32 in plain PyTorch.

`e2m1_and_ufp8sf_scale_to_float` and `mxfp4_dequantize` serve CUDA tensors as well: FlashInfer has
only host code for them. So nothing here may wait for the device: no `.item()`, no copy from the
host, no indexing by a boolean mask.
"""

from __future__ import annotations

import torch

from fp4aot import _checks, _layouts
from fp4aot._reference import e2m1, scales


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
) -> torch.Tensor:
    """Dequantize with E4M3 or UE8M0 scales (`E2M1AndUFP8SFScaleToFloatV2` in `fp4Op.cpp`)."""
    _checks.e2m1_and_ufp8sf_scale_to_float(
        e2m1_tensor,
        ufp8_scale_tensor,
        global_scale_tensor,
        sf_vec_size,
        ufp8_type,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
    )
    layout = _layouts.layout_from_flags(is_sf_swizzled_layout, is_sf_8x4_layout)
    scale_codes = _linear_scales(e2m1_tensor, ufp8_scale_tensor, sf_vec_size, layout)
    if ufp8_type == 0:
        factors = scales.decode_ue8m0_by_shift(scale_codes)
    else:
        assert global_scale_tensor is not None  # noqa: S101 (the check above has refused None)
        factors = scales.decode_e4m3(scale_codes) * global_scale_tensor.reshape(1, 1)
    return scale_blocks(e2m1.decode(e2m1.unpack(e2m1_tensor)), factors)


def e2m1_and_ufp8sf_scale_to_float_out(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    *,
    out: torch.Tensor,
) -> None:
    """Dequantize into the caller's buffer."""
    result = e2m1_and_ufp8sf_scale_to_float(
        e2m1_tensor,
        ufp8_scale_tensor,
        global_scale_tensor,
        sf_vec_size,
        ufp8_type,
        is_sf_swizzled_layout,
        is_sf_8x4_layout,
    )
    _checks.dequantized_out("e2m1_and_ufp8sf_scale_to_float", e2m1_tensor, out)
    out.copy_(result)


def mxfp4_dequantize(a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int = 0) -> torch.Tensor:
    """Dequantize MXFP4: blocks of 32, UE8M0 scales read by shifting (code 0 is 0.0)."""
    _checks.mxfp4_dequantize(a_fp4, a_sf, sf_layout)
    scale_codes = _linear_scales(a_fp4, a_sf, 32, _layouts.SfLayout(sf_layout))
    factors = scales.decode_ue8m0_by_shift(scale_codes)
    return scale_blocks(e2m1.decode(e2m1.unpack(a_fp4)), factors)


def mxfp4_dequantize_out(
    a_fp4: torch.Tensor, a_sf: torch.Tensor, sf_layout: int = 0, *, out: torch.Tensor
) -> None:
    """Dequantize MXFP4 into the caller's buffer."""
    result = mxfp4_dequantize(a_fp4, a_sf, sf_layout)
    _checks.dequantized_out("mxfp4_dequantize", a_fp4, out)
    out.copy_(result)


def mxfp4_dequantize_host(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int = 32
) -> torch.Tensor:
    """Repeat FlashInfer's host function, whose C++ the package ships: an oracle for the tests.

    Unlike `mxfp4_dequantize`, scale code 0 is 2^-127, code 255 is NaN, and E2M1 code 8 is +0.
    """
    _checks.mxfp4_dequantize_host(weight, scale, group_size)
    # Adding zero turns -0 into +0 and changes nothing else.
    values = e2m1.decode(e2m1.unpack(weight)) + 0.0
    return scale_blocks(values, scales.decode_ue8m0(scale))


def scale_blocks(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply each block of `values` `[..., K]` by its factor, `factors` `[..., K / block]`."""
    if values.numel() == 0:
        return values
    block = values.shape[-1] // factors.shape[-1]
    blocks = values.reshape(*factors.shape, block) * factors.unsqueeze(-1)
    return blocks.reshape(values.shape)


def _linear_scales(
    packed: torch.Tensor, scale_codes: torch.Tensor, sf_vec_size: int, layout: _layouts.SfLayout
) -> torch.Tensor:
    """Return the scale factors of `packed` `[M, K / 2]` in row-major order, without padding."""
    rows, columns = packed.shape[0], packed.shape[1] * 2 // sf_vec_size
    buffer = scale_codes.reshape(_layouts.scale_shape(rows, columns, layout))
    return _layouts.unswizzle(buffer, layout)[:rows, :columns]
