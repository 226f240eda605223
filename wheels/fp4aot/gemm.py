"""FP4 matrix multiplication, and the linear layer made of it.

`mm_fp4` is one operator call, as in `fp4aot.quantization`; `fp4_linear` is two.
"""

from __future__ import annotations

import torch

from fp4aot.operators.matmul import LinearArguments, check_fp4_linear

__all__ = ["fp4_linear", "mm_fp4"]

# Looked up once: `torch.ops.fp4aot.mm_fp4.default` takes half a microsecond.
_FP4_QUANTIZE = torch.ops.fp4aot.fp4_quantize.default
_MM_FP4 = torch.ops.fp4aot.mm_fp4.default
_MM_FP4_OUT = torch.ops.fp4aot.mm_fp4.out

_INPUTS = (torch.bfloat16, torch.float16)


def mm_fp4(
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
    tactic: int = -1,
) -> torch.Tensor:
    """Multiply two NVFP4 matrices, or two batches of them: `alpha * (a @ b)`.

    Parameters
    ----------
    a
        Packed e2m1, `[M, K / 2]` or `[B, M, K / 2]`, uint8 or float4_e2m1fn_x2, as `nvfp4_quantize`
        returns it. M may be 0. A non-contiguous tensor is copied first.
    b
        Packed e2m1, `[K / 2, N]` or `[B, K / 2, N]`, column major: `weight.T` of a contiguous
        `[N, K / 2]`, or `weight.transpose(-2, -1)` of a contiguous `[B, N, K / 2]`. K and N are
        positive multiples of 32. Another order is refused, because every call would copy it.
    a_descale
        E4M3 block scales of a, uint8 or float8_e4m3fn, in the 128x4 layout (`nvfp4_quantize`'s
        default): `round_up(M, 128) * round_up(K / 16, 4)` of them for each matrix, contiguous, in
        any shape. Padding along K must be finite; the quantizers write zero.
    b_descale
        The same for b, with N rows, or its transpose (FlashInfer's callers pass `b_sf.T`). Where
        128x4 needs no padding it has as many scales as the linear layout, and a wrong layout gives
        wrong results instead of an error.
    alpha
        float32, one element, on the same device. With factors quantized under global scales, pass
        `1 / (a_global_sf * b_global_sf)`. None is refused: the kernels always read it.
    out_dtype
        bfloat16 or float16; with `out`, the dtype of `out` counts.
    out
        Contiguous buffer of the result's shape.
    block_size, use_8x4_sf_layout, use_nvfp4
        FlashInfer's arguments, each only with its default.
    backend
        "auto" or "cutlass", which is the same here.
    enable_pdl
        Has no effect, as in FlashInfer's CUTLASS backend.
    tactic
        Number of a CUTLASS configuration of the device's kernels; -1 takes it from the loaded table
        of tactics, or FlashInfer's default without one. Ignored on the CPU.

    Returns
    -------
    torch.Tensor
        `[M, N]` or `[B, M, N]`, contiguous; `out` where it was given.

    Raises
    ------
    RuntimeError
        A tensor is not as described; the message names it, what it is, and what to do.
    ValueError, NotImplementedError
        An argument asks for what this package does not contain.

    Notes
    -----
    The sum over K of (value * block scale) products is accumulated in float32, multiplied by alpha
    in float32 and rounded once to the output dtype. On the CPU the sum is exact, so that results
    may differ from a GPU's, which depend on the tactic, in the last bits of float32.

    Examples
    --------
    >>> a_fp4, a_sf = nvfp4_quantize(a, a_global_sf)  # a: [M, K]
    >>> b_fp4, b_sf = nvfp4_quantize(b, b_global_sf)  # b: [N, K]
    >>> mm_fp4(a_fp4, b_fp4.T, a_sf, b_sf.T, 1 / (a_global_sf * b_global_sf))  # [M, N]
    """
    if backend not in ("auto", "cutlass"):
        raise ValueError(
            f"fp4aot.mm_fp4: backend={backend!r} is not in this package; pass backend='cutlass', "
            "or call flashinfer.mm_fp4"
        )
    if not use_nvfp4:
        raise NotImplementedError(
            "fp4aot.mm_fp4: use_nvfp4=False (MXFP4) is not in this package; quantize with "
            "nvfp4_quantize and pass use_nvfp4=True, or call flashinfer.mm_fp4"
        )
    if block_size != 16:
        raise ValueError(
            f"fp4aot.mm_fp4: block_size={block_size}; NVFP4 has blocks of 16: pass block_size=16"
        )
    if use_8x4_sf_layout:
        raise NotImplementedError(
            "fp4aot.mm_fp4: use_8x4_sf_layout=True is not in this package (FlashInfer's CUTLASS "
            "kernels read the 128x4 layout); quantize a with SfLayout.layout_128x4"
        )
    product: torch.Tensor
    if out is not None:
        _MM_FP4_OUT(a, b, a_descale, b_descale, alpha, tactic, out=out)
        product = out
    else:
        product = _MM_FP4(a, b, a_descale, b_descale, alpha, out_dtype, tactic)
    return product


