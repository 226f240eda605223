"""Caches of FlashInfer's autotuner: for every M, the operator uses the tactic FlashInfer would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tactics_buckets import LARGEST, map_to_hybrid_bucket_uncapped
from test_tactics_table import WHEEL, look_up

from fp4aot._tactics import file, flashinfer_cache
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.flashinfer_cache import Imported
from fp4aot._tactics.table import Table, merge

WRITTEN = "2026-01-31T12:00:00Z"
METADATA = {
    "flashinfer_version": "0.7.2",
    "cuda_version": "13.0",
    "cublas_version": "13.0.0.19",
    "cudnn_version": "91300",
    "cudnn_frontend_version": "1.14.1",
    "cutlass_dsl_version": "unknown",
    "gpu": "NVIDIA B200",
}
POLICY = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]
CUTLASS = "CutlassFp4GemmRunner"


def make_key(
    m: int,
    n: int = 4096,
    k: int = 2048,
    runner: str = CUTLASS,
    op: str = "fp4_gemm",
    extras: str = "()",
    alpha: tuple[int, ...] = (1,),
) -> str:
    """`str(ProfilingCacheKey.key_fields)` for the ten arguments of FlashInfer's `mm_fp4`."""
    shapes = (
        *((m, k // 2), (k // 2, n), (-1, k // 16), (k // 16, n), alpha, (0,), (-1, n)),
        *((0,), (0,), (-1,)),
    )
    return f"('{op}', '{runner}', {shapes}, {extras})"


def make_cache(
    tactics: dict[int, int], others: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """The content of `autotune(cache=...)`'s file."""
    results = {make_key(m): [CUTLASS, tactic, POLICY] for m, tactic in tactics.items()}
    return {
        "_metadata": METADATA | metadata,
        "_records": {"of another operator": {}},
        **results,
        **(others or {}),
        "_generation": "ab" * 32,
    }


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Imported]:
    def read(cache: Any, rounding: str = "default", wheel: Any = WHEEL) -> Imported:
        path = tmp_path / "autotune.json"
        path.write_text(cache if isinstance(cache, str) else json.dumps(cache))
        found = flashinfer_cache.read(path, wheel, {"NVIDIA B200": (10, 0)}.get, WRITTEN, rounding)
        # What is imported can be written and loaded.
        file.write(found.table, tmp_path / "table.json")
        assert file.read(tmp_path / "table.json", WHEEL) == (found.table, [])
        return found

    return read


def choose(cache: dict[int, int], m: int, mapper: Callable[[int], int]) -> int:
    """FlashInfer's `search_cache` for one runner, one N and K: the bucket's tactic, or -1."""
    return cache.get(mapper(m), -1)


def agree(table: Table, cache: dict[int, int], mapper: Callable[[int], int]) -> None:
    choices = table.choices()
    for dtype in ("bfloat16", "float16"):
        # The look-up changes at starts only: both sides of each, and a sample of the rest.
        edges = {c.m + step for c in choices for step in (-1, 0, 1)}
        for m in sorted(edges | set(range(1, LARGEST, 7)) | {LARGEST}):
            if m >= 1:
                expected = choose(cache, m, mapper)
                assert look_up(choices, (10, 0), dtype, m) == expected, (m, dtype)


# FlashInfer's own buckets


@pytest.mark.parametrize(
    "buckets",
    [
        [1, 2, 4, 8, 16, 32, 64, 128, 256, *range(512, 2049, 256), *range(2560, 4097, 512), 8192],
        [1],
        [64],
        # Tuned with M=300: its last bucket is 512.
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        # Holes, as when another runner was faster there.
        [2, 8, 256, 768, 2048, 4096],
        [4096],
        [2560, 16384],
    ],
)
def test_for_every_m_the_same_tactic(buckets: list[int], imported: Callable[..., Imported]) -> None:
    cache = {bucket: index % 31 for index, bucket in enumerate(buckets)}
    found = imported(make_cache(cache))
    assert found.taken == len(cache)
    agree(found.table, cache, map_to_hybrid_bucket_uncapped)


def test_every_single_m(imported: Callable[..., Imported]) -> None:
    cache = {1: 3, 4: 4, 256: 5, 512: 6, 2048: 7, 2560: 8, 4096: 9, 8192: 10}
    choices = imported(make_cache(cache)).table.choices()
    starts = [(c.m, c.tactic) for c in choices if c.out_dtype == "bfloat16"]
    current = -1
    for m in range(1, LARGEST + 1):
        current = dict(starts).get(m, current)
        assert current == choose(cache, m, map_to_hybrid_bucket_uncapped), m


def test_a_key_is_read(imported: Callable[..., Imported]) -> None:
    other = make_key(64, n=28672, k=4096, alpha=())
    found = imported(make_cache({64: 5}, {other: [CUTLASS, 6]}))
    rows = {(c.n, c.k): c.tactic for c in found.table.choices() if c.m == 33}
    assert rows == {(4096, 2048): 5, (28672, 4096): 6}
    (section,) = found.table.sections
    assert (section.device, section.capability) == ("NVIDIA B200", (10, 0))
    assert (section.plan_hash, section.flashinfer) == (WHEEL.plan_hash, "0.7.2")
    assert (section.written, section.driver) == (WRITTEN, None)
    assert section.origin == "FlashInfer 0.7.2 cache autotune.json"
    assert {e.out_dtype for e in section.entries} == {"bfloat16", "float16"}
    assert found.notes == ()
    assert found.skipped == {}
    # Buckets 1 to 32 and the one above, in two dtypes and for two shapes.
    assert found.gaps == (6 + 1) * 2 * 2


def test_a_measured_entry_is_not_lost_to_a_gap(imported: Callable[..., Imported]) -> None:
    first = imported(make_cache({1: 3})).table
    second = imported(make_cache({64: 5})).table
    for tables in ([first, second], [second, first]):
        choices = merge(tables).choices()
        assert [look_up(choices, (10, 0), "bfloat16", m) for m in (1, 2, 33, 64, 65)] == [
            *(3, -1, 5, 5, -1),
        ]


def test_the_default_can_have_won(imported: Callable[..., Imported]) -> None:
    found = imported(make_cache({1: -1, 2: 0, 4: 31}))
    tactics = [c.tactic for c in found.table.choices() if c.out_dtype == "float16"]
    assert tactics == [-1, 0, 31, -1]
    assert found.taken == 3


# What is not taken


def test_other_runners_and_operators_are_counted(imported: Callable[..., Imported]) -> None:
    dsl = make_key(2, runner="CuteDslFp4GemmRunner", extras="(torch.bfloat16, True)")
    others = {
        make_key(1, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", [3, 1]],
        make_key(4, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", "plan"],
        dsl: ["CuteDslFp4GemmRunner", [[128, 64], True]],
        make_key(1, op="fp8_gemm"): ["CutlassFp8GemmRunner", 0],
        "('flashinfer::trtllm_moe', 'MoERunner', ((1, 2),), ())": ["MoERunner", 5],
        "anything": ["MoERunner", 5],
        "('fp4_gemm', 'CutlassFp4GemmRunner', ((64, 64), (64, 64)), ())": [CUTLASS, 1],
        "('fp4_gemm', 'CutlassFp4GemmRunner', ((64, 64), (64 64)), ())": [CUTLASS, 1],
        make_key(8).replace("(8, 1024)", "(8)"): [CUTLASS, 1],
        make_key(2**40): [CUTLASS, 1],
        make_key(64, n=48): [CUTLASS, 1],
        # Another weight, of which CUTLASS has nothing.
        make_key(8, n=64, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", 1],
    }
    cache = {8: 5}
    found = imported(make_cache(cache, others))
    assert found.taken == 1
    assert found.skipped == {
        "of CudnnFp4GemmRunner, which is not in this wheel": 3,
        "of CuteDslFp4GemmRunner, which is not in this wheel": 1,
        "of another operator": 3,
        "of CutlassFp4GemmRunner, with shapes that are not those of mm_fp4": 5,
    }
    assert {(c.n, c.k) for c in found.table.choices()} == {(4096, 2048)}
    agree(found.table, cache, map_to_hybrid_bucket_uncapped)


def test_a_second_result_for_the_same_shape(imported: Callable[..., Imported]) -> None:
    scalar = {make_key(8, alpha=()): [CUTLASS, 6], make_key(8, alpha=(0,)): [CUTLASS, 5]}
    found = imported(make_cache({8: 5}, scalar))
    assert found.skipped == {"a second, different result for the same shape": 1}
    assert look_up(found.table.choices(), (10, 0), "bfloat16", 8) == 5


def test_nothing_of_use(imported: Callable[..., Imported]) -> None:
    others = {make_key(1, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", 3]}
    found = imported(make_cache({}, others))
    assert (len(found.table), found.taken, found.gaps) == (0, 0, 0)
    assert imported(make_cache({})).table == Table()


# Buckets that the user chose


def floor_mapper(buckets: list[int]) -> Callable[[int], int]:
    """FlashInfer's `round_to_nearest_bucket`, which rounds down unless told otherwise."""
    return lambda m: max([b for b in buckets if b <= m], default=buckets[0])


def ceil_mapper(buckets: list[int]) -> Callable[[int], int]:
    return lambda m: min([b for b in buckets if b >= m], default=buckets[-1])


@pytest.mark.parametrize("buckets", [[100, 200, 500, 1000], [1, 7], [64], [128, 256, 512]])
@pytest.mark.parametrize(("rounding", "mapper"), [("down", floor_mapper), ("up", ceil_mapper)])
def test_chosen_buckets(
    rounding: str,
    mapper: Callable[[list[int]], Callable[[int], int]],
    buckets: list[int],
    imported: Callable[..., Imported],
) -> None:
    cache = {bucket: index + 1 for index, bucket in enumerate(buckets)}
    agree(imported(make_cache(cache), rounding).table, cache, mapper(buckets))


@pytest.mark.parametrize(("rounding", "mapper"), [("down", floor_mapper), ("up", ceil_mapper)])
def test_a_bucket_that_another_runner_won_is_a_bucket(
    rounding: str,
    mapper: Callable[[list[int]], Callable[[int], int]],
    imported: Callable[..., Imported],
) -> None:
    others = {make_key(m, runner="CudnnFp4GemmRunner"): ["CudnnFp4GemmRunner", 3] for m in (200, 9)}
    cache = {100: 1, 500: 2}
    found = imported(make_cache(cache, others), rounding)
    agree(found.table, cache, mapper([9, 100, 200, 500]))
    assert found.gaps == 4


def test_chosen_buckets_are_noticed(imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match=r"a result for M=100, .* --rounding down"):
        imported(make_cache({64: 1, 100: 2}))


# Versions and devices


@pytest.mark.parametrize("version", ["0.7.4", "0.7.20", None, 72])
def test_another_flashinfer_is_refused(version: Any, imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError) as caught:
        imported(make_cache({1: 1}, flashinfer_version=version))
    message = str(caught.value)
    assert f"field '_metadata.flashinfer_version': got {version!r}, expected '0.7.2'" in message
    assert "tune again" in message


@pytest.mark.parametrize("version", ["0.7.2.post1", "0.7.2+cu130"])
def test_the_same_release_is_taken(version: str, imported: Callable[..., Imported]) -> None:
    assert imported(make_cache({1: 1}, flashinfer_version=version)).taken == 1


def test_a_wheel_with_the_other_flashinfer_takes_it(imported: Callable[..., Imported]) -> None:
    newer = replace(WHEEL, flashinfer="0.7.4")
    cache = make_cache({1: 1}, flashinfer_version="0.7.4")
    # 0.7.4 adds how the winner was selected.
    cache[make_key(2)] = [CUTLASS, 4, POLICY, {"candidates": 32}]
    assert imported(cache, wheel=newer).taken == 2


def test_a_wildcard_is_pointed_out(imported: Callable[..., Imported]) -> None:
    (note,) = imported(make_cache({1: 1}, flashinfer_version="*")).notes
    assert "every FlashInfer version" in note


def test_another_cuda_is_a_note(imported: Callable[..., Imported]) -> None:
    (note,) = imported(make_cache({1: 1}, cuda_version="12.9")).notes
    assert "measured with CUDA 12.9" in note
    assert imported(make_cache({1: 1}, cuda_version="unknown")).notes == ()


def test_without_metadata_it_is_refused(imported: Callable[..., Imported]) -> None:
    cache = make_cache({1: 1})
    del cache["_metadata"]
    with pytest.raises(TacticsError, match="nothing says which FlashInfer's tactics"):
        imported(cache)


@pytest.mark.parametrize("gpu", ["NVIDIA GB200", None])
def test_a_gpu_that_is_not_here(gpu: str | None, imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match=r"'_metadata\.gpu': got .*--capability 12\.0"):
        imported(make_cache({1: 1}, gpu=gpu))


def test_a_gpu_that_the_wheel_has_no_gemm_for(imported: Callable[..., Imported]) -> None:
    hopper = replace(WHEEL, tactic_count=lambda *_: 0, has_moe=lambda *_: False)
    with pytest.raises(TacticsError, match=r"no FP4 GEMM for compute capability 10\.0"):
        imported(make_cache({1: 1}), wheel=hopper)


# Damage


@pytest.mark.parametrize(
    "value", [[CUTLASS, 32], [CUTLASS, -2], [CUTLASS, "1"], [CUTLASS, True], ["Another", 1]]
)
def test_a_tactic_that_cannot_be(value: Any, imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match=r"expected 'CutlassFp4GemmRunner' and a tactic from -1"):
        imported(make_cache({}, {make_key(1): value}))


@pytest.mark.parametrize("value", [5, [CUTLASS], "text", None])
def test_a_result_that_is_none(value: Any, imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match=r"expected \[runner, tactic, \.\.\.\]"):
        imported(make_cache({}, {make_key(1): value}))


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "an object"), ("{", "is not JSON"), ("{}", "_metadata: is missing")],
)
def test_no_cache(text: str, message: str, imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match=message):
        imported(text)


def test_a_table_is_no_cache(imported: Callable[..., Imported]) -> None:
    with pytest.raises(TacticsError, match="is a table of tactics already"):
        imported(Table().to_json())


def test_a_python_file_is_no_cache(tmp_path: Path) -> None:
    with pytest.raises(TacticsError, match="fused MoE only"):
        flashinfer_cache.read(tmp_path / "config.py", WHEEL, {}.get, WRITTEN)


# The store of autotune_v2


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "autotune" / "v2" / "0123456789abcdef"
    (folder / "entries").mkdir(parents=True)
    manifest = METADATA | {"cache_schema": "v2", "measure_execution_mode": "cuda_graph"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    cudnn = make_key(16, runner="CudnnFp4GemmRunner")
    for key, runner, tactic in [
        (make_key(8), CUTLASS, 5),
        (make_key(32), CUTLASS, 6),
        (cudnn, "CudnnFp4GemmRunner", [1, 2]),
    ]:
        entry = {"key": key, "runner": runner, "tactic": tactic, "profiling_policy": POLICY}
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        (folder / "entries" / f"{name}.json").write_text(json.dumps(entry))
    return folder


def read_store(folder: Path) -> Imported:
    return flashinfer_cache.read(folder, WHEEL, {"NVIDIA B200": (10, 0)}.get, WRITTEN)


def test_a_store_is_read(store: Path) -> None:
    found = read_store(store)
    assert found.taken == 2
    assert found.skipped == {"of CudnnFp4GemmRunner, which is not in this wheel": 1}
    agree(found.table, {8: 5, 32: 6}, map_to_hybrid_bucket_uncapped)


def test_the_folder_of_one_environment_is_meant(store: Path) -> None:
    with pytest.raises(TacticsError, match=rf"no manifest\.json; .* one of {store}"):
        read_store(store.parents[1])


def test_a_damaged_store(store: Path) -> None:
    (store / "entries" / "damaged.json").write_text('{"key": "a"}')
    with pytest.raises(TacticsError, match=r"damaged\.json.* key, runner and tactic"):
        read_store(store)
    (store / "entries" / "damaged.json").write_text("{")
    with pytest.raises(TacticsError, match=r"damaged\.json: is not JSON"):
        read_store(store)
