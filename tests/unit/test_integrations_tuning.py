"""Contexts in which FlashInfer tunes: what they hand over, and what they leave behind."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch
from test_tactics_table import WHEEL

from fp4aot._tactics import active
from fp4aot.integrations._flashinfer import gemm, tuned_table, tuning
from fp4aot.integrations._flashinfer.call import Context


@pytest.fixture(autouse=True)
def state(monkeypatch):
    monkeypatch.setattr(tuning, "state", tuning._State())
    return tuning.state


def on_gpu():
    return SimpleNamespace(is_cuda=True)


@contextlib.contextmanager
def autotune(tune_mode=True, cache=None):
    """Stands in for FlashInfer's."""
    yield (tune_mode, cache)


def test_calls_are_flashinfers_while_it_tunes(state):
    refreshed = []
    context = tuning.context(autotune, lambda: refreshed.append(state.open))
    with context(cache="a.json") as value:
        assert value == (True, "a.json")
        assert tuning.is_open(on_gpu())
        assert not tuning.is_open(torch.ones(1))
        with context(True):
            assert state.open == 2
        assert state.open == 1
    assert not tuning.is_open(on_gpu())
    # Each time a context is left, when it no longer counts.
    assert refreshed == [1, 0]


def test_a_context_that_only_reads_gives_the_table_at_once(state):
    refreshed = []
    with tuning.context(autotune, lambda: refreshed.append("now"))(False, "a.json"):
        assert refreshed == ["now"]
        assert not tuning.is_open(on_gpu())
    assert refreshed == ["now", "now"]


def test_an_error_in_a_context_closes_it(state):
    refreshed = []
    with (
        pytest.raises(KeyError),
        tuning.context(autotune, lambda: refreshed.append("now"))(),
    ):
        raise KeyError
    assert (state.open, refreshed) == (0, ["now"])


def test_a_context_is_a_decorator_as_flashinfers_is(state):
    @tuning.context(autotune, lambda: None)()
    def inside():
        return state.open

    assert inside() == 1
    assert inside() == 1


@pytest.mark.parametrize(
    ("backend", "tuned"),
    [
        ("auto", NotImplemented),
        ("cutlass", NotImplemented),
        ("cute-dsl", "cutlass"),
        ("x", NotImplemented),
    ],
)
def test_another_backend_that_the_wheel_answers_is_tuned_as_the_wheels(state, backend, tuned):
    state.open = 1

    def original(a, b, a_descale, b_descale, alpha, out_dtype, out, backend):
        return backend

    context = Context(("auto", "cutlass", "cute-dsl"), None, None, False)
    answer = gemm.mm_fp4(original, context).answer
    sizes = {"is_cuda": True, "dim": lambda: 2}
    a, b = (SimpleNamespace(**sizes, shape=shape) for shape in ((4, 64), (64, 96)))
    found = answer(a, b, None, None, SimpleNamespace(numel=lambda: 1), backend=backend)
    assert found == tuned


def test_a_compiled_call_is_never_handed_over(state):
    state.open = 1
    gpu = on_gpu()

    def call(x):
        return x + 1 if tuning.is_open(gpu) else x + 2

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 2
    assert call(torch.zeros(1)).item() == 1


def test_a_method_refreshes_afterwards():
    events = []
    method = tuning.afterwards(lambda self, path: events.append(path), lambda: events.append("r"))
    method(None, "a.json")
    assert events == ["a.json", "r"]


def test_what_goes_wrong_is_logged_and_never_raised(state, monkeypatch, caplog):
    tuner = SimpleNamespace(AutoTuner=SimpleNamespace(_instance=object()))
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", tuner)

    def fail(*arguments):
        raise ValueError("something")

    monkeypatch.setattr(tuned_table, "apply", fail)
    tuning.refresh()
    assert "keep the tactics that they had" in caplog.text
    assert "something" in caplog.text
    caplog.clear()
    monkeypatch.setattr(tuned_table, "apply", lambda *_: "7 rows")
    with caplog.at_level("INFO"):
        tuning.refresh()
    assert "fp4aot: 7 rows" in caplog.text
    caplog.clear()
    state.open = 1
    tuning.refresh()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("bucket_of", "largest", "starts"),
    [
        (lambda m: 1 << (m.bit_length() - 1), 8, [1, 2, 4, 8, 16]),
        (lambda m: min(m, 3), 3, [1, 2, 3]),
        (lambda m: 64, 64, [1]),
        (lambda m: 128 if m <= 300 else 512, 512, [1, 301]),
        (lambda m: 128 if m <= 300 else 512, 128, [1, 301]),
    ],
)
def test_starts_of_buckets(bucket_of, largest, starts):
    assert list(tuned_table._bucket_starts(bucket_of, largest)) == starts


