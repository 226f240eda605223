"""Holds an operator against the reference: bytes, codes and sums.

The model of the reference: with the GPU's own approximate reciprocal (`gpu_arithmetic`) not one
byte may differ. With correctly rounded reciprocals, as the package's CPU kernels take them, codes
may differ where a scaled value lies on a tie: by one code, and in a small share of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fp4aot._selftest.checks import out_form
from fp4aot.operators import matmul
from fp4aot.operators.structured import OPERATORS
from gpusuite import memory
from gpusuite.gpu_arithmetic import TrueDivision, gpu_arithmetic
from gpusuite.records import Details
from gpusuite.rounding import half_unit

TIES = 2e-3
"""Share of codes that may differ at ties, besides one block of 16."""

EXACT = "codes and scales, reference with the GPU's rcp.approx"
TRUE = "codes and scales, reference with true reciprocals"

# Results that hold two codes a byte.
_PACKED = ("values", "fp4_output")


def packet_of(operator: str) -> Any:
    """Return an operator with its overloads."""
    return getattr(torch.ops.fp4aot, operator)


def reference_into(operator: str) -> Callable[..., None]:
    """Return the reference that writes to the caller's buffers."""
    return OPERATORS[operator].out


def as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def count_differing(got: torch.Tensor, expected: torch.Tensor, packed: bool = False) -> int:
    """Count elements, or packed codes, that differ in any bit."""
    assert got.shape == expected.shape, f"shape {list(got.shape)}, expected {list(expected.shape)}"
    assert got.dtype == expected.dtype, f"{got.dtype}, expected {expected.dtype}"
    changed = memory.raw(got) ^ memory.raw(expected)
    if packed:
        return int(((changed & 0xF) != 0).sum() + ((changed >> 4) != 0).sum())
    return int((changed != 0).sum())


def count_elements(tensor: torch.Tensor, packed: bool) -> int:
    return tensor.numel() * (2 if packed else 1)


def assert_equal(details: Details, against: str, got: Any, expected: Any) -> None:
    """Compare results bit by bit."""
    for left, right in zip(as_tuple(got), as_tuple(expected), strict=True):
        differing = count_differing(left, right)
        details.compared(against, right.numel(), differing)
        assert differing == 0, f"{against}: {differing} of {right.numel()} differ"


def check_empty(operator: str, *shapes: tuple[int, ...]) -> None:
    """Hold a quantizer against its CPU kernel where the input has no values."""
    for shape in shapes:
        arguments = (torch.empty(shape, dtype=torch.bfloat16), torch.ones(1))
        got = packet_of(operator)(*(argument.cuda() for argument in arguments))
        for left, right in zip(got, packet_of(operator)(*arguments), strict=True):
            assert left.shape == right.shape
            assert torch.equal(left.cpu(), right)


def check_quantizer(
    details: Details,
    operator: str,
    arguments: tuple[Any, ...],
    *,
    whole: bool = True,
    neighbours: bool = True,
    ties: float | None = TIES,
) -> tuple[torch.Tensor, ...]:
    """Run both forms of an operator in poisoned memory and hold them against the reference.

    Parameters
    ----------
    details
        Where the counts go.
    operator
        Its name.
    arguments
        Of the functional form, tensors on the GPU.
    whole
        Whether the functional form defines every byte. Else it is judged where the reference
        writes.
    neighbours
        Whether codes that differ from the reference with true reciprocals must be one code apart.
        (Not under 4-over-6: there a whole block may take the other of two scales.)
    ties
        Share of codes that may do so, or None where this is not looked at.

    Returns
    -------
    tuple of torch.Tensor
        What the functional form returned.
    """
    packet = packet_of(operator)
    memory.poison()
    results = as_tuple(packet.default(*arguments))
    inputs, names = out_form(packet, arguments)
    buffers = {name: memory.Guarded.like(r) for name, r in zip(names, results, strict=True)}
    packet.out(*inputs, **{name: buffer.tensor for name, buffer in buffers.items()})

    def expected(byte: int = memory.POISON) -> dict[str, torch.Tensor]:
        targets = {
            name: memory.poisoned_like(result, byte)
            for name, result in zip(names, results, strict=True)
        }
        reference_into(operator)(*inputs, **targets)
        return targets

    with gpu_arithmetic():
        exact = expected()
        other = exact if whole else expected(0x5A)
    for name, result in zip(names, results, strict=True):
        packed = name in _PACKED
        buffers[name].check()
        differing = count_differing(buffers[name].tensor, exact[name], packed)
        count = count_elements(result, packed)
        details.compared(EXACT, count, differing)
        assert differing == 0, f".out, {name}: {differing} of {count} differ from the reference"
        # What the reference leaves as it was differs between two poisons.
        left = memory.raw(exact[name]) != memory.raw(other[name])
        wrong = int(((memory.raw(result) != memory.raw(exact[name])) & ~left).sum())
        assert wrong == 0, f"functional form, {name}: {wrong} bytes differ from the reference"
    if ties is not None:
        with TrueDivision():
            true = expected()
        _check_ties(details, exact, true, neighbours, ties)
    return results


