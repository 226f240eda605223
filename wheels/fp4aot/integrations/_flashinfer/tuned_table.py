"""The table of what FlashInfer's autotuner would choose for every call.

The autotuner is asked, and not its caches read: which of several results counts, and which bucket
a number of tokens belongs to, is FlashInfer's to say in each of its releases. Its caches only tell
what there is to ask for.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from fp4aot._tactics import active, file, wheel
from fp4aot._tactics import flashinfer_cache as gemm_cache
from fp4aot._tactics import flashinfer_moe_cache as moe_cache
from fp4aot._tactics.entries import DEFAULT_TACTIC, OUT_DTYPES, Entry, Mixture, MoeEntry
from fp4aot._tactics.flashinfer_buckets import Buckets
from fp4aot._tactics.table import Section, Table

_LARGEST = 2**31 - 1
_OPERATIONS = (gemm_cache.OPERATION, *moe_cache.OPERATIONS)
_OPERATION_TEXTS = tuple(f"({operation!r}, " for operation in _OPERATIONS)
_NAMES = (torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float4_e2m1fn_x2)
_DTYPES = {str(dtype): dtype for dtype in _NAMES}

Profile = tuple[tuple[int, ...], ...]


class Known(NamedTuple):
    """What the autotuner knows a result by.

    Attributes
    ----------
    operation, runner
        The operator, and the class of the runner.
    profile
        The shapes of its arguments, the number of tokens being that of the bucket.
    extras
        What the runner adds to it.
    runner_hash
        The hash of the runner, or None in a cache that was read.
    """

    operation: str
    runner: str
    profile: Profile
    extras: tuple[Any, ...]
    runner_hash: int | None


class Found(NamedTuple):
    """What the autotuner would choose.

    Attributes
    ----------
    entries, moe_entries
        Rows for `mm_fp4` and `cutlass_fused_moe`.
    other_backends
        N and K of the weights that it has results of other backends for.
    """

    entries: tuple[Entry, ...]
    moe_entries: tuple[MoeEntry, ...]
    other_backends: frozenset[tuple[int, int]]


def apply(tuner: Any, state: Any) -> str:
    """Put in force what FlashInfer's autotuner would choose now.

    Parameters
    ----------
    tuner
        FlashInfer's `AutoTuner`.
    state
        `tuning.state`.

    Returns
    -------
    str
        What to say of it; empty where nothing has changed.
    """
    is_initialized: Callable[[], bool] = torch.cuda.is_initialized
    if not is_initialized():
        # Whatever tunes, or reads a cache, has asked for the device.
        return ""
    capability = torch.cuda.get_device_capability()
    this = wheel.this_wheel()

    def counts(fused: bool) -> tuple[int, int]:
        count = torch.ops.fp4aot._cutlass_fused_moe_tactic_count
        first, second = (count(gemm, fused, torch.cuda.current_device()) for gemm in (1, 2))
        return int(first), int(second)

    found = read(
        tuner, this.tactic_count(*capability), counts if this.has_moe(*capability) else None, state
    )
    state.other_backends = found.other_backends
    section = Section(
        device=torch.cuda.get_device_name(),
        capability=capability,
        plan_hash=this.plan_hash,
        version=this.version,
        flashinfer=this.flashinfer,
        driver=this.driver,
        cuda_runtime=this.cuda_runtime,
        written=datetime.now(timezone.utc).strftime(file.TIME_FORMAT),
        origin="FlashInfer's autotuner",
        entries=found.entries,
        moe_entries=found.moe_entries,
    )
    table = Table((section,)) if section.all_entries else Table()
    return active.set_tuned(table, active.set_operators_tables)


def read(
    tuner: Any,
    tactic_count: int,
    moe_counts: Callable[[bool], tuple[int, int]] | None,
    state: Any,
) -> Found:
    """Ask the autotuner for every number of tokens.

    Parameters
    ----------
    tuner
        FlashInfer's `AutoTuner`.
    tactic_count
        How many tactics the GEMM has; 0 where the wheel has none for this device.
    moe_counts
        How many tactics the two products of a mixture have, by whether finalize is fused; None
        where the wheel has none for this device.
    state
        `tuning.state`.
    """
    # What results have in common but for the tokens: the largest bucket, and the runner's hash.
    problems: dict[Known, tuple[int, int]] = {}
    for known in _known(tuner):
        problem = known._replace(profile=_with_tokens(known.profile, 0), runner_hash=None)
        before = problems.get(problem, (0, 0))
        # A cache that was read says nothing of the runner's hash, and needs none.
        identity = before[1] if known.runner_hash is None else known.runner_hash
        problems[problem] = (max(before[0], known.profile[0][0]), identity)
    entries: dict[tuple[Any, ...], Entry] = {}
    products: dict[tuple[Mixture, tuple[int, int]], dict[str, Buckets]] = {}
    others = set()
    for problem, (largest, identity) in problems.items():
        ask = partial(_answers, tuner, problem, largest, identity)
        if problem.operation == gemm_cache.OPERATION:
            sizes = gemm_cache.sizes_of(_with_tokens(problem.profile, 1))
            if sizes is None or tactic_count == 0:
                continue
            if problem.runner != gemm_cache.RUNNER:
                others.add(sizes[1:])
                continue
            gemm: Any = sys.modules["flashinfer.gemm.gemm_base"]
            config = gemm._MM_FP4_TUNING_CONFIG_128x4
            for m, tactic in ask(config, range(tactic_count)).items():
                for dtype in OUT_DTYPES:
                    chosen = DEFAULT_TACTIC if tactic is None else tactic
                    entry = Entry(sizes[1], sizes[2], dtype, m, chosen)
                    entries[entry.key] = entry
        elif moe_counts is not None and problem.runner == moe_cache.RUNNER:
            config = _mixture_config(state.largest or largest)
            for mixture in _mixtures(problem, state.mixtures):
                first, second = counts = moe_counts(mixture.use_fused_finalize)
                is_first = problem.operation == moe_cache.OPERATIONS[0]
                valid = range(first) if is_first else range(first, first + second)
                answers = products.setdefault((mixture, counts), {})
                answers[problem.operation] = ask(config, valid)
    gemm1, gemm2 = moe_cache.OPERATIONS
    moe_entries = [
        entry
        for (mixture, counts), answers in products.items()
        for entry in moe_cache.entries(
            mixture, answers.get(gemm1, {}), answers.get(gemm2, {}), counts
        )
    ]
    return Found(
        tuple(sorted(entries.values(), key=lambda entry: entry.key)),
        tuple(sorted(moe_entries, key=lambda entry: entry.key)),
        frozenset(others),
    )


def _answers(
    tuner: Any, problem: Known, largest: int, identity: int, config: Any, valid: range
) -> dict[int, int | None]:
    """Ask for one problem's tactic in each bucket; None stands for FlashInfer's default.

    Returns
    -------
    dict
        By the smallest number of tokens; the tactic counted from the first valid one.
    """
    config = _adapted(tuner, config)
    probe = _probe(problem.runner, identity, problem.extras)
    answers: dict[int, int | None] = {}
    for start in _bucket_starts(config.dynamic_tensor_specs[0].map_to_tuning_buckets, largest):
        shapes = _with_tokens(problem.profile, start)
        hit, _, tactic, _ = tuner.search_cache(
            problem.operation, [probe], shapes, config, inputs=[]
        )
        chosen = int(tactic) - valid.start if hit and tactic in valid else None
        if not answers or next(reversed(answers.values())) != chosen:
            answers[start] = chosen
    return {} if set(answers.values()) == {None} else answers


def _probe(runner: str, identity: int, extras: tuple[Any, ...]) -> Any:
    """Make a runner that the autotuner takes for the one whose results it has."""
    base: Any = sys.modules["flashinfer.autotuner"].TunableRunner
    methods = {
        "__hash__": lambda self: identity,
        "get_cache_key_extras": lambda self, inputs: extras,
        "get_valid_tactics": lambda self, inputs, profile: [DEFAULT_TACTIC],
        "forward": lambda self, inputs, tactic=DEFAULT_TACTIC, do_preparation=False: None,
    }
    return type(runner, (base,), methods)()


def _bucket_starts(bucket_of: Callable[[int], int], largest: int) -> Iterator[int]:
    """Yield the smallest number of tokens of each bucket, in order.

    Parameters
    ----------
    bucket_of
        FlashInfer's rule. Larger numbers have larger buckets, or the same.
    largest
        The largest bucket of which there is a result. The first one beyond is the last: there is
        nothing to find in those that follow.
    """
    start = 1
    while True:
        yield start
        bucket, inside, step = bucket_of(start), start, 1
        if bucket > largest:
            return
        while inside + step <= _LARGEST and bucket_of(inside + step) == bucket:
            inside, step = inside + step, step * 2
        beyond = min(inside + step, _LARGEST + 1)
        while beyond - inside > 1:
            middle = (inside + beyond) // 2
            inside, beyond = (middle, beyond) if bucket_of(middle) == bucket else (inside, middle)
        if beyond > _LARGEST:
            return
        start = beyond


def _known(tuner: Any) -> Iterator[Known]:
    """Say what the autotuner has results for: measured in this process, read, or managed."""
    winners = tuner._winner_cache() if hasattr(tuner, "_winner_cache") else tuner.profiling_cache
    for key in list(winners):
        # A tuple before 0.6.18.
        operation, runner, identity, profile, extras = (
            key
            if isinstance(key, tuple)
            else (
                *(key.custom_op, key.runner_class_name, key.runner_hash),
                *(key.nearest_profile, key.extras),
            )
        )
        yield from _ours(operation, runner, profile, extras, identity)
    for text in list(tuner._file_configs):
        yield from _read_key(text)
    store = getattr(tuner, "_active_managed_store", None)
    if store is not None:
        for root, environment, fields in list(tuner._managed_decoded):
            if (root, environment) == (str(store.root), store.env_hash):
                yield from _ours(*fields)


def _ours(
    operation: str, runner: str, profile: Any, extras: tuple[Any, ...], identity: int | None = None
) -> Iterator[Known]:
    if operation in _OPERATIONS and profile and profile[0]:
        yield Known(operation, runner, tuple(map(tuple, profile)), extras, identity)


@lru_cache(maxsize=4096)
def _read_key(text: str) -> tuple[Known, ...]:
    """Read the key of a cache, which is the text of its parts; at first without extras."""
    if not text.startswith(_OPERATION_TEXTS):
        return ()
    try:
        operation, runner, profile, *rest = ast.literal_eval(
            re.sub(r"torch\.\w+", lambda dtype: repr(dtype[0]), text)
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    extras = tuple(_DTYPES.get(value, value) for value in rest[0]) if rest else ()
    return tuple(_ours(operation, runner, profile, extras))


def _mixtures(problem: Known, seen: Mapping[Any, tuple[Any, ...]]) -> Iterator[Mixture]:
    """Tell what mixture a result is for. Without extras, the calls have to tell."""
    shapes = _with_tokens(problem.profile, 1)
    extras = problem.extras or seen.get(weights_of(shapes), ())
    named = [str(value).removeprefix("torch.") if value in _NAMES else value for value in extras]
    found = moe_cache.mixture_of(shapes, named)
    if found is not None:
        yield found[1]


def weights_of(shapes: Profile) -> Profile:
    """Return what of the shapes of a mixture's arguments says which weights it has."""
    return shapes[0][1:], shapes[1], shapes[3]


