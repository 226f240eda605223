"""Buckets of M: FlashInfer's, restated here as its functions are written."""

from __future__ import annotations

import pytest

from fp4aot._tactics.buckets import bucket_of, buckets_up_to, start_of

LARGEST = 20000


def next_power_of_2(x: int) -> int:
    power = 1
    while power < x:
        power *= 2
    return power


def map_to_hybrid_bucket_uncapped(x: int) -> int:
    """What FlashInfer 0.7.2 and 0.7.4 do with the M of a call (`fused_moe/utils.py`)."""
    if x <= 0:
        return 1
    if x <= 256:
        return next_power_of_2(x)
    if x <= 2048:
        return (x + 255) // 256 * 256
    if x <= 4096:
        return (x + 511) // 512 * 512
    return next_power_of_2(x)


def get_hybrid_num_tokens_buckets(largest: int) -> list[int]:
    """What FlashInfer measures when it tunes with an M."""
    phases = [
        *(2**i for i in range(9)),
        *range(512, 2049, 256),
        *range(2560, 4097, 512),
        *(2**i for i in range(13, 40)),
    ]
    return sorted({bucket for bucket in phases if bucket <= largest} | {largest})


def test_every_m_belongs_to_flashinfers_bucket() -> None:
    for m in range(LARGEST + 1):
        assert bucket_of(m) == map_to_hybrid_bucket_uncapped(m), m


def test_the_start_is_the_smallest_m_of_the_bucket() -> None:
    starts: dict[int, int] = {}
    for m in range(1, LARGEST + 1):
        starts.setdefault(map_to_hybrid_bucket_uncapped(m), m)
    assert {bucket: start_of(bucket) for bucket in starts} == starts


@pytest.mark.parametrize("largest", [1, 2, 64, 256, 257, 300, 2048, 2049, 4096, 4097, 8192, 9000])
def test_the_list_is_flashinfers_with_the_last_bucket_whole(largest: int) -> None:
    flashinfers = get_hybrid_num_tokens_buckets(largest)
    # FlashInfer measures the largest M itself and files it under its bucket.
    assert list(buckets_up_to(largest)) == [
        *flashinfers[:-1],
        map_to_hybrid_bucket_uncapped(largest),
    ]


@pytest.mark.parametrize("m", [1, 2, 3, 255, 256, 257, 2048, 2049, 4096, 4097, 2**20, 2**31 - 1])
def test_a_bucket_holds_its_rows(m: int) -> None:
    bucket = bucket_of(m)
    assert start_of(bucket) <= m <= bucket
    assert bucket_of(bucket) == bucket
    assert bucket_of(bucket + 1) > bucket
    assert start_of(bucket_of(bucket + 1)) == bucket + 1
