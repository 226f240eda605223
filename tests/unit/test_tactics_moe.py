"""Tactics of `cutlass_fused_moe`: measured in two stages, tuned, shown, and imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_tactics_buckets import map_to_hybrid_bucket_uncapped
from test_tactics_commands import RTX, SMALL, Setup, setup  # noqa: F401 (a fixture)
from test_tactics_flashinfer_cache import CUTLASS, WRITTEN, make_cache, make_key
from test_tactics_measure import CPU, FakeDevice, fail, nothing
from test_tactics_table import WHEEL, make_moe_entry, make_table

from fp4aot._tactics import file, flashinfer_cache
from fp4aot._tactics.entries import MoeChoice, MoeEntry
from fp4aot._tactics.errors import TacticsError
from fp4aot._tactics.flashinfer_cache import Imported
from fp4aot._tactics.measure_moe import (
    MoeCase,
    disagreement,
    measure,
    random_operands,
)
from fp4aot._tactics.shapes import MoeShape
from fp4aot._tactics.trials import CaseError, DeviceLostError
from fp4aot.operators.mixture_of_experts import cutlass_fused_moe

SHAPE = MoeShape(64, 32, 4, 2, name="experts")
CASE = MoeCase(SHAPE, "bfloat16", quantized_input=False, use_fused_finalize=True, bucket=64)
TACTICS = (2, 3)


def make_device() -> FakeDevice:
    """The first product's best is 1, the second's 2."""
    return FakeDevice({-1: 20.0, 0: 22.0, 1: 10.0}, moe_times={-1: 8.0, 0: 9.0, 1: 8.0, 2: 4.0})


# Measuring


def test_the_second_product_is_measured_with_the_best_first() -> None:
    device = make_device()
    found = measure(CASE, TACTICS, device.bench())
    assert found.first.microseconds == {-1: 28.0, 0: 30.0, 1: 18.0}
    assert found.second.microseconds == {-1: 18.0, 0: 19.0, 1: 18.0, 2: 14.0}
    assert set(device.moe_calls) == {(-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (1, 2)}
    assert (found.tactics, found.default, found.best) == ((1, 2), 28.0, 14.0)
    assert found.entry() == MoeEntry(
        *(64, 32, 4, 2, "bfloat16", False, True, 33),
        *(1, 2, 2, 3),
        *(64, 14.0, 28.0),
    )


def test_the_flags_are_passed_on() -> None:
    device = make_device()
    shape = replace(SHAPE, ep_size=4)
    measure(replace(CASE, shape=shape, use_fused_finalize=False), TACTICS, device.bench())
    expected = {"activation_type": 3, "use_fused_finalize": False, "ep_size": 4}
    assert all(options == expected for options in device.options)
    measure(replace(CASE, quantized_input=True), TACTICS, device.bench())
    assert device.options[-1]["input_sf"].dtype == torch.uint8


def test_a_tactic_that_fails_is_excluded_from_its_product() -> None:
    device = make_device()
    device.moe_faults = {(1, 1): nothing, (2, 2): fail("shared memory is too small")}
    found = measure(CASE, TACTICS, device.bench())
    assert found.tactics == (-1, -1)
    assert "128 of 128 blocks of 32 results differ" in found.first.excluded[1]
    assert found.second.excluded == {2: "shared memory is too small"}


def test_what_is_excluded_is_not_called() -> None:
    device = make_device()
    found = measure(CASE, TACTICS, device.bench(), ((1,), (0, 2)))
    assert found.tactics == (-1, -1)
    assert set(device.moe_calls) == {(-1, -1), (0, -1), (-1, 1)}


@pytest.mark.parametrize("product", [1, 2])
def test_a_lost_device_names_the_product(product: int) -> None:
    device = make_device()

    def crash(_: torch.Tensor) -> None:
        device.lost = True
        raise RuntimeError("an illegal memory access was encountered")

    device.moe_faults[product, 0] = crash
    with pytest.raises(DeviceLostError, match=rf"product {product} of .*--exclude-gemm{product} 0"):
        measure(CASE, TACTICS, device.bench())


def test_a_default_that_fails_fails_the_case() -> None:
    device = make_device()
    device.moe_faults[1, -1] = fail("no image")
    with pytest.raises(CaseError, match="no image"):
        measure(CASE, TACTICS, device.bench())


def test_operands_without_memory_fail_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randint", full)
    with pytest.raises(CaseError, match="out of memory"):
        measure(CASE, TACTICS, make_device().bench())


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "shape", [MoeShape(64, 32, 4, 2), MoeShape(256, 96, 8, 4), MoeShape(96, 160, 2, 8, ep_size=4)]
)
def test_operands_are_what_the_operator_takes(shape: MoeShape, dtype: str, quantized: bool) -> None:
    case = MoeCase(shape, dtype, quantized, use_fused_finalize=True, bucket=33)
    operands = random_operands(case, CPU)
    operands.out.fill_(float("nan"))
    # The reference makes the operator's checks.
    cutlass_fused_moe.out(*operands.arguments, **operands.options, out=operands.out)
    assert operands.out.shape == (33, shape.hidden_size)
    assert bool(operands.out.isfinite().all())
    size = float(operands.out.float().square().mean().sqrt()) * shape.ep_size**0.5
    assert 0.4 < size < 2.5
    experts = operands.arguments[1]
    assert all(len(row.unique()) == shape.top_k for row in experts)
    assert int(experts.max()) >= shape.experts * shape.ep_size / 2
    again = random_operands(case, CPU)
    assert all(map(torch.equal, operands.arguments, again.arguments))


@pytest.mark.parametrize("quantized", [False, True])
def test_one_experts_part_is_missed_and_rounding_is_not(quantized: bool) -> None:
    case = MoeCase(MoeShape(128, 64, 8, 4), "bfloat16", quantized, True, bucket=8)
    operands = random_operands(case, CPU)

    def mix(arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return cutlass_fused_moe(*arguments, torch.bfloat16, **operands.options)

    right = mix(operands.arguments)
    one_less = operands.arguments[1].clone()
    one_less[3, 2] = -1
    wrong = mix((operands.arguments[0], one_less, *operands.arguments[2:]))
    assert "4 of 32 blocks" in (disagreement(wrong, right) or "")
    # Adding up in bfloat16, as with fused finalize.
    sums = torch.zeros_like(right)
    for choice in range(4):
        part = torch.full_like(operands.arguments[1], -1)
        part[:, choice] = operands.arguments[1][:, choice]
        sums += mix((operands.arguments[0], part, *operands.arguments[2:]))
    assert not torch.equal(sums, right)
    assert disagreement(sums, right) is None


def test_disagreement_is_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp4aot._tactics.trials._CHUNK", 256)
    right = torch.randn(100, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    right[7] = 0
    assert disagreement(right.clone(), right) is None
    for value in (float("nan"), float("inf"), 4.0):
        wrong = right.clone()
        wrong[99, 63] = value
        assert (disagreement(wrong, right) or "").startswith("1 of 200 blocks of 32 results")
    # A token without experts of this rank.
    wrong = right.clone()
    wrong[7, :32] = 1
    assert (disagreement(wrong, right) or "").startswith("1 of 200 blocks")


# The command


@pytest.fixture
def moe_setup(setup: Setup) -> Setup:  # noqa: F811
    setup.device.moe_times = {-1: 8.0, 0: 9.0, 1: 8.0, 2: 4.0}
    return setup


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    mixture = {"hidden_size": 64, "intermediate_size": 32, "experts": 4, "top_k": 2}
    (tmp_path / "shapes.json").write_text(json.dumps([[64, 128], mixture | {"name": "experts"}]))
    return "shapes.json"


def test_tune_measures_both_operators(
    moe_setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert moe_setup.run("tune", "--shapes", shapes, "--m", "1", "60") == 0
    table, notes = file.read("fp4aot-tactics.json", SMALL)
    assert notes == []
    assert [(c.n, c.k, c.m, c.tactic) for c in table.choices()] == [
        (64, 128, 1, 1),
        (64, 128, 33, 1),
    ]
    shape = (64, 32, 4, 2)
    assert table.moe_choices() == [
        MoeChoice(10, 0, "bfloat16", quantized, True, *shape, tokens, 1, 2)
        for quantized in (False, True)
        for tokens in (1, 33)
    ]
    entry = table.sections[0].moe_entries[0]
    assert (entry.gemm1_count, entry.gemm2_count) == (2, 3)
    assert (entry.microseconds, entry.default_microseconds) == (14.0, 28.0)
    printed = capsys.readouterr()
    assert "6 cases on cuda:0 (NVIDIA B200" in printed.err
    line = next(line for line in printed.out.splitlines() if "33-64" in line and "packed" in line)
    assert line.split("  ")[0] == "4x64x32 top 2"
    assert line.split()[3:] == [
        *("33-64", "bfloat16", "packed", "fused", "28.0", "14.0", "2.00", "1", "2", "experts"),
    ]
    assert "6 entries for cuda:0" in printed.out
    assert "another tactic than the default is faster in 6" in printed.out


def test_tune_covers_what_is_asked_for(moe_setup: Setup, shapes: str) -> None:
    command = ("tune", "--shapes", shapes, "--m", "1", "--dtype", "float16")
    assert (
        moe_setup.run(*command, "--moe-input", "float", "--moe-finalize", "fused", "separate") == 0
    )
    table, _ = file.read("fp4aot-tactics.json", SMALL)
    assert [c[2:5] for c in table.moe_choices()] == [
        ("float16", False, False),
        ("float16", False, True),
    ]
    # Without fused finalize, the second product has but one tactic here.
    assert [c[-2:] for c in table.moe_choices()] == [(1, -1), (1, 2)]


def test_tune_prints_the_times_of_both_products(
    moe_setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    moe_setup.device.moe_faults[2, 2] = nothing
    command = ("tune", "--shapes", shapes, "--m", "8", "--moe-input", "float", "--json")
    assert moe_setup.run(*command) == 0
    data = json.loads(capsys.readouterr().out)
    (found,) = data["moe_measurements"]
    assert (found["gemm1_tactic"], found["gemm2_tactic"], found["tokens"]) == (1, -1, 5)
    assert found["gemm1"]["all_microseconds"] == {"-1": 28.0, "0": 30.0, "1": 18.0}
    assert set(found["gemm2"]["excluded"]) == {"2"}


def test_tune_excludes_by_product(
    moe_setup: Setup, shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    moe_setup.device.moe_faults[2, 1] = nothing
    command = (
        "tune",
        "--shapes",
        shapes,
        "--m",
        "1",
        "--exclude-gemm1",
        "1",
        "--exclude-gemm2",
        "2",
    )
    assert moe_setup.run(*command) == 0
    table, _ = file.read("fp4aot-tactics.json", SMALL)
    assert {c[-2:] for c in table.moe_choices()} == {(-1, -1)}
    assert table.choices()[0].tactic == 1
    out = capsys.readouterr().out
    assert "excluded: tactic of product 2 1 in 2 of 2 cases, 4x64x32 top 2 tokens=1" in out


def test_a_gpu_without_a_mixture_of_experts_is_tuned_without(
    moe_setup: Setup, shapes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("tune", "--m", "1", "--device", "cuda:2", "--shapes")
    assert moe_setup.run(*command, shapes) == 0
    why = "4x64x32 top 2 (experts): this wheel has no mixture of experts for cuda:2"
    printed = capsys.readouterr()
    assert f"skipped {why}" in printed.err
    assert f"skipped:  {why}" in printed.out
    assert file.read("fp4aot-tactics.json", SMALL)[0].moe_choices() == []
    mixtures = json.loads((tmp_path / shapes).read_text())[1:]
    (tmp_path / "mixtures.json").write_text(json.dumps(mixtures))
    assert moe_setup.run(*command, "mixtures.json") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no shape is left to tune; this wheel has no mixture of experts for cuda:2" in error


def test_a_wheel_of_experts_alone_is_tuned(moe_setup: Setup, shapes: str) -> None:
    moe_setup.machine = replace(moe_setup.machine, wheel=replace(SMALL, tactic_count=lambda *_: 0))
    assert moe_setup.run("tune", "--shapes", shapes, "--m", "1") == 0
    table, _ = file.read("fp4aot-tactics.json", SMALL)
    assert (len(table.choices()), len(table.moe_choices())) == (0, 2)


def test_what_does_not_fit_is_skipped(
    moe_setup: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = {"hidden_size": 64, "intermediate_size": 48, "experts": 4, "top_k": 2}
    (tmp_path / "shapes.json").write_text(json.dumps([mixture]))
    assert moe_setup.run("tune", "--shapes", "shapes.json") == 1
    error = capsys.readouterr().err
    assert "the hidden and the intermediate size must be divisible by 32" in error


def test_show_and_merge(moe_setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    entries = (make_moe_entry(1, -1, 31), make_moe_entry(33), make_moe_entry(9, top_k=4))
    file.write(make_table(moe_entries=entries), "a.json")
    assert moe_setup.run("tactics", "show", "a.json") == 0
    lines = capsys.readouterr().out.splitlines()
    shape = ("10.0", "bfloat16", "float", "fused", "32x6144x2048", "top")
    assert [tuple(line.split()) for line in lines[2:5]] == [
        (*shape, "4", "9-", "5", "17"),
        (*shape, "8", "1-32", "default", "31"),
        (*shape, "8", "33-", "5", "17"),
    ]
    assert lines[-1] == "a.json: 3 entries"
    file.write(make_table(moe_entries=(make_moe_entry(65),)), "b.json")
    assert moe_setup.run("tactics", "merge", "a.json", "b.json", "--out", "c.json") == 0
    assert "c.json: 4 entries" in capsys.readouterr().out
    assert len(file.read("c.json", WHEEL)[0].moe_choices()) == 4


# FlashInfer's caches

COUNTS = {True: (16, 32), False: (16, 16)}


def make_moe_key(
    gemm: int,
    tokens: int,
    *,
    x: str = "torch.bfloat16",
    weight: str = "torch.int64",
    out: str = "torch.bfloat16",
    top_k: int = 8,
    mxfp8: bool = False,
    fused: bool = True,
    rows: int = 4096,
    experts: int = 32,
    runner: str = "MoERunner",
) -> str:
    """`str(ProfilingCacheKey.key_fields)` of a mixture of experts, for H=6144 and I=2048."""
    width = 6144 // 16 if x == "torch.int64" else 6144
    shapes = ((tokens, width), (experts, rows, 384), (0,), (experts, 6144, 128), (0,))
    extras = (
        f"({x}, {weight}, {out}, {top_k}, 1, 1, 1, False, False, False, {mxfp8}, False, False, "
        f"True, 3, False, {fused})"
    )
    return f"('trtllm::fused_moe::gemm{gemm}', '{runner}', {shapes}, {extras})"


def moe_results(first: dict[int, int], second: dict[int, int], **fields: Any) -> dict[str, Any]:
    """Results as FlashInfer writes them: the second product's tactics are counted on."""
    return {
        make_moe_key(gemm, tokens, **fields): ["MoERunner", tactic]
        for gemm, tactics in ((1, first), (2, second))
        for tokens, tactic in tactics.items()
    }


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Imported]:
    def read(
        results: dict[str, Any],
        rounding: str = "default",
        counts: Any = lambda _, fused: COUNTS[fused],
        wheel: Any = WHEEL,
    ) -> Imported:
        path = tmp_path / "autotune.json"
        path.write_text(json.dumps(make_cache({}, results)))
        found = flashinfer_cache.read(
            path, wheel, {"NVIDIA B200": (10, 0)}.get, WRITTEN, rounding, counts
        )
        # What is imported can be written and loaded.
        file.write(found.table, tmp_path / "table.json")
        assert file.read(tmp_path / "table.json", wheel) == (found.table, [])
        return found

    return read


