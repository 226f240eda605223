"""The buckets of M, those of FlashInfer 0.7's autotuner for `mm_fp4` ("hybrid buckets").

A bucket is named by its largest M, where it is measured: powers of two up to 256, multiples of 256
up to 2048, multiples of 512 up to 4096, powers of two again. An M belongs to the smallest bucket
that holds it. The operator looks for the largest start that is not above M, so tables hold starts.
"""

from __future__ import annotations

# Between these, buckets are this far apart.
_LINEAR = ((256, 2048, 256), (2048, 4096, 512))


def bucket_of(rows: int) -> int:
    """Return the bucket that a number of rows belongs to."""
    for low, high, step in _LINEAR:
        if low < rows <= high:
            return -(-rows // step) * step
    return 1 << max(rows - 1, 0).bit_length()


def start_of(bucket: int) -> int:
    """Return the smallest M of a bucket."""
    for low, high, step in _LINEAR:
        if low < bucket <= high:
            return bucket - step + 1
    return bucket // 2 + 1


def buckets_up_to(rows: int) -> tuple[int, ...]:
    """List the buckets of every M from 1 to `rows`."""
    buckets = [1]
    while buckets[-1] < rows:
        buckets.append(bucket_of(buckets[-1] + 1))
    return tuple(buckets)