def fp4_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Apply a linear layer with an NVFP4 weight: quantize x, multiply, add the bias.

    `fp4aot.nn.NVFP4Linear` holds these arguments and makes them from a checkpoint's tensors.

    Parameters
    ----------
    x
        `[..., K]`, bfloat16 or float16, with any number of leading dimensions, also empty ones.
    weight
        Packed e2m1 `[N, K / 2]`, uint8 or float4_e2m1fn_x2, contiguous. N and K are positive
        multiples of 32.
    weight_scale
        E4M3 block scales of the weight, uint8 or float8_e4m3fn, in the 128x4 layout:
        `[round_up(N, 128), round_up(K / 16, 4)]`, as `nvfp4_quantize` returns them or
        `block_scale_interleave` makes them of linear ones.
    alpha
        float32, one element: `1 / (input_global_scale * weight_global_scale)`.
    input_global_scale
        float32, one element: what x is quantized with, `448 * 6 / amax` for inputs up to amax.
    bias
        `[N]` of the output dtype.
    out_dtype
        bfloat16 or float16; by default x's.

    Returns
    -------
    torch.Tensor
        `[..., N]`.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    """
    out_dtype = x.dtype if out_dtype is None else out_dtype
    arguments = (x, weight, weight_scale, alpha, input_global_scale, bias, out_dtype)
    if torch.compiler.is_compiling() or not _operators_check(arguments):
        check_fp4_linear(arguments)
        return _linear(arguments)
    try:
        return _linear(arguments)
    except (IndexError, RuntimeError):
        # The operators name their own arguments: name this function's, if they are the cause.
        check_fp4_linear(arguments)
        raise


def _operators_check(arguments: LinearArguments) -> bool:
    """Whether the two operators refuse all that `fp4_linear` has to, so that it need not look.

    They also take float8 values, a global scale for each row and transposed block scales, and know
    no bias.
    """
    x, weight, weight_scale, _, input_global_scale, bias, out_dtype = arguments
    return (
        x.dtype in _INPUTS
        and input_global_scale.numel() == 1
        and weight_scale.is_contiguous()
        and (
            bias is None
            or (
                bias.dtype == out_dtype
                and bias.shape == weight.shape[:1]
                and bias.device == x.device
            )
        )
    )


def _linear(arguments: LinearArguments) -> torch.Tensor:
    x, weight, weight_scale, alpha, input_global_scale, bias, out_dtype = arguments
    is_matrix = x.dim() == 2
    rows = x if is_matrix else x.reshape(-1, x.shape[-1])
    # Contiguous: fp4_quantize would quantize a column-major matrix along its other dimension.
    values, block_scales = _FP4_QUANTIZE(rows.contiguous(), input_global_scale)
    product: torch.Tensor = _MM_FP4(
        values, weight.t(), block_scales, weight_scale, alpha, out_dtype
    )
    if bias is not None:
        product.add_(bias)
    return product if is_matrix else product.reshape(*x.shape[:-1], weight.shape[0])
