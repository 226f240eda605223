"""Grouped products: random arguments, and the float64 product of each group."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fp4aot import _layouts
from fp4aot.operators.arithmetic import blocks, e2m1, scales
from gpusuite.records import Details
from gpusuite.rounding import half_unit, sum_error

NVFP4 = "group_gemm_nvfp4_nt_groupwise"
MXFP4 = "group_gemm_mxfp8_mxfp4_nt_groupwise"
OPERATORS = (NVFP4, MXFP4)

ELEMENTS = "products of groups, against float64 within half a unit and the float32 sum's error"

_LAYOUT = _layouts.SfLayout.layout_128x4
_NAN = {NVFP4: 0x7F, MXFP4: 0xFF}
_BLOCK = {NVFP4: 16, MXFP4: 32}
# Of scales: E4M3 from 2^-4 to 2, UE8M0 from 2^-3 to 2^2.
_RANGE = {NVFP4: (0x18, 0x40), MXFP4: (124, 130)}


@dataclass(frozen=True)
class Groups:
    """One call of a grouped GEMM; its tensors named as its arguments.

    Attributes
    ----------
    operator
        Its name.
    rows
        Rows of each group; the last group's end is that of `a`.
    dtype
        Of the output.
    """

    operator: str
    rows: tuple[int, ...]
    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    b_scale: torch.Tensor
    m_indptr: torch.Tensor
    alpha: torch.Tensor | None
    dtype: torch.dtype

    def changed(self, **changes: Any) -> Groups:
        """Replace some of it."""
        return replace(self, **changes)

    def to(self, device: str) -> Groups:
        """Copy it to a device."""
        return self.mapped(lambda tensor: tensor.to(device))

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Groups:
        """Replace every tensor."""
        return replace(
            self,
            **{n: function(v) for n, v in vars(self).items() if isinstance(v, torch.Tensor)},
        )

    def all_tensors(self) -> list[torch.Tensor]:
        """List every tensor among the arguments."""
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]

    def load(self, other: Groups) -> None:
        """Overwrite its tensors with another's."""
        for mine, theirs in zip(self.all_tensors(), other.all_tensors(), strict=True):
            mine.copy_(theirs)

    def factors(self) -> tuple[torch.Tensor | None, ...]:
        """Return the tensors, in the operator's order."""
        found = (self.a, self.b, self.a_scale, self.b_scale, self.m_indptr)
        return (*found, self.alpha) if self.operator == NVFP4 else found

    def run(self, **options: Any) -> torch.Tensor:
        """Call the functional form."""
        packet = getattr(torch.ops.fp4aot, self.operator)
        return packet.default(*self.factors(), self.dtype, **options)

    def run_into(self, out: torch.Tensor, **options: Any) -> torch.Tensor:
        """Call the form that takes a buffer."""
        getattr(torch.ops.fp4aot, self.operator).out(*self.factors(), **options, out=out)
        return out

    def check(self, details: Details, got: torch.Tensor, what: str = ELEMENTS) -> None:
        """Hold a result against float64 over the dequantized factors."""
        assert list(got.shape) == [self.a.shape[0], self.b.shape[1]], f"shape {list(got.shape)}"
        for group, (first, last) in enumerate(itertools.pairwise(self.m_indptr.tolist())):
            if first == last:
                continue
            left, right = self._left(group, first, last), self._right(group)
            alpha = 1.0 if self.alpha is None else float(self.alpha[group])
            expected = left @ right.t() * alpha
            magnitude = left.abs() @ right.abs().t() * abs(alpha)
            bound = sum_error(left.shape[1]) * magnitude + 2.0**-23 * expected.abs()
            bound += half_unit(expected.abs() + bound, got.dtype)
            error = (got[first:last].double() - expected).abs()
            wrong = int((~(error <= bound)).sum())  # NaN is wrong
            details.compared(what, error.numel(), wrong)
            assert wrong == 0, (
                f"group {group}, rows {first} to {last}: {wrong} of {error.numel()} are off by "
                f"more than the bound, the worst by {float((error / bound).nan_to_num().max()):.3g}"
            )

    def _left(self, group: int, first: int, last: int) -> torch.Tensor:
        values = self.a[first:last]
        if self.operator == NVFP4:
            decoded = e2m1.decode(e2m1.unpack(values.view(torch.uint8)))
        else:
            decoded = values.float()
        columns = decoded.shape[1] // _BLOCK[self.operator]
        start = first_scale_row(first, group)
        return self._scaled(decoded, self.a_scale.view(torch.uint8).reshape(-1, columns)[start:])

    def _right(self, group: int) -> torch.Tensor:
        decoded = e2m1.decode(e2m1.unpack(self.b[group].view(torch.uint8)))
        return self._scaled(decoded, self.b_scale.view(torch.uint8)[group])

    def _scaled(self, values: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
        rows, columns = values.shape[0], values.shape[1] // _BLOCK[self.operator]
        padded, _ = _layouts.scale_shape(rows, columns, _LAYOUT)
        codes = _layouts.unswizzle(tiles.reshape(-1, columns)[:padded], _LAYOUT)[:rows]
        decode = scales.decode_e4m3 if self.operator == NVFP4 else scales.decode_ue8m0
        return blocks.scale(values.double(), decode(codes.contiguous()).double())


def first_scale_row(first: int, group: int) -> int:
    """Return where the scales of a group begin, for its first row."""
    return (first + 127 * group) // 128 * 128


def draw(
    operator: str,
    rows: tuple[int, ...],
    n: int,
    k: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    alpha: bool = True,
    values: torch.dtype = torch.float8_e4m3fn,
    seed: int = 0,
    device: str = "cuda",
) -> Groups:
    """Draw groups of these numbers of rows; scales that belong to no row are NaN.

    Parameters
    ----------
    operator
        `NVFP4` or `MXFP4`.
    rows
        Rows of each group.
    n, k
        Rows of each matrix of `b`, and values of a row.
    dtype
        Of the output.
    alpha
        Whether there is a factor for each group, where the operator takes one.
    values
        Dtype of MXFP8's values.
    """
    generator = torch.Generator(device).manual_seed(seed + sum(rows) + 31 * n + k)

    def draw_bytes(low: int, high: int, *shape: int) -> torch.Tensor:
        drawn = torch.randint(low, high, shape, generator=generator, device=device)
        return drawn.to(torch.uint8)

    total, groups, columns = sum(rows), len(rows), k // _BLOCK[operator]
    starts = list(itertools.accumulate(rows, initial=0))
    padded = (total + 127 * groups) // 128 * 128
    a_scale = torch.full((padded, columns), _NAN[operator], dtype=torch.uint8, device=device)
    for group, count in enumerate(rows):
        tiles = draw_bytes(*_RANGE[operator], -(-count // 128) * 128, columns)
        tiles[count:] = _NAN[operator]
        first = first_scale_row(starts[group], group)
        a_scale[first : first + len(tiles)] = _layouts.swizzle(tiles, _LAYOUT)
    b_scale = draw_bytes(*_RANGE[operator], groups, -(-n // 128) * 128, columns)
    b_scale[:, n:] = _NAN[operator]
    if operator == NVFP4:
        a = draw_bytes(0, 256, total, k // 2)
    else:
        a = torch.randn(total, k, generator=generator, device=device).to(values)
    factors = None
    if operator == NVFP4 and alpha:
        drawn = torch.rand(groups, generator=generator, device=device)
        factors = (0.5 + drawn) / (20 * k**0.5)
    return Groups(
        operator,
        rows,
        a,
        draw_bytes(0, 256, groups, n, k // 2),
        a_scale,
        _layouts.swizzle(b_scale, _LAYOUT),
        torch.tensor(starts, dtype=torch.int32, device=device),
        factors,
        dtype,
    )