def _with_tokens(profile: Profile, tokens: int) -> Profile:
    return ((tokens, *profile[0][1:]), *profile[1:])


def _mixture_config(largest: int) -> Any:
    """Make the configuration by which FlashInfer tunes a mixture for up to `largest` tokens."""
    core: Any = sys.modules["flashinfer.fused_moe.core"]
    if hasattr(core, "make_hybrid_bucket_mapper"):
        bucket_of = core.make_hybrid_bucket_mapper(largest)
    elif hasattr(core, "map_to_hybrid_bucket"):
        # Before 0.6.18.
        bucket_of = partial(core.map_to_hybrid_bucket, max_num_tokens=largest)
    else:
        # Before 0.6.12.
        def bucket_of(tokens: int) -> int:
            return int(min(core.last_positive_power_of_2(tokens), largest))

    buckets = getattr(core, "get_hybrid_num_tokens_buckets", None)
    buckets = buckets or core.get_last_power_of_2_num_tokens_buckets
    tuner: Any = sys.modules["flashinfer.autotuner"]
    spec = tuner.DynamicTensorSpec((0,), (0,), buckets(largest), bucket_of)
    return tuner.TuningConfig(dynamic_tensor_specs=(spec,))


def _adapted(tuner: Any, config: Any) -> Any:
    """Apply what `autotune(tuning_buckets=..., round_up=...)` asks for at this place."""
    buckets = getattr(tuner, "_override_tuning_buckets", None)
    if buckets is not None or getattr(tuner, "_override_round_up", False):
        return tuner._apply_tuning_overrides(config)
    return config
