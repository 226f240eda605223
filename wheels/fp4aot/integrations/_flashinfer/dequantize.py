"""The routes of FlashInfer's functions that dequantize, and leave the result on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot import quantization
from fp4aot.integrations._flashinfer.call import Context, Function, Route


def e2m1_and_ufp8sf_scale_to_float(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.e2m1_and_ufp8sf_scale_to_float`."""
    function = quantization.e2m1_and_ufp8sf_scale_to_float

    def answer(values: dict[str, Any]) -> torch.Tensor:
        device = values["e2m1_tensor"].device
        for name in ("ufp8_scale_tensor", "global_scale_tensor"):
            if values.get(name) is not None:
                values[name] = values[name].to(device)
        return function(**values).cpu()

    return Route(answer, function)


def mxfp4_dequantize(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.mxfp4_dequantize`."""
    function = quantization.mxfp4_dequantize

    def answer(values: dict[str, Any]) -> torch.Tensor:
        a_fp4 = values["a_fp4"]
        values["a_fp4"] = a_fp4.view(torch.uint8)
        values["a_sf"] = values["a_sf"].to(a_fp4.device).view(torch.uint8)
        return function(**values).cpu()

    return Route(answer, function)