def look_up(choices: list[MoeChoice], tokens: int) -> tuple[int, int]:
    """What the C++ operator does with one mixture: the largest start not above."""
    below = [c for c in choices if c.tokens <= tokens] or [min(choices, key=lambda c: c.tokens)]
    return max(below, key=lambda c: c.tokens)[-2:]


@pytest.mark.parametrize("largest", [8192, 4096, 3000, 64, 1])
def test_for_every_number_of_tokens_the_same_tactics(
    largest: int, imported: Callable[..., Imported]
) -> None:
    """FlashInfer takes more than `tune_max_num_tokens` to that bucket, which can be any number."""
    grid = [*(2**i for i in range(9)), *range(512, 2049, 256), *range(2560, 4097, 512), 8192]
    buckets = sorted({*(bucket for bucket in grid if bucket < largest), largest})
    first = {bucket: index % 16 for index, bucket in enumerate(buckets)}
    second = {bucket: 16 + index * 5 % 32 for index, bucket in enumerate(buckets)}
    found = imported(moe_results(first, second))
    assert found.moe_taken == 2 * len(buckets)
    choices = found.table.moe_choices()
    for tokens in range(1, 9000):
        bucket = min(map_to_hybrid_bucket_uncapped(tokens), largest)
        assert look_up(choices, tokens) == (first[bucket], second[bucket] - 16), tokens


