"""Grouped GEMMs with block scales, with FlashInfer's names and argument order.

Each function is one operator call, as in `fp4aot.quantization`.
"""

from __future__ import annotations

import torch

__all__ = [
    "group_gemm_mxfp4_nt_groupwise",
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    "group_gemm_nvfp4_nt_groupwise",
]

_NVFP4 = torch.ops.fp4aot.group_gemm_nvfp4_nt_groupwise.default
_NVFP4_OUT = torch.ops.fp4aot.group_gemm_nvfp4_nt_groupwise.out
_MXFP4 = torch.ops.fp4aot.group_gemm_mxfp8_mxfp4_nt_groupwise.default
_MXFP4_OUT = torch.ops.fp4aot.group_gemm_mxfp8_mxfp4_nt_groupwise.out


def group_gemm_nvfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    alpha: torch.Tensor | None = None,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply segments of NVFP4 rows, each by its own matrix: `alpha * (segment @ b[i].T)`.

    On GPUs of compute capability 12.x alone, as in FlashInfer.

    Parameters
    ----------
    a
        Packed e2m1 `[M, K / 2]`, uint8 or float4_e2m1fn_x2: the rows of all groups, one segment
        after the other. K is a positive multiple of 128, M may be 0. A non-contiguous tensor is
        copied first.
    b
        Packed e2m1 `[G, N, K / 2]`, uint8 or float4_e2m1fn_x2, contiguous: one matrix for each
        group. N is a positive multiple of 8. Another order is refused, because every call would
        copy it.
    a_scale
        E4M3 block scales of a, uint8 or float8_e4m3fn, contiguous, in any shape: rows of `K / 16`
        scales, in which those of group i begin at row `(m_indptr[i] + 127 * i) // 128 * 128`. From
        there, the scales of the segment's rows are in the 128x4 layout, like those of a matrix by
        itself, in whole tiles of 128 rows. `(M + 127 * G) // 128 * 128` rows are enough for any
        segments, and fewer are refused. Rows that belong to no row of a are read within a tile,
        change nothing, and need no value.
    b_scale
        The same for b: `[G, round_up(N, 128), K / 16]` in the 128x4 layout of each matrix,
        contiguous, in any shape.
    m_indptr
        int32 `[G + 1]` on the same device: the first row of each segment, then M. FlashInfer
        requires every number to be a multiple of 4. A segment may be empty. See Notes.
    alpha
        float32 `[G]`, a factor for each group; None, or an empty tensor, is 1. For values quantized
        under global scales, pass `1 / (a_global_sf * b_global_sf)` of each group.
    tile_m, tile_n, tile_k
        Tiles of the kernel: 128; 32, 64 or 128; 128 or 256. The CPU kernel ignores them.
    swap_ab
        Whether the kernel computes the transpose, with a's rows along the tile's N: for segments of
        few rows.
    out
        Contiguous buffer `[M, N]`, bfloat16 or float16.
    out_dtype
        bfloat16 or float16; by default that of `out`, or bfloat16.

    Returns
    -------
    torch.Tensor
        `[M, N]`, contiguous; `out` where it was given.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    ValueError
        `out_dtype` is not the dtype of `out`.

    Notes
    -----
    `m_indptr` is read by the kernels alone, so that no call waits for the device. Nothing but the
    rows of the segments is written: rows before the first one and after the last are left as they
    were in `out`, and hold whatever was in memory without it (on the CPU, zeros). Segments that are
    not in ascending order or lie outside of a make a GPU read and write outside of the tensors; the
    CPU kernel refuses them. Numbers that are not multiples of 4 are undefined by FlashInfer.

    The sum over K of (value * block scale) products is accumulated in float32, multiplied by alpha
    in float32 and rounded once to the output dtype. On the CPU the sum is exact, so that results
    may differ from a GPU's, which depend on the tiles, in the last bits of float32.
    """
    dtype = _output_dtype("group_gemm_nvfp4_nt_groupwise", out, out_dtype)
    factors = (a, b, a_scale, b_scale, m_indptr, alpha)
    tiles = (tile_m, tile_n, tile_k, swap_ab)
    if out is not None:
        _NVFP4_OUT(*factors, *tiles, out=out)
        return out
    product: torch.Tensor = _NVFP4(*factors, dtype, *tiles)
    return product


def group_gemm_mxfp8_mxfp4_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    mma_sm: int = 1,
    tile_m: int = 128,
    tile_n: int = 128,
    tile_k: int = 128,
    swap_ab: bool = True,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply segments of MXFP8 rows, each by its own MXFP4 matrix: `segment @ b[i].T`.

    Parameters
    ----------
    a
        `[M, K]`, float8_e4m3fn or float8_e5m2: the rows of all groups, one segment after the other.
        K is a positive multiple of 128, M may be 0. A non-contiguous tensor is copied first.
    b
        Packed e2m1 `[G, N, K / 2]`, uint8 or float4_e2m1fn_x2, contiguous: one matrix for each
        group. N is a positive multiple of 8.
    a_scale
        UE8M0 block scales of a, uint8 or float8_e8m0fnu, contiguous, in any shape: rows of `K / 32`
        scales, which lie as in `group_gemm_nvfp4_nt_groupwise`.
    b_scale
        The same for b: `[G, round_up(N, 128), K / 32]` in the 128x4 layout of each matrix,
        contiguous, in any shape.
    m_indptr
        As in `group_gemm_nvfp4_nt_groupwise`.
    mma_sm
        Multiprocessors that share a tile: 1 or 2 on compute capability 10.x, where 2 suits segments
        of 256 rows and more; 1 on 12.x.
    tile_m, tile_n, tile_k
        Tiles of the kernel: 128; 64, 128, 192 or 256 on 10.x and 32, 64 or 128 on 12.x; 128, or 256
        on 10.x. The CPU kernel takes them all and ignores them.
    swap_ab, out, out_dtype
        As in `group_gemm_nvfp4_nt_groupwise`.

    Returns
    -------
    torch.Tensor
        `[M, N]`, contiguous; `out` where it was given.

    Raises
    ------
    RuntimeError
        An argument is not as described; the message names it, what it is, and what to do.
    ValueError
        `out_dtype` is not the dtype of `out`.

    Notes
    -----
    As in `group_gemm_nvfp4_nt_groupwise`, with an alpha of 1. On the CPU the sum is accumulated in
    float64.
    """
    dtype = _output_dtype("group_gemm_mxfp8_mxfp4_nt_groupwise", out, out_dtype)
    factors = (a, b, a_scale, b_scale, m_indptr)
    tiles = (mma_sm, tile_m, tile_n, tile_k, swap_ab)
    if out is not None:
        _MXFP4_OUT(*factors, *tiles, out=out)
        return out
    product: torch.Tensor = _MXFP4(*factors, dtype, *tiles)
    return product


# FlashInfer's older name.
group_gemm_mxfp4_nt_groupwise = group_gemm_mxfp8_mxfp4_nt_groupwise


def _output_dtype(
    function: str, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.dtype:
    if out is None:
        return torch.bfloat16 if out_dtype is None else out_dtype
    if out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(
            f"fp4aot.{function}: out_dtype={out_dtype} with an out of {out.dtype}; leave it away, "
            "or pass an out of that dtype"
        )
    return out.dtype
