"""Blocks of float16 or bfloat16 values to E2M1 with E4M3 scales, by either recipe.

Each float32 operation of `cvt_warp_fp16_to_fp4` in FlashInfer 0.7.2's `quantization_utils.cuh` is
repeated in its order, with the flushing of subnormals that `-use_fast_math` implies. The one step
that is not the GPU's is the reciprocal: see `scales.reciprocal` for what may differ. Under the
4-over-6 recipe that includes the choice between two candidates whose errors are nearly equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from fp4aot import _recipes
from fp4aot.operators.arithmetic import blocks, e2m1, scales
from fp4aot.operators.arithmetic.blocks import Blocks


def quantize(
    elements: torch.Tensor,
    factor: torch.Tensor,
    recipe: int = _recipes.STANDARD,
    row_maximum: torch.Tensor | None = None,
) -> Blocks:
    """Quantize by the recipe of a code.

    Parameters
    ----------
    elements
        float32 `[..., K / 16, 16]`.
    factor
        Global scales by which block scales are multiplied, not subnormal; `[..., 1]`, to be
        broadcast over the blocks of a row.
    recipe
        Code of the recipe.
    row_maximum
        Largest magnitude of each row, `[..., 1]`, where the scale is made from it.
    """
    config = _recipes.nvfp4_4over6_from_code(recipe)
    if config is None:
        return standard(elements, factor, scales.reciprocal(factor))
    return _four_over_six(scales.flush_subnormals(elements), factor, config, row_maximum)


def standard(
    elements: torch.Tensor,
    encode_scale: torch.Tensor,
    decode_scale: torch.Tensor,
    find_maximum: Callable[[torch.Tensor], torch.Tensor] = blocks.maximum_of_pairs,
) -> Blocks:
    """Scale each block so that its maximum becomes 6.

    The block scale is multiplied by `encode_scale` before it is rounded, and by `decode_scale`
    afterwards. Each is the other's reciprocal, and kernels differ in which of the two is given, and
    in what NaN does to the maximum.
    """
    elements = scales.flush_subnormals(elements)
    maximum = find_maximum(elements)
    scale_codes = scales.encode_e4m3(scales.multiply(blocks.sixth(maximum), encode_scale))
    output_scale = _output_scale(scales.decode_e4m3(scale_codes), decode_scale)
    output_scale = output_scale.masked_fill(maximum == 0.0, 0.0)
    return Blocks(blocks.encode(elements, output_scale), scale_codes)


def _output_scale(block_scale: torch.Tensor, decode_scale: torch.Tensor) -> torch.Tensor:
    return scales.reciprocal(scales.multiply(block_scale, decode_scale))


class _Candidate(NamedTuple):
    """One of the two ways to quantize a block.

    Attributes
    ----------
    blocks
        Codes and scale codes.
    scaled
        E2M1 value times block scale, `[..., K / 16, 16]`.
    """

    blocks: Blocks
    scaled: torch.Tensor


def _four_over_six(
    elements: torch.Tensor,
    factor: torch.Tensor,
    config: _recipes.NVFP44Over6Config,
    row_maximum: torch.Tensor | None,
) -> Blocks:
    """Make each block's maximum 6 or 4, whichever gives the smaller error; 6 when they are equal.

    A block whose maximum is zero gets nothing but zero bytes, even for -0 and NaN.
    """
    maximum = blocks.maximum_of_pairs(elements)
    decode_scale = scales.reciprocal(factor)
    scale_for_6 = scales.multiply(blocks.sixth(maximum), factor)
    scale_for_4 = scales.multiply(scale_for_6, 1.5)
    six = _candidate(elements, scale_for_6, decode_scale)
    four = _candidate(elements, scale_for_4, decode_scale)
    error_of_six, error_of_four = (
        _error(
            config,
            _scaled_difference(candidate, elements, factor)
            if config.err_use_fast_math
            else _difference(candidate, elements, decode_scale, config, row_maximum),
        )
        for candidate in (six, four)
    )
    take_four = error_of_four < error_of_six
    codes = torch.where(take_four.unsqueeze(-1), four.blocks.codes, six.blocks.codes)
    scale_codes = torch.where(take_four, four.blocks.scale_codes, six.blocks.scale_codes)
    empty = maximum == 0.0
    return Blocks(codes.masked_fill(empty.unsqueeze(-1), 0), scale_codes.masked_fill(empty, 0))


def _candidate(
    elements: torch.Tensor, scale: torch.Tensor, decode_scale: torch.Tensor
) -> _Candidate:
    scale_codes = scales.encode_e4m3(scale)
    rounded_scale = scales.decode_e4m3(scale_codes)
    codes = blocks.encode(elements, _output_scale(rounded_scale, decode_scale))
    # At most six significant bits: exact in float32, and in the float16 of the fast error.
    scaled = e2m1.decode(codes) * rounded_scale.unsqueeze(-1)
    return _Candidate(Blocks(codes, scale_codes), scaled)


def _difference(
    candidate: _Candidate,
    elements: torch.Tensor,
    decode_scale: torch.Tensor,
    config: _recipes.NVFP44Over6Config,
    row_maximum: torch.Tensor | None,
) -> torch.Tensor:
    """Return restored values minus elements."""
    if row_maximum is None:
        restored = scales.multiply(candidate.scaled, decode_scale.unsqueeze(-1))
    else:
        # The kernel with per-row scales restores by what the scale stands for. (Not in a row whose
        # maximum is zero, but there no block has two candidates that differ.)
        product = scales.multiply(candidate.scaled, row_maximum.unsqueeze(-1))
        restored = scales.flush_subnormals(product / (6.0 * config.e4m3_max))
    return scales.flush_subnormals(restored - elements)


def _scaled_difference(
    candidate: _Candidate, elements: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    """Return scaled values minus elements times the global scale."""
    exact = scales.multiply(elements, factor.unsqueeze(-1))
    return scales.flush_subnormals(candidate.scaled - exact)


def _error(config: _recipes.NVFP44Over6Config, differences: torch.Tensor) -> torch.Tensor:
    """Sum the errors of each block in the order of its elements, which decides the rounding.

    Kernels that CUDA 12.8 compiles may sum the halves of a block first.
    """
    if config.err_mode == _recipes.NVFP44Over6ErrMode.MSE:
        terms = scales.multiply(differences, differences)
    else:
        terms = differences.abs()
    total = torch.zeros_like(terms[..., 0])
    for position in range(terms.shape[-1]):
        total = total + terms[..., position]
    return total
