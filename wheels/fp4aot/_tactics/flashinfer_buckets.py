"""Buckets in FlashInfer's caches, and where each starts.

FlashInfer uses its default for an M whose bucket is not in the cache. The operators would use the
bucket below, so gaps become entries of their own, with the default tactic.
"""

from __future__ import annotations

from fp4aot._tactics.buckets import bucket_of, buckets_up_to, start_of
from fp4aot._tactics.errors import refuse

ROUNDINGS = ("default", "down", "up")
"""How FlashInfer takes an M to a bucket: its own buckets, or those of `tuning_buckets=`."""

Buckets = dict[int, int | None]
"""Tactic of each bucket of one shape; None where it is not the cache that says."""


def starts(
    buckets: Buckets, rounding: str, source: str, operation: str, *, clamped: bool = False
) -> Buckets:
    """Turn buckets into starts, so that the largest start not above M has FlashInfer's choice.

    Parameters
    ----------
    buckets
        Of one shape.
    rounding
        One of `ROUNDINGS`.
    source, operation
        For errors.
    clamped
        Whether FlashInfer takes every larger M to the largest bucket, which then may be any
        number, and not to its default.
    """
    ordered = sorted(buckets)
    if rounding == "down":
        return {m: buckets[m] for m in ordered}
    if rounding == "up":
        before = [0, *ordered[:-1]]
        return {low + 1: buckets[m] for low, m in zip(before, ordered, strict=True)}
    largest = ordered[-1]
    for m in ordered[:-1] if clamped else ordered:
        if bucket_of(m) != m:
            refuse(
                source,
                operation,
                f"a result for M={m}",
                "M in FlashInfer's own buckets",
                "the cache was made with tuning_buckets: add --rounding down, FlashInfer's default "
                "there, or --rounding up for round_up=True",
            )
    if clamped:
        below = buckets_up_to(largest)[:-1]
        found: Buckets = {start_of(bucket): buckets.get(bucket) for bucket in below}
        return found | {start_of(bucket_of(largest)): buckets[largest]}
    # One bucket more: FlashInfer uses its default above the largest.
    return {start_of(bucket): buckets.get(bucket) for bucket in buckets_up_to(largest + 1)}
