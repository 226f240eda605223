"""What FlashInfer's autotuner would choose, beside the table that stands for it.

A program for the environment that has FlashInfer: ``python tuned_choices.py CASES``. Each case
fills the autotuner's caches at random, asks `choose_one` for many numbers of tokens, and looks the
same up in the table. The runners are FlashInfer's own; nothing is compiled or launched.
"""

import contextlib
import inspect
import json
import random
import sys
import tempfile
from types import SimpleNamespace

import flashinfer
import torch
from flashinfer import autotune
from flashinfer.autotuner import AutoTuner
from flashinfer.fused_moe import core
from flashinfer.gemm import gemm_base

from fp4aot.integrations import flashinfer as integration
from fp4aot.integrations._flashinfer import tuned_table

BF16, WORDS, BYTES = torch.bfloat16, torch.int64, torch.uint8
TACTICS = 32
MOE_TACTICS = (16, 20)
OPERATIONS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
CONTEXT = "tuning_buckets" in inspect.signature(autotune).parameters


def meta(*shape: int, dtype: torch.dtype = BYTES) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def gemm_arguments(m: int, n: int, k: int) -> list[object]:
    """What `mm_fp4` gives the autotuner."""
    scales = meta(-(-m // 128) * 128, k // 16)
    return [
        *(meta(m, k // 2), meta(n, k // 2).T, scales, meta(n, k // 16).T, meta(1)),
        *(BF16, meta(m, n, dtype=BF16), 16, True, meta(1024)),
    ]


def mixture_arguments(m: int, hidden: int, inter: int, experts: int) -> list[object]:
    """What `cutlass_fused_moe` gives the autotuner."""
    first = meta(experts, 2 * inter, hidden // 16, dtype=WORDS)
    return [
        *(meta(m, hidden, dtype=BF16), first, None),
        *(meta(experts, hidden, inter // 16, dtype=WORDS), None),
    ]


def tokens(draw: random.Random, buckets: list[int]) -> list[int]:
    """Numbers around each bucket's edges, and some between."""
    edges = {b + d for b in buckets for d in (-1, 0, 1)} | {1, 2, 3, 8191, 8192, 8193, 40000}
    between = {draw.randint(1, 20000) for _ in range(20)}
    return sorted(m for m in edges | between if m > 0)


def look_up(entries: dict[int, object], m: int) -> object:
    starts = [start for start in entries if start <= m]
    return entries[max(starts)] if starts else None


def remember(tuner, operation, runner, config, arguments, tactic, place) -> None:
    """Put a result where profiling, or reading a cache, would have put it."""
    shapes = tuple(tuner._get_input_sizes(arguments))
    extras = runner.get_cache_key_extras(arguments)
    key = AutoTuner._get_cache_key(operation, runner, shapes, config, extras)
    if place == "store":
        tuner._managed_cache.publish(
            key.file_key, type(runner).__name__, tactic, key_fields=key.key_fields
        )
    elif place == "memory":
        # With the number of the runner, before 0.6.18.
        result = (0, tactic, None) if isinstance(key, tuple) else (tactic, None)
        tuner.profiling_cache[key] = result
    elif hasattr(key, "file_key"):
        tuner._file_configs[key.file_key] = (type(runner).__name__, tactic)
    else:
        tuner._file_configs[str((key[0], key[1], key[3]))] = (type(runner).__name__, tactic)


def tuner_has_store(tuner) -> bool:
    return getattr(tuner, "_managed_cache", None) is not None


def forget(tuner) -> None:
    tuner.profiling_cache.clear()
    tuner._file_configs.clear()
    if tuner_has_store(tuner):
        tuner._managed_cache = None
        tuner._managed_stores.clear()
        flashinfer.autotune_v2_reload()


def context(draw: random.Random):
    """Return a context without tuning, and its buckets."""
    if not CONTEXT or draw.random() < 0.5:
        return contextlib.nullcontext(), None
    buckets = tuple(sorted(draw.sample(range(1, 6000), draw.randint(1, 7))))
    choice = draw.choice(({"tuning_buckets": buckets}, {"round_up": True}, {}))
    if choice.get("tuning_buckets"):
        choice["round_up"] = draw.choice((True, False))
    return autotune(False, **choice), choice.get("tuning_buckets")


def check_gemm(draw: random.Random, tuner, places) -> int:
    n, k = 32 * draw.randint(1, 200), 32 * draw.randint(1, 200)
    runner = gemm_base.get_gemm_sm120_module_cutlass_fp4().cutlass_fp4_gemm_runner()
    state = SimpleNamespace(largest=0, mixtures={})
    scope, own_buckets = context(draw)
    checked = 0
    with scope:
        config = tuned_table._adapted(tuner, gemm_base._MM_FP4_TUNING_CONFIG_128x4)
        spec = config.dynamic_tensor_specs[0]
        generated = spec.gen_tuning_buckets
        offered = list(generated(8192) if callable(generated) else generated)
        buckets = sorted(draw.sample(offered, draw.randint(1, len(offered))))
        for bucket in buckets:
            for place in draw.choice(places):
                arguments = gemm_arguments(bucket, n, k)
                tactic = draw.randrange(TACTICS)
                remember(tuner, "fp4_gemm", runner, config, arguments, tactic, place)
        if tuner_has_store(tuner):
            # What other processes have published is read anew.
            flashinfer.autotune_v2_reload()
        found = tuned_table.read(tuner, TACTICS, None, state)
        assert {(e.n, e.k) for e in found.entries} == {(n, k)}
        entries = {e.m: e.tactic for e in found.entries if e.out_dtype == "bfloat16"}
        for m in tokens(draw, [*buckets, *(own_buckets or ())]):
            _, expected = tuner.choose_one(
                "fp4_gemm", [runner], gemm_base._MM_FP4_TUNING_CONFIG_128x4, gemm_arguments(m, n, k)
            )
            actual = look_up(entries, m) if entries else -1
            assert actual == expected, (m, n, k, buckets, own_buckets, actual, expected)
            checked += 1
    return checked


def runner_class():
    function = core.get_cutlass_fused_moe_module("120").cutlass_fused_moe
    cells = [cell.cell_contents for cell in function.__closure__]
    (found,) = (value for value in cells if getattr(value, "__name__", "") == "MoERunner")
    return found


def check_mixture(draw: random.Random, tuner, places) -> int:
    kind = runner_class()
    hidden, inter = 32 * draw.randint(1, 100), 32 * draw.randint(1, 100)
    experts, top_k, ep_size = draw.randint(1, 64), draw.randint(1, 8), draw.choice((1, 2, 4))
    parameters = inspect.signature(kind).parameters
    values = dict.fromkeys(parameters, False) | {
        "x_dtype": BF16, "weight_dtype": WORDS, "output_dtype": BF16, "top_k": top_k,
        "tp_size": 1, "tp_rank": 0, "ep_size": ep_size, "ep_rank": 0, "cluster_size": 1,
        "cluster_rank": 0, "enable_pdl": True, "activation_type": 3,
    }  # fmt: skip
    if "use_fused_finalize" in values:
        values["use_fused_finalize"] = True
    runner = kind(**values)
    largest = draw.choice((64, 1000, 4096, 8192, 16384))
    kind.refine_tuning_config.cache_clear()
    kind.refine_tuning_config(largest)
    shape = (hidden, inter, experts)
    arguments = mixture_arguments(1, *shape)
    seen = {
        tuned_table.weights_of(tuple(tuner._get_input_sizes(arguments))): (
            *(BF16, WORDS, BF16, top_k),
            *(False,) * 12,
            True,
        )
    }
    scope, own_buckets = context(draw)
    checked = 0
    with scope:
        config = tuned_table._adapted(tuner, kind.tuning_config)
        generated = config.dynamic_tensor_specs[0].gen_tuning_buckets
        offered = list(generated(8192) if callable(generated) else generated)
        # A server that only reads a cache tells nothing of the largest number; the cache is whole
        # then, and its largest bucket is that number, unless FlashInfer's rule leaves it out.
        told = own_buckets is not None or largest not in offered or draw.random() < 0.5
        counted = draw.randint(1, len(offered)) if told else len(offered)
        buckets = sorted(draw.sample(offered, counted))
        state = SimpleNamespace(largest=largest if told else 0, mixtures=seen)
        for product, operation in enumerate(OPERATIONS):
            for bucket in buckets if not told else draw.sample(buckets, draw.randint(1, counted)):
                for place in draw.choice(places):
                    offset = MOE_TACTICS[0] * product
                    tactic = offset + draw.randrange(MOE_TACTICS[product])
                    given = mixture_arguments(bucket, *shape)
                    remember(tuner, operation, runner, config, given, tactic, place)
        if tuner_has_store(tuner):
            # What other processes have published is read anew.
            flashinfer.autotune_v2_reload()
        found = tuned_table.read(tuner, 0, lambda fused: MOE_TACTICS, state)
        assert found.moe_entries
        first = {e.tokens: e.gemm1_tactic for e in found.moe_entries}
        second = {e.tokens: e.gemm2_tactic for e in found.moe_entries}
        for m in tokens(draw, [*buckets, *(own_buckets or ())]):
            given = mixture_arguments(m, *shape)
            chosen = [
                tuner.choose_one(operation, [runner], kind.tuning_config, given, gemm_idx=gemm)[1]
                for gemm, operation in enumerate(OPERATIONS, start=1)
            ]
            expected = chosen[0], chosen[1] - MOE_TACTICS[0] if chosen[1] >= 0 else -1
            actual = look_up(first, m), look_up(second, m)
            assert actual == expected, (m, shape, buckets, own_buckets, largest, actual, expected)
            checked += 1
    return checked


def main() -> None:
    integration.enable()
    tuner = AutoTuner.get()
    counts = {"mm_fp4": 0, "cutlass_fused_moe": 0}
    for seed in range(int(sys.argv[1])):
        draw = random.Random(seed)
        for name, check in (("mm_fp4", check_gemm), ("cutlass_fused_moe", check_mixture)):
            forget(tuner)
            counts[name] += check(draw, tuner, (("file",), ("memory",), ("file", "memory")))
            if not hasattr(flashinfer, "autotune_v2"):
                continue
            forget(tuner)
            with tempfile.TemporaryDirectory() as root:
                # The store stays attached when the context is left.
                with flashinfer.autotune_v2("replay", cache_root=root):
                    pass
                counts[name] += check(draw, tuner, (("store",),))
                forget(tuner)
    print(json.dumps({"flashinfer": flashinfer.__version__, "compared": counts}))


main()
