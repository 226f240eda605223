"""How the benchmark times: in turns, with the device waited for, and only what is right."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
import torch
from benchmarks import graphs, startup
from benchmarks.timing import Contender, Settings, check_equal, measure_group, tensors

SETTINGS = Settings(rounds=12, batch=5, warm_up=2)
EXPECTED = [torch.arange(6, dtype=torch.uint8), torch.arange(3.0)]


class Machine:
    """A clock that each contender advances by what its calls cost, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def contender(self, name: str, cost: int, **keywords) -> Contender:
        def call():
            self.now += cost
            self.log.append(name)
            return list(EXPECTED) * keywords.get("calls", 1)

        return Contender(name, "fp4aot", lambda: call, **keywords)

    def synchronize(self) -> None:
        self.now += 10**9  # would ruin every number if it were timed
        self.log.append("sync")

    def measure(self, *contenders: Contender):
        return measure_group(
            "g", contenders, EXPECTED, SETTINGS, self.synchronize, lambda: self.now
        )


def test_host_time_is_that_of_one_call():
    machine = Machine()
    measured, failures = machine.measure(
        machine.contender("fast", 2000), machine.contender("slow", 30000)
    )
    assert [(one.contender, one.median) for one in measured] == [("fast", 2.0), ("slow", 30.0)]
    assert all(one.samples == SETTINGS.rounds for one in measured)
    assert failures == []


def test_a_function_of_many_calls_is_divided_by_them():
    machine = Machine()
    ((one,), _) = machine.measure(machine.contender("chain", 32000, calls=16))
    assert one.median == 2.0


def test_contenders_take_turns_and_the_device_is_waited_for_between():
    machine = Machine()
    machine.measure(*(machine.contender(name, 1000) for name in "abc"))
    timed = "".join(machine.log[len(machine.log) - SETTINGS.rounds * 3 * (SETTINGS.batch + 1) :])
    turns = timed.split("sync")[1:]
    assert {len(turn) for turn in turns} == {SETTINGS.batch}
    rounds = [tuple(turn[0] for turn in turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert {tuple(sorted(one)) for one in rounds} == {("a", "b", "c")}
    assert any(left != right for left, right in pairwise(rounds)), "the order never changes"


def test_wrong_results_have_no_speed():
    machine = Machine()
    wrong = Contender("wrong", "flashinfer", lambda: lambda: [EXPECTED[0] + 1, EXPECTED[1]])
    with pytest.raises(AssertionError, match=r"wrong: result 0 differs in 6 of 6 bytes"):
        machine.measure(machine.contender("right", 1000), wrong)


def test_another_work_is_not_compared():
    ((one,), _) = Machine().measure(
        Contender("scale", "torch", lambda: lambda: None, checked=False)
    )
    assert one.contender == "scale"


def test_what_may_fail_is_recorded_and_what_must_not_raises():
    def fail():
        raise RuntimeError("_thread.allocate_lock")

    machine = Machine()
    measured, failures = machine.measure(
        machine.contender("right", 1000), Contender("c", "flashinfer", fail, may_fail=True)
    )
    assert len(measured) == 1
    assert [(one.contender, one.reason) for one in failures] == [
        ("c", "RuntimeError: _thread.allocate_lock")
    ]
    with pytest.raises(RuntimeError, match="allocate_lock"):
        machine.measure(Contender("c", "flashinfer", fail))


def test_the_collector_is_off_while_timing_and_on_after():
    seen = []
    contender = Contender("c", "torch", lambda: lambda: seen.append(gc.isenabled()), checked=False)
    Machine().measure(contender)
    assert seen[-1] is False
    assert gc.isenabled()


def test_equality_is_of_bytes():
    nan = torch.tensor([float("nan"), -0.0])
    check_equal("same", nan.clone(), [nan], 1)
    with pytest.raises(AssertionError, match="differs in 1 of 8 bytes"):
        check_equal("zero", torch.tensor([float("nan"), 0.0]), [nan], 1)
    with pytest.raises(AssertionError, match="returned 1 tensors, expected 2"):
        check_equal("few", nan, [nan], 2)
    with pytest.raises(AssertionError, match="has 4 bytes, expected 8"):
        check_equal("short", nan[:1], [nan], 1)
    # FlashInfer's scales are flat where ours are a matrix.
    check_equal("flat", EXPECTED[0], [EXPECTED[0].reshape(2, 3)], 1)


def test_results_may_be_nested():
    a, b = EXPECTED
    assert [id(t) for t in tensors([(a, b), [a]])] == [id(a), id(b), id(a)]
    assert tensors(None) == []


def test_copies_for_dynamo_share_no_code():
    offset = 5

    def function(x):
        return x + offset

    left, right = (graphs.with_own_code(function, name) for name in ("left", "right"))
    assert left(1) == right(1) == 6
    assert left.__code__ != right.__code__


def test_startup_takes_turns_and_drops_the_first_of_each():
    calls = []

    def run(package, bundle):
        calls.append(package)
        first = calls.count(package) == 1
        cost = {"fp4aot": 20.0, "flashinfer": 4000.0}[package]
        return {startup.names.IMPORT: 1e6 if first else cost, startup.names.FIRST_CALL: cost / 2}

    measured = startup.measure(startup.PACKAGES, None, 7, run)
    assert calls == ["fp4aot", "flashinfer"] * 8
    assert [(m.group, m.contender, m.median, m.unit, m.samples) for m in measured] == [
        (startup.names.IMPORT, "import fp4aot", 20.0, "ms", 7),
        (startup.names.IMPORT, "import flashinfer", 4000.0, "ms", 7),
        (startup.names.FIRST_CALL, "fp4aot", 10.0, "ms", 7),
        (startup.names.FIRST_CALL, "flashinfer", 2000.0, "ms", 7),
    ]


def test_a_sample_that_fails_says_why():
    with pytest.raises(RuntimeError, match="invalid choice: 'nothing'"):
        startup.run_sample("nothing", None)
