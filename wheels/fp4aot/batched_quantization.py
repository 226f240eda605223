"""NVFP4 quantization of batches, with FlashInfer's names and argument order.

Every function here is one operator call, as in `fp4aot.quantization`.
"""

from __future__ import annotations

import torch

from fp4aot._recipes import NVFP44Over6Config, recipe_code

__all__ = [
    "nvfp4_batched_quantize",
    "scaled_fp4_grouped_quantize",
    "silu_and_mul_scaled_nvfp4_experts_quantize",
]


def nvfp4_batched_quantize(
    a: torch.Tensor,
    a_global_sf: torch.Tensor,
    sf_vec_size: int = 16,
    nvfp4_4over6: NVFP44Over6Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each matrix of a batch to NVFP4. `fp4_quantize` has the arithmetic.

    Parameters
    ----------
    a
        `[B, M, K]` of dtype float16, bfloat16 or float8_e4m3fn, K divisible by 16. A non-contiguous
        tensor is copied first.
    a_global_sf
        float32 on the same device, with one element, or with M: one for each row, the same for all
        matrices.
    sf_vec_size
        Only 16.
    nvfp4_4over6
        The recipe, as in `fp4_quantize`.

    Returns
    -------
    values : torch.Tensor
        uint8 `[B, M, K / 2]`.
    block_scales : torch.Tensor
        uint8 `[B, round_up(M, 128) * round_up(K / 16, 4)]`: the 128x4 layout of each matrix, with
        zeros for padding.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    TypeError
        `nvfp4_4over6` is not a recipe.
    """
    recipe = recipe_code("nvfp4_batched_quantize", "nvfp4_4over6", nvfp4_4over6)
    values, block_scales = torch.ops.fp4aot.nvfp4_batched_quantize.default(
        a, a_global_sf, sf_vec_size, recipe
    )
    return values, block_scales


def scaled_fp4_grouped_quantize(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: NVFP44Over6Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize the first rows of each matrix to NVFP4, for FlashInfer's masked grouped GEMM.

    Parameters
    ----------
    a
        `[B, M, K]` of dtype float16 or bfloat16, K divisible by 16: the rows of B experts. A
        non-contiguous tensor is copied first.
    mask
        int32 `[B]`: how many rows of each matrix count. A negative number is none, one above M is
        all.
    a_global_sf
        float32 `[B]`: the global scale of each matrix.
    nvfp4_4over6
        The recipe, as in `fp4_quantize`.

    Returns
    -------
    values : torch.Tensor
        uint8 `[M, K / 2, B]`, a view of contiguous `[B, M, K / 2]`.
    block_scales : torch.Tensor
        float8_e4m3fn `[32, 4, rm, 4, rk, B]`, a view of contiguous `[B, rm, rk, 32, 4, 4]`, the
        128x4 layout of each matrix, with `rm = ceil(M / 128)` and `rk = ceil(K / 64)`.

    Raises
    ------
    RuntimeError
        A tensor is not as described; the message names it, what it is, and what to do.
    TypeError
        `nvfp4_4over6` is not a recipe.

    Notes
    -----
    On a GPU, the values of rows that do not count hold whatever was in memory, and the `.out` form
    of the operator leaves them as they are; the CPU kernel returns zeros. The same goes for their
    scales and the scales' padding, unless K is not divisible by 64: then all of that is zero, for
    padding columns meet real rows in a GEMM. The arithmetic is that of `fp4_quantize`.
    """
    recipe = recipe_code("scaled_fp4_grouped_quantize", "nvfp4_4over6", nvfp4_4over6)
    values, block_scales = torch.ops.fp4aot.scaled_fp4_grouped_quantize.default(
        a, mask, a_global_sf, recipe
    )
    return values, block_scales


def silu_and_mul_scaled_nvfp4_experts_quantize(
    a: torch.Tensor,
    mask: torch.Tensor,
    a_global_sf: torch.Tensor,
    nvfp4_4over6: NVFP44Over6Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply SiLU and multiplication to the first rows of each matrix, then quantize them to NVFP4.

    Parameters
    ----------
    a
        `[B, M, 2 K]` of dtype float16 or bfloat16, K divisible by 16: each row is K gates, then K
        factors. A non-contiguous tensor is copied first.
    mask, a_global_sf, nvfp4_4over6
        As in `scaled_fp4_grouped_quantize`.

    Returns
    -------
    values, block_scales : torch.Tensor
        As in `scaled_fp4_grouped_quantize`, for `[B, M, K]`.

    Raises
    ------
    RuntimeError
        A tensor is not as described; the message names it, what it is, and what to do.
    TypeError
        `nvfp4_4over6` is not a recipe.

    Notes
    -----
    `gate / (1 + exp(-gate)) * factor` is computed in float32 and rounded to the dtype of `a`, and
    that is quantized; from `silu_and_mul` in FlashInfer's `quantization_utils.cuh`. A GPU's
    exponential and division are approximate, so that a few results may be the neighbouring value of
    that dtype.
    """
    recipe = recipe_code("silu_and_mul_scaled_nvfp4_experts_quantize", "nvfp4_4over6", nvfp4_4over6)
    operator = torch.ops.fp4aot.silu_and_mul_scaled_nvfp4_experts_quantize.default
    values, block_scales = operator(a, mask, a_global_sf, recipe)
    return values, block_scales