def test_a_key_is_read(imported: Callable[..., Imported]) -> None:
    results = moe_results({64: 5}, {64: 47}) | moe_results(
        {64: -1},
        {64: 31},
        x="torch.int64",
        out="torch.float16",
        fused=False,
        top_k=4,
        rows=2048,
    )
    found = imported(results)
    assert (found.moe_taken, found.taken, found.skipped) == (4, 0, {})
    shape = (6144, 2048, 32)
    assert [c for c in found.table.moe_choices() if c.tokens == 33] == [
        MoeChoice(10, 0, "bfloat16", False, True, *shape, 8, 33, 5, 31),
        MoeChoice(10, 0, "float16", True, False, *shape, 4, 33, -1, 15),
    ]
    entries = found.table.sections[0].moe_entries
    assert {(e.use_fused_finalize, e.gemm1_count, e.gemm2_count) for e in entries} == {
        (True, 16, 32),
        (False, 16, 16),
    }
    # Below the only bucket FlashInfer has none, and uses its default.
    assert look_up([c for c in found.table.moe_choices() if c.top_k == 8], 32) == (-1, -1)


def test_one_product_alone(imported: Callable[..., Imported]) -> None:
    choices = imported(moe_results({1: 3}, {})).table.moe_choices()
    assert [c[-3:] for c in choices] == [(1, 3, -1)]
    choices = imported(moe_results({}, {1: 16, 2: 20})).table.moe_choices()
    assert [c[-3:] for c in choices] == [(1, -1, 0), (2, -1, 4)]