def _check_ties(
    details: Details,
    got: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    neighbours: bool,
    ties: float,
) -> None:
    scale_differences = 0
    for name in reversed(got):  # scales first
        packed = name in _PACKED
        count = count_elements(got[name], packed)
        differing = count_differing(got[name], expected[name], packed)
        details.compared(TRUE, count, differing)
        assert differing <= 16 + ties * count, f"{name}: {differing} of {count} differ at ties"
        if not neighbours or got[name].dtype not in (torch.uint8, torch.float8_e4m3fn):
            continue
        if packed:
            # Codes of a block whose scale differs are another scale's.
            apart = _codes_apart(got[name], expected[name])
            assert apart <= 16 * scale_differences, f"{name}: {apart} codes are no neighbours"
        else:
            scale_differences = differing
            step = memory.raw(got[name]).int() - memory.raw(expected[name]).int()
            largest = int(step.abs().max()) if step.numel() else 0
            assert largest <= 1, f"{name}: scale codes are {largest} apart"


def _codes_apart(got: torch.Tensor, expected: torch.Tensor) -> int:
    """Count packed codes that are neither equal nor neighbours of the same sign."""
    apart = torch.zeros((), dtype=torch.int64, device=got.device)
    for shift in (0, 4):
        left, right = (got >> shift) & 0xF, (expected >> shift) & 0xF
        distance = ((left & 7).to(torch.int8) - (right & 7).to(torch.int8)).abs()
        apart += ((distance > 1) | ((left ^ right) >= 8)).sum()
    return int(apart)


PRODUCTS = "products, against float64 within half a unit of the output plus the float32 sum's error"
FROBENIUS = "products, Frobenius norm relative to float64"
# Root mean square of rounding alone is 1.7e-3 and 2.1e-4.
_LARGEST_FROBENIUS = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4}


def check_product(
    details: Details, got: torch.Tensor, factors: tuple[torch.Tensor, ...], what: str = PRODUCTS
) -> None:
    """Hold `mm_fp4` against float64 over the dequantized factors.

    The bound for each element: K * 2^-23 times the sum of magnitudes for the float32 sum (a tensor
    core may truncate where it aligns), one float32 rounding for alpha, and half a unit in the last
    place of the output.
    """
    a, b, a_scales, b_scales, alpha = factors
    left = matmul._dequantize(a, a_scales)
    right = matmul._dequantize(b.transpose(-2, -1), b_scales).transpose(-2, -1)
    factor = alpha.double().reshape(())
    expected = torch.matmul(left, right) * factor
    magnitude = torch.matmul(left.abs(), right.abs()) * factor.abs()
    sum_error = left.shape[-1] * 2.0**-23 * magnitude + 2.0**-24 * expected.abs()
    bound = sum_error + half_unit(expected.abs() + sum_error, got.dtype)
    error = (got.double() - expected).abs()
    same_nan = got.isnan() == expected.isnan()
    wrong = int((~((error <= bound) | (got.isnan() & expected.isnan()))).sum())
    details.compared(what, got.numel(), wrong)
    assert bool(same_nan.all()), f"{int((~same_nan).sum())} elements are NaN in one of the two"
    assert wrong == 0, (
        f"{wrong} of {got.numel()} are off by more than the bound, the worst by "
        f"{float((error / bound).nan_to_num().max()):.3g} times the bound"
    )
    norm = float(expected.nan_to_num().norm())
    # Below the normal range rounding is relative to nothing.
    if norm > torch.finfo(got.dtype).tiny * got.numel() ** 0.5:
        relative = float(error.nan_to_num().norm()) / norm
        details.error(FROBENIUS, relative)
        if got.numel() >= 1000:
            assert relative < _LARGEST_FROBENIUS[got.dtype], f"relative error {relative:.2g}"
