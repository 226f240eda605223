"""Replacement of FlashInfer's FP4 matrix multiplication."""

from __future__ import annotations

from typing import Any

import torch

from fp4aot.integrations._flashinfer.call import (
    Context,
    Function,
    Original,
    asks_for_more,
    forwarder,
)


def mm_fp4(original: Original, context: Context) -> Function:
    """Make the replacement of `flashinfer.mm_fp4`."""
    forward = forwarder(original)
    backends = context.backends

    def routed(
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        out: torch.Tensor | None = None,
        block_size: int = 16,
        use_8x4_sf_layout: bool = False,
        backend: str = original.backend,
        use_nvfp4: bool = True,
        enable_pdl: bool = True,
        **more: Any,
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
            or asks_for_more(more)
        ):
            return forward(
                more,
                a=a,
                b=b,
                a_descale=a_descale,
                b_descale=b_descale,
                alpha=alpha,
                out_dtype=out_dtype,
                out=out,
                block_size=block_size,
                use_8x4_sf_layout=use_8x4_sf_layout,
                backend=backend,
                use_nvfp4=use_nvfp4,
                enable_pdl=enable_pdl,
            )
        if out is None:
            return torch.ops.fp4aot.mm_fp4.default(a, b, a_descale, b_descale, alpha, out_dtype, -1)
        torch.ops.fp4aot.mm_fp4.out(a, b, a_descale, b_descale, alpha, -1, out=out)
        return out

    return routed