def test_other_mixtures_are_counted(imported: Callable[..., Imported]) -> None:
    others = {
        **moe_results({1: 3}, {}, weight="torch.uint8"),
        **moe_results({2: 3}, {}, mxfp8=True),
        **moe_results({4: 3}, {}, rows=512),
        **moe_results({8: 3}, {}, out="torch.float16"),
        make_moe_key(1, 16).replace("(16, 6144)", "(16,)"): ["MoERunner", 3],
        make_moe_key(1, 32).replace("True)", "1)"): ["MoERunner", 3],
        make_moe_key(1, 32).replace(", False, True)", ")"): ["MoERunner", 3],
        make_moe_key(1, 64).replace("(64, 6144)", "(64 6144)"): ["MoERunner", 3],
        make_key(1): [CUTLASS, 3],
    }
    found = imported(others | moe_results({1: 5}, {}))
    assert (found.taken, found.moe_taken) == (1, 1)
    assert found.skipped == {"of MoERunner, which are not of NVFP4": 8}


def test_without_a_device_nothing_of_mixtures_is_taken(imported: Callable[..., Imported]) -> None:
    found = imported(
        moe_results({1: 3}, {1: 16}) | {make_key(1): [CUTLASS, 3]}, counts=lambda *_: None
    )
    assert (found.taken, found.moe_taken) == (1, 0)
    ((reason, count),) = found.skipped.items()
    assert count == 2
    assert "without such a GPU here" in reason


