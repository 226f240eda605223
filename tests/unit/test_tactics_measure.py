"""Measuring tactics: what is checked, what is timed, what is chosen; on the CPU by a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

import pytest
import torch

from fp4aot._tactics import trials
from fp4aot._tactics.bench import Bench
from fp4aot._tactics.entries import Entry
from fp4aot._tactics.measure import Case, disagreement, make_trial, measure, random_operands
from fp4aot._tactics.progress import Progress, clock_text
from fp4aot._tactics.shapes import Shape
from fp4aot._tactics.trials import CaseError, DeviceLostError
from fp4aot.operators.matmul import mm_fp4

Fault = Callable[[torch.Tensor], torch.Tensor | None]
"""What a kernel writes in place of the right result; None for nothing."""

CPU = torch.device("cpu")
CASE = Case(Shape(64, 128, "layer"), "bfloat16", 64)


@dataclass
class FakeDevice:
    """A device on which tactic t takes `times[t]` microseconds, and does what `faults[t]` says."""

    times: dict[int, float]
    faults: dict[int, Fault] = field(default_factory=dict)
    now: float = 0.0
    lost: bool = False
    calls: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    moe_times: dict[int, float] = field(default_factory=dict)
    moe_faults: dict[tuple[int, int], Fault] = field(default_factory=dict)
    moe_calls: list[tuple[int, int]] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)

    def call(self, *_: torch.Tensor, tactic: int, out: torch.Tensor) -> None:
        self.calls.append(tactic)
        if self.lost:
            raise RuntimeError("the device is lost")
        self.now += self.times[tactic]
        values = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)
        result = self.faults.get(tactic, lambda right: right)((values % 17 - 8).to(out.dtype))
        if result is not None:
            out.copy_(result)

    def call_moe(
        self,
        input: torch.Tensor,
        *arguments: torch.Tensor,
        gemm1_tactic: int,
        gemm2_tactic: int,
        out: torch.Tensor,
        **options: Any,
    ) -> None:
        """A call takes as long as the two tactics together."""
        self.moe_calls.append((gemm1_tactic, gemm2_tactic))
        self.options.append(options)
        if self.lost:
            raise RuntimeError("the device is lost")
        self.now += self.times[gemm1_tactic] + self.moe_times[gemm2_tactic]
        values = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)
        result = (values % 17 - 8).to(out.dtype)
        for product, tactic in ((1, gemm1_tactic), (2, gemm2_tactic)):
            fault = self.moe_faults.get((product, tactic))
            result = fault(result) if fault and result is not None else result
        if result is not None:
            out.copy_(result)

    def timer(self, run: Callable[[], object], repetitions: int) -> list[float]:
        found = []
        for _ in range(repetitions):
            start = self.now
            run()
            found.append(self.now - start)
        self.rounds += self.calls[-1:]
        return found

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("the device is lost")

    def bench(self) -> Bench:
        return Bench(self.call, self.call_moe, self.timer, self.synchronize, CPU)


def fail(message: str) -> Fault:
    def fault(_: torch.Tensor) -> None:
        raise RuntimeError(message)

    return fault


def nothing(_: torch.Tensor) -> None:
    """A kernel that was not launched."""


# Choosing


def test_the_fastest_is_chosen() -> None:
    device = FakeDevice({-1: 10.0, 0: 12.0, 1: 7.0, 2: 8.0})
    found = measure(CASE, range(3), device.bench())
    assert found.microseconds == {-1: 10.0, 0: 12.0, 1: 7.0, 2: 8.0}
    assert (found.tactic, found.best, found.default) == (1, 7.0, 10.0)
    assert found.excluded == {}
    assert found.entry() == Entry(64, 128, "bfloat16", 33, 1, 64, 7.0, 10.0)


@pytest.mark.parametrize(
    ("best", "tactic"), [(10.0, -1), (9.95, -1), (9.91, -1), (9.89, 0), (5.0, 0), (11.0, -1)]
)
def test_the_default_stays_unless_another_is_clearly_faster(best: float, tactic: int) -> None:
    found = measure(CASE, [0], FakeDevice({-1: 10.0, 0: best}).bench())
    assert found.tactic == tactic
    assert found.entry().microseconds == (best if tactic == 0 else 10.0)


def test_of_equally_fast_ones_the_first_is_chosen() -> None:
    assert measure(CASE, [3, 1, 2], FakeDevice({-1: 9.0, 3: 5, 1: 5, 2: 5}).bench()).tactic == 1


def test_the_median_counts() -> None:
    device = FakeDevice({-1: 10.0, 0: 8.0, 1: 9.0})
    slow = iter(range(1000))
    timer = device.timer

    def disturbed(run: Callable[[], object], repetitions: int) -> list[float]:
        # Ten of twenty-five runs of each tactic are disturbed.
        return [t + (1e6 if next(slow) % 5 < 2 else 0.0) for t in timer(run, repetitions)]

    bench = replace(device.bench(), timer=disturbed)
    assert measure(CASE, range(2), bench).microseconds == {-1: 10.0, 0: 8.0, 1: 9.0}


def test_tactics_take_turns() -> None:
    device = FakeDevice({-1: 10.0, 0: 8.0, 1: 9.0})
    measure(CASE, range(2), device.bench())
    assert device.rounds == [-1, 0, 1] * trials.ROUNDS
    # Each is checked once and timed in every round.
    assert device.calls.count(1) == 1 + trials.ROUNDS * trials.REPETITIONS


# What is excluded


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (fail("cannot implement this\nmore"), "cannot implement this"),
        (nothing, "4096 of 4096 results differ"),
        (lambda right: right * 1.1, "results differ from the default tactic's"),
        (lambda right: right.roll(1, 0), "results differ"),
        (lambda right: right.index_fill(0, torch.tensor([63]), 99.0), "64 of 4096"),
        (lambda right: right.clone().fill_(float("inf")), "4096 of 4096"),
    ],
)
def test_a_tactic_that_fails_or_disagrees_is_excluded(fault: Fault, reason: str) -> None:
    device = FakeDevice({-1: 10.0, 0: 1.0, 1: 9.0}, {0: fault})
    found = measure(CASE, range(2), device.bench())
    assert reason in found.excluded[0]
    assert "\n" not in found.excluded[0]
    assert found.tactic == 1
    assert set(found.microseconds) == {-1, 1}
    assert 0 not in device.rounds


def test_rounding_is_no_disagreement() -> None:
    # One unit in the last place of bfloat16.
    device = FakeDevice({-1: 10.0, 0: 1.0}, {0: lambda right: right * (1 + 2**-7)})
    found = measure(CASE, [0], device.bench())
    assert found.excluded == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_disagreement(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_CHUNK", 256)
    right = torch.randn(100, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert disagreement(right.clone(), right) is None
    for value in (float("nan"), float("inf"), 4.0):
        wrong = right.clone()
        wrong[99, 63] = value
        assert (disagreement(wrong, right) or "").startswith("1 of 6400 results differ")
    # Near zero, where the order of additions shows, an error of the whole's size is none.
    noisy = (right.float() + 0.002 * torch.randn(100, 64)).to(dtype)
    assert disagreement(noisy, right) is None


def test_a_default_that_fails_fails_the_case() -> None:
    device = FakeDevice({-1: 10.0, 0: 1.0}, {-1: fail("no image\nfor this device")})
    with pytest.raises(CaseError, match=r"^no image$"):
        measure(CASE, [0], device.bench())


def test_a_default_that_writes_nothing_fails_the_case() -> None:
    device = FakeDevice({-1: 10.0, 0: 1.0}, {-1: nothing})
    with pytest.raises(CaseError, match="NaN or infinity, or was not written"):
        measure(CASE, [0], device.bench())


@pytest.mark.parametrize("tactic", [-1, 1])
def test_a_lost_device_ends_it_and_names_the_tactic(tactic: int) -> None:
    device = FakeDevice({-1: 10.0, 0: 1.0, 1: 2.0})

    def crash(_: torch.Tensor) -> None:
        device.lost = True
        raise RuntimeError("an illegal memory access was encountered")

    device.faults[tactic] = crash
    with pytest.raises(DeviceLostError, match=rf"tactic {tactic} of 64x128 M=64 bfloat16 crashed"):
        measure(CASE, range(2), device.bench())


def test_a_failure_while_timing_fails_the_case() -> None:
    device = FakeDevice({-1: 10.0, 0: 1.0})

    def broken(*_: object) -> list[float]:
        raise RuntimeError("out of memory")

    with pytest.raises(CaseError, match="tactic -1: out of memory"):
        measure(CASE, [0], replace(device.bench(), timer=broken))


# Operands


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("n", "k", "m"), [(32, 32, 1), (64, 96, 33), (160, 128, 129)])
def test_operands_are_what_the_operator_takes(dtype: str, n: int, k: int, m: int) -> None:
    case = Case(Shape(n, k), dtype, m)
    # The reference makes the operator's checks.
    bench = replace(FakeDevice({}).bench(), call=mm_fp4.out)
    product = trials.result(make_trial(case, bench), -1, bench)
    assert product.shape == (m, n)
    assert product.dtype == getattr(torch, dtype)
    # Values of a usual size: no overflow, and nothing that is rounded away.
    assert bool(product.isfinite().all())
    assert 0.5 < float(product.float().square().mean().sqrt()) < 2


def test_operands_are_random_and_never_zeros() -> None:
    operands = random_operands(Case(Shape(256, 512), "bfloat16", 128), CPU)
    a, b, a_descale, *_ = operands.arguments
    assert a.unique().numel() == b.unique().numel() == 256
    assert a_descale.unique().tolist() == list(range(0x30, 0x48))
    again = random_operands(Case(Shape(256, 512), "bfloat16", 128), CPU)
    assert torch.equal(a, again.arguments[0])
    assert not torch.equal(a[:, :64], b.t()[:128, :64])


# Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line() -> None:
    stream = Terminal()
    times = iter([0.0, 10.0, 20.0, 90.0])
    progress = Progress(3, stream, lambda: next(times))
    progress.step("a long text")
    progress.step("short")
    progress.step("end")
    progress.close()
    progress.close()
    assert stream.getvalue().split("\r")[1:] == [
        "[1/3] a long text  about 0:20 left",
        "[2/3] short  about 0:10 left      ",
        "[3/3] end  about 0:00 left  \n",
    ]


def test_progress_elsewhere_is_a_line_a_step() -> None:
    stream = StringIO()
    times = iter([0.0, 10.0, 20.0])
    progress = Progress(2, stream, lambda: next(times))
    progress.step("one")
    progress.step("two")
    progress.close()
    assert stream.getvalue() == "[1/2] one  about 0:10 left\n[2/2] two  about 0:00 left\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (7384, "2:03:04")]
)
def test_durations(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text