def profile_of(m, n, k):
    return ((m, k // 2), (k // 2, n), (-1, 256), (256, n), (1,), (0,), (-1, n), (0,), (0,), (-1,))


class Tuner:
    """Stands in for FlashInfer's `AutoTuner`, of which it has the oldest release's parts."""

    def __init__(self, **results):
        self._file_configs = {}
        # By operation, class, hash of the runner, shapes and extras.
        self.profiling_cache = {
            ("fp4_gemm", runner, 7, profile_of(m, n, k), ()): (0, tactic, None)
            for runner, chosen in results.items()
            for (m, n, k), tactic in chosen.items()
        }

    def search_cache(self, operation, runners, shapes, config, inputs):
        ((tokens, *rest), *others) = shapes
        bucket = config.dynamic_tensor_specs[0].map_to_tuning_buckets(tokens)
        (probe,) = runners
        key = (operation, type(probe).__name__, hash(probe), ((bucket, *rest), *others), ())
        found = self.profiling_cache.get(key)
        return (True, *found) if found else (False, 0, -1, None)


def test_answers_become_the_table_of_the_current_device(state, monkeypatch):
    spec = SimpleNamespace(map_to_tuning_buckets=lambda m: 1 << (m.bit_length() - 1))
    config = SimpleNamespace(dynamic_tensor_specs=(spec,))
    gemm = SimpleNamespace(_MM_FP4_TUNING_CONFIG_128x4=config)
    monkeypatch.setitem(sys.modules, "flashinfer.gemm.gemm_base", gemm)
    autotuner = SimpleNamespace(TunableRunner=object)
    monkeypatch.setitem(sys.modules, "flashinfer.autotuner", autotuner)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "RTX")
    monkeypatch.setattr(tuned_table.wheel, "this_wheel", lambda: WHEEL)
    given = []
    monkeypatch.setattr(active, "_state", active._State())
    monkeypatch.setattr(active, "set_operators_tables", lambda *tables: given.append(tables))
    tuner = Tuner(
        CutlassFp4GemmRunner={(4, 512, 4096): 3, (16, 512, 4096): 5, (8, 64, 64): 99},
        CudnnFp4GemmRunner={(4, 1024, 4096): 0},
    )
    line = tuned_table.apply(tuner, state)
    assert line == "10 rows for 2 shapes from FlashInfer's autotuner are in force"
    choices = [choice for choice in active.table().choices() if choice.out_dtype == "bfloat16"]
    # Between the buckets and beyond them is FlashInfer's default; 99 is no tactic of the wheel.
    assert [(c.m, c.tactic) for c in choices] == [(1, -1), (4, 3), (8, -1), (16, 5), (32, -1)]
    assert {(c.major, c.minor, c.n, c.k) for c in choices} == {(12, 0, 512, 4096)}
    assert state.other_backends == {(1024, 4096)}
    assert tuned_table.apply(tuner, state) == ""
    assert len(given) == 1


def test_keys_of_caches_are_read():
    profile = "((64, 2048), (2048, 512), (-1, 256), (256, 512), (1,), (0,), (-1, 512), (0,), (0,))"
    (known,) = tuned_table._read_key(f"('fp4_gemm', 'CutlassFp4GemmRunner', {profile}, ())")
    assert known.operation == "fp4_gemm"
    assert known.profile[0] == (64, 2048)
    assert known.extras == ()
    assert known.runner_hash is None
    # Without extras, as before 0.6.18.
    assert tuned_table._read_key(f"('fp4_gemm', 'CutlassFp4GemmRunner', {profile})") == (known,)
    text = "('trtllm::fused_moe::gemm1', 'MoERunner', ((8, 64),), (torch.bfloat16, 8, False))"
    (mixture,) = tuned_table._read_key(text)
    assert mixture.extras == (torch.bfloat16, 8, False)
    for other in ("('bf16_gemm', 'X', ((8, 64),), ())", "('fp4_gemm', 'X', ((8", "", "_metadata"):
        assert tuned_table._read_key(other) == ()
