"""Results of FlashInfer's autotuner for the two products of `cutlass_fused_moe`.

Their keys have the shapes of the input, of the first product's weights and biases, and of the
second's, with the number of tokens replaced by its bucket; dtypes, top_k and flags follow as
extras. The second product's tactics are counted on from the first one's. Only results for NVFP4
are taken, which FlashInfer knows by weights of int64.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fp4aot._tactics.entries import DEFAULT_TACTIC, OUT_DTYPES, Mixture, MoeEntry
from fp4aot._tactics.errors import refuse
from fp4aot._tactics.flashinfer_buckets import Buckets, starts

OPERATIONS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
RUNNER = "MoERunner"

MoeCounts = Callable[[tuple[int, int], bool], tuple[int, int] | None]
"""How many tactics the two products have: by capability, and whether finalize is fused."""

_LARGEST = 2**30
_EXTRAS = 17
_RANKS = (5, 7, 9)
"""Where FlashInfer 0.6.18 to 0.7.1 also had the ranks among the extras."""
_VALUES = {"int64": 16, "uint8": 2, "float4_e2m1fn_x2": 2}
"""Values in one element of a quantized input."""


class Result(NamedTuple):
    """One result: its key, operation, runner and what follows there, runner and tactic."""

    key: str
    operation: str
    asked: str
    rest: str
    runner: Any
    tactic: Any


@dataclass(frozen=True)
class _Products:
    """Tactics of each bucket, of both products."""

    first: Buckets = field(default_factory=dict)
    second: Buckets = field(default_factory=dict)

    def of(self, operation: str) -> Buckets:
        return self.first if operation == OPERATIONS[0] else self.second


def read(
    results: Sequence[Result],
    source: str,
    counts: Callable[[bool], tuple[int, int] | None],
    rounding: str,
    skipped: Counter[str],
) -> tuple[list[MoeEntry], int]:
    """Turn results into entries.

    Parameters
    ----------
    results
        Those of `OPERATIONS`.
    source
        How errors name the cache.
    counts
        How many tactics the two products have, by whether finalize is fused; None where no device
        can tell.
    rounding
        How FlashInfer took a number of tokens to a bucket.
    skipped
        Gets the reasons, and how many results were not taken for each.

    Returns
    -------
    entries : list of MoeEntry
        With FlashInfer's default where the cache has no result.
    taken : int
        Results that were taken.
    """
    found: dict[Mixture, _Products] = {}
    taken = 0
    for result in results:
        parsed = _parse(result.rest)
        if parsed is None:
            skipped[f"of {result.asked}, which are not of NVFP4"] += 1
            continue
        tokens, mixture = parsed
        counted = counts(mixture.use_fused_finalize)
        if counted is None:
            skipped[
                "of cutlass_fused_moe, whose numbers mean nothing without such a GPU here, and a "
                "wheel that has it for that"
            ] += 1
            continue
        tactic = _tactic(result, source, counted)
        buckets = found.setdefault(mixture, _Products()).of(result.operation)
        if buckets.setdefault(tokens, tactic) != tactic:
            skipped["a second, different result for the same mixture of experts"] += 1
            continue
        taken += 1
    entries = [
        entry
        for mixture, products in sorted(found.items())
        for entry in _entries(mixture, products, source, counts, rounding)
    ]
    return entries, taken


def _tactic(result: Result, source: str, counts: tuple[int, int]) -> int:
    """Return the position in the product's own list."""
    product = OPERATIONS.index(result.operation)
    offset = counts[0] if product else 0
    tactic: Any = result.tactic
    whole = isinstance(tactic, int) and not isinstance(tactic, bool)
    inside = whole and (tactic == DEFAULT_TACTIC or 0 <= tactic - offset < counts[product])
    if result.runner != RUNNER or not inside:
        refuse(
            source,
            result.key,
            f"{result.runner!r}, {tactic!r}"[:60],
            f"{RUNNER!r} and a tactic from {offset} to {offset + counts[product] - 1}, or "
            f"{DEFAULT_TACTIC}",
            "write it again with FlashInfer's autotune(cache=...)",
        )
    return tactic if tactic == DEFAULT_TACTIC else int(tactic - offset)