def test_a_wheel_of_experts_alone_takes_them(imported: Callable[..., Imported]) -> None:
    wheel = replace(WHEEL, tactic_count=lambda *_: 0)
    found = imported(moe_results({1: 3}, {}) | {make_key(1): [CUTLASS, 3]}, wheel=wheel)
    assert (found.taken, found.moe_taken) == (0, 1)
    assert found.skipped == {"of mm_fp4, which is not in this wheel": 1}
    assert found.table.choices() == []


def test_a_second_result_for_the_same_mixture(imported: Callable[..., Imported]) -> None:
    one, other = moe_results({1: 3}, {}), moe_results({1: 4}, {})
    (key,) = other
    # Another size of expert parallelism, which a table does not know.
    other = {key.replace(", 8, 1, 1, 1", ", 8, 1, 4, 1"): ["MoERunner", 4]}
    found = imported(one | other)
    assert found.skipped == {"a second, different result for the same mixture of experts": 1}
    assert found.table.moe_choices()[0].gemm1_tactic == 3


@pytest.mark.parametrize(
    ("gemm", "value"),
    [
        (1, ["MoERunner", 16]),
        (1, ["MoERunner", -2]),
        (1, ["MoERunner", True]),
        (1, ["Another", 1]),
        (2, ["MoERunner", 15]),
        (2, ["MoERunner", 48]),
        (2, ["MoERunner", "16"]),
    ],
)
def test_a_tactic_that_cannot_be(
    gemm: int, value: list[Any], imported: Callable[..., Imported]
) -> None:
    start = 16 if gemm == 2 else 0
    with pytest.raises(TacticsError, match=rf"expected 'MoERunner' and a tactic from {start} to"):
        imported({make_moe_key(gemm, 1): value})


