"""Row order of weights for FlashInfer's TensorRT-LLM GEMMs, with FlashInfer's names.

Plain torch operations on the tensor's device: nothing is read on the host.
"""

from __future__ import annotations

import torch

__all__ = ["shuffle_matrix_a", "shuffle_matrix_sf_a"]

# A block of rows is this many runs, whose rows are dealt out to 2 or 4 groups.
_RUNS = 8
_SCALE_ROWS = 128


def shuffle_matrix_a(input_tensor: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
    """Reorder the rows of a weight for a TensorRT-LLM GEMM.

    Parameters
    ----------
    input_tensor
        `[M, K]` of any dtype, as `[M, K / 2]` bytes of FP4.
    epilogue_tile_m
        Tile of the GEMM's epilogue along M. For a multiple of 128, rows are reordered within blocks
        of 32, otherwise within blocks of 16; M must be divisible by that.

    Returns
    -------
    torch.Tensor
        A new contiguous tensor of the same shape and dtype.

    Raises
    ------
    ValueError
        The tensor is not as described.

    Notes
    -----
    In a block of 8 * g rows, g = 4 or 2, row `g * i + j` becomes row `8 * j + i`: every g-th row
    comes first, then their successors, and so on. The same order as FlashInfer's row maps.
    """
    function = "shuffle_matrix_a"
    groups = _groups(function, epilogue_tile_m)
    block = _RUNS * groups
    if input_tensor.dim() != 2 or input_tensor.shape[0] % block != 0:
        raise ValueError(
            f"fp4aot.{function}: input_tensor has shape {list(input_tensor.shape)}; pass a matrix "
            f"with rows divisible by {block}, or pad its rows"
        )
    return _shuffle_rows(input_tensor, groups)


def shuffle_matrix_sf_a(
    input_tensor: torch.Tensor, epilogue_tile_m: int, num_elts_per_sf: int = 16
) -> torch.Tensor:
    """Reorder the rows of block scales as `shuffle_matrix_a` does, then swizzle them.

    Parameters
    ----------
    input_tensor
        `[M, K / block]` in the linear layout, uint8 or bfloat16, M divisible by 128.
    epilogue_tile_m
        As for `shuffle_matrix_a`.
    num_elts_per_sf
        Values that share a scale, 16 or 32. The order does not depend on it.

    Returns
    -------
    torch.Tensor
        The 128x4 layout as `block_scale_interleave` returns it: one-dimensional, columns padded to
        4 with zeros.

    Raises
    ------
    ValueError
        An argument is not as described.
    """
    function = "shuffle_matrix_sf_a"
    groups = _groups(function, epilogue_tile_m)
    if input_tensor.dtype not in (torch.uint8, torch.bfloat16):
        raise ValueError(
            f"fp4aot.{function}: input_tensor has dtype {input_tensor.dtype}; pass uint8 or "
            "bfloat16, for example input_tensor.view(torch.uint8)"
        )
    if input_tensor.dim() != 2 or input_tensor.shape[0] % _SCALE_ROWS != 0:
        raise ValueError(
            f"fp4aot.{function}: input_tensor has shape {list(input_tensor.shape)}; pass a matrix "
            f"with rows divisible by {_SCALE_ROWS}, in the linear layout"
        )
    if num_elts_per_sf not in (16, 32):
        raise ValueError(f"fp4aot.{function}: num_elts_per_sf={num_elts_per_sf}; pass 16 or 32")
    interleaved: torch.Tensor = torch.ops.fp4aot.block_scale_interleave.default(
        _shuffle_rows(input_tensor, groups)
    )
    return interleaved


def _groups(function: str, epilogue_tile_m: int) -> int:
    """Return the groups that the rows of a block are dealt out to."""
    if epilogue_tile_m < 1:
        raise ValueError(
            f"fp4aot.{function}: epilogue_tile_m={epilogue_tile_m}; pass the tile's rows, as 128"
        )
    return 4 if epilogue_tile_m % 128 == 0 else 2


def _shuffle_rows(matrix: torch.Tensor, groups: int) -> torch.Tensor:
    rows, columns = matrix.shape
    dealt = matrix.reshape(rows // (_RUNS * groups), _RUNS, groups, columns).transpose(1, 2)
    return dealt.contiguous().view(rows, columns)
