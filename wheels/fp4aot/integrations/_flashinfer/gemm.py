"""The route of FlashInfer's FP4 matrix multiplication."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot.integrations._flashinfer import tuning
from fp4aot.integrations._flashinfer.call import Context, Function, Route

_TUNED_BACKENDS = ("auto", "cutlass")


def mm_fp4(original: Function, context: Context) -> Route:
    """Make the route of `flashinfer.mm_fp4`: NVFP4 alone."""
    backends = context.backends
    operator = torch.ops.fp4aot.mm_fp4.default
    operator_out = torch.ops.fp4aot.mm_fp4.out

    def answer(
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        out: torch.Tensor | None = None,
        block_size: int = 16,
        use_8x4_sf_layout: bool = False,
        backend: str = "auto",
        use_nvfp4: bool = True,
        enable_pdl: bool = True,
    ) -> Any:
        if (
            backend not in backends
            or not use_nvfp4
            or block_size != 16
            or use_8x4_sf_layout
            # The kernels read one alpha, always.
            or alpha is None
            or alpha.numel() != 1
            or a.dim() != 2
            or b.dim() != 2
            # K and N; K is packed by two.
            or a.shape[1] % 16 != 0
            or b.shape[1] % 32 != 0
            # FlashInfer has tuned several backends, and chooses among them.
            or (backend == "auto" and (b.shape[1], a.shape[1] * 2) in tuning.state.other_backends)
        ):
            return NotImplemented
        if tuning.is_open(a):
            if backend in _TUNED_BACKENDS:
                return NotImplemented
            # The wheel answers this backend's calls: FlashInfer is to tune the wheel's kernels.
            scales = {"a_descale": a_descale, "b_descale": b_descale, "alpha": alpha}
            return original(a, b, **scales, out_dtype=out_dtype, out=out, backend="cutlass")
        if out is None:
            return operator(a, b, a_descale, b_descale, alpha, out_dtype, -1)
        operator_out(a, b, a_descale, b_descale, alpha, -1, out=out)
        return out

    return Route(answer)