@pytest.mark.parametrize(("rounding", "starts"), [("down", [100, 200]), ("up", [1, 101])])
def test_chosen_buckets(
    rounding: str, starts: list[int], imported: Callable[..., Imported]
) -> None:
    results = moe_results({100: 1, 200: 2}, {100: 17, 200: 18})
    choices = imported(results, rounding).table.moe_choices()
    assert [c[-3:] for c in choices] == [(starts[0], 1, 1), (starts[1], 2, 2)]
    with pytest.raises(TacticsError, match=r"a result for M=100, .* --rounding down"):
        imported(results)


def test_the_command_imports_both(moe_setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cache.json").write_text(json.dumps(make_cache({1: 2}, moe_results({1: 1}, {1: 4}))))
    command = ("tactics", "import", "cache.json", "--out", "a.json")
    assert moe_setup.run(*command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cache.json: 2 results for cutlass_fused_moe taken" in lines
    table, _ = file.read("a.json", SMALL)
    assert [c[-3:] for c in table.moe_choices()] == [(1, 1, 2)]
    # Of a GPU that is not here, nobody knows where the second product's tactics start.
    moe_setup.machine = replace(moe_setup.machine, gpus=(RTX,))
    assert moe_setup.run(*command[:4], "b.json", "--capability", "10.0", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["taken"], data["moe_taken"], sum(data["skipped"].values())) == (1, 0, 2)