def _parse(rest: str) -> tuple[int, Mixture] | None:
    """Read the bucket and the mixture from shapes and extras; None where they are of another."""
    try:
        shapes, extras = ast.literal_eval("(" + re.sub(r"torch\.(\w+)", r"'\1'", rest) + ")")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return mixture_of(shapes, extras)


def mixture_of(shapes: Any, extras: Any) -> tuple[int, Mixture] | None:
    """Tell the number of tokens and the mixture that FlashInfer knows a result by.

    Parameters
    ----------
    shapes
        Of the input, and of weights and biases of both products.
    extras
        What FlashInfer's runner adds, with the names of dtypes in their places.

    Returns
    -------
    tuple of int and Mixture, or None
        None for a mixture in another format than NVFP4, or what is no mixture at all.
    """
    try:
        rows, first, _, second, _ = shapes
        tokens, width = rows
        experts, first_rows, first_width = first
        second_experts, hidden, second_width = second
        if len(extras) == _EXTRAS + len(_RANKS):
            extras = [value for place, value in enumerate(extras) if place not in _RANKS]
        input_dtype, weight_dtype, output_dtype, top_k = extras[:4]
        other_weights = any(extras[8:13]) or extras[15]
        fused = extras[16]
    except (ValueError, TypeError, IndexError):
        return None
    quantized = input_dtype in _VALUES
    numbers = (tokens, width, experts, first_rows, hidden, second_width, top_k)
    if not all(type(number) is int and 1 <= number <= _LARGEST for number in numbers):
        return None
    inter = second_width * 16
    if (
        len(extras) != _EXTRAS
        or weight_dtype != "int64"
        or other_weights
        or type(fused) is not bool
        or output_dtype not in OUT_DTYPES
        or not (quantized or input_dtype == output_dtype)
        or width * _VALUES.get(input_dtype, 1) != hidden
        or first_width * 16 != hidden
        or first_rows not in (inter, 2 * inter)
        or second_experts != experts
        or hidden % 32
        or inter % 32
    ):
        return None
    return tokens, Mixture(hidden, inter, experts, top_k, output_dtype, quantized, fused)


def _entries(
    mixture: Mixture,
    products: _Products,
    source: str,
    counts: Callable[[bool], tuple[int, int] | None],
    rounding: str,
) -> Iterator[MoeEntry]:
    counted = counts(mixture.use_fused_finalize)
    if counted is None:
        return
    first, second = (
        starts(buckets, rounding, source, operation, clamped=True) if buckets else {}
        for operation, buckets in zip(OPERATIONS, (products.first, products.second), strict=True)
    )
    yield from entries(mixture, first, second, counted)


def entries(
    mixture: Mixture, first: Buckets, second: Buckets, counts: tuple[int, int]
) -> Iterator[MoeEntry]:
    """Put the tactics of both products together.

    Parameters
    ----------
    mixture
        Whose they are.
    first, second
        Each product's tactic by the smallest number of tokens that it is for; None for the default.
    counts
        How many tactics the two products have.
    """
    for tokens in sorted({*first, *second}):
        yield MoeEntry(
            **vars(mixture),
            tokens=tokens,
            gemm1_tactic=_at(first, tokens),
            gemm2_tactic=_at(second, tokens),
            gemm1_count=counts[0],
            gemm2_count=counts[1],
        )


def _at(found: Mapping[int, int | None], tokens: int) -> int:
    """Return the tactic of the largest start not above, else of the smallest, as operators do."""
    below = [start for start in found if start <= tokens]
    tactic = found[max(below) if below else min(found)] if found else None
    return DEFAULT_TACTIC if tactic is None else tactic
