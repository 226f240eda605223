"""Host time per call, with all contenders taking turns.

A drift of the machine (clocks, neighbours) then meets all of them alike, so that their ratios hold
even where the times do not.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.results import Failure, Measurement, summarize


@dataclass(frozen=True)
class Contender:
    """One way to do a group's work.

    Parameters
    ----------
    name, family
        As in `Measurement`.
    make
        Prepares it, and returns the function whose calls are timed. That function returns what it
        has computed: a tensor, or any nesting of tensors.
    calls
        How many calls of the operator one call of that function makes.
    checked
        Whether its results must equal the group's; False where the work is another.
    may_fail
        Whether it is known not to run everywhere: a failure is then recorded, not raised.
    results
        How many times it returns what the group must return; by default once for each call.
    """

    name: str
    family: str
    make: Callable[[], Callable[[], Any]]
    calls: int = 1
    checked: bool = True
    may_fail: bool = False
    results: int | None = None


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Parameters
    ----------
    rounds
        Samples of each contender.
    batch
        Calls of the operator in a sample: few enough that the device's queue never fills.
    warm_up
        Calls before.
    """

    rounds: int = 200
    batch: int = 50
    warm_up: int = 30


def tensors(result: Any) -> list[torch.Tensor]:
    """Flatten what a contender returned."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result or () for tensor in tensors(part)]


def check_equal(name: str, result: Any, expected: Iterable[torch.Tensor], calls: int) -> None:
    """Compare what a contender returned with what it should, byte for byte.

    Raises
    ------
    AssertionError
        Naming the contender and how many bytes differ.
    """
    got = tensors(result)
    wanted = list(expected) * calls
    if len(got) != len(wanted):
        raise AssertionError(f"{name} returned {len(got)} tensors, expected {len(wanted)}")
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
        if left.shape != right.shape:
            raise AssertionError(
                f"{name}: result {index} has {left.numel()} bytes, expected {right.numel()}"
            )
        if differing := int((left != right).sum()):
            raise AssertionError(
                f"{name}: result {index} differs in {differing} of {left.numel()} bytes"
            )


def measure_group(
    group: str,
    contenders: Iterable[Contender],
    expected: Iterable[torch.Tensor],
    settings: Settings,
    synchronize: Callable[[], None],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[list[Measurement], list[Failure]]:
    """Check all contenders, then time them in turns.

    Parameters
    ----------
    group
        Its name.
    contenders
        What is compared.
    expected
        What a call must return.
    settings
        How much is measured.
    synchronize
        Waits for the device; called between the batches, outside of the timing.
    clock
        Nanoseconds.

    Raises
    ------
    AssertionError
        When a contender's results differ: wrong results have no speed.
    """
    expected = list(expected)
    functions: dict[Contender, Callable[[], Any]] = {}
    failures = []
    for contender in contenders:
        try:
            function = contender.make()
            for _ in range(settings.warm_up):
                result = function()
            synchronize()
        except Exception as error:
            if not contender.may_fail:
                raise
            reason = str(error).strip().partition("\n")[0]
            failures.append(Failure(group, contender.name, f"{type(error).__name__}: {reason}"))
            continue
        if contender.checked:
            repeats = contender.calls if contender.results is None else contender.results
            check_equal(contender.name, result, expected, repeats)
        functions[contender] = function
    samples: dict[Contender, list[float]] = {contender: [] for contender in functions}
    order = list(functions.items())
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for _ in range(settings.rounds):
            shuffle(order)
            for contender, function in order:
                count = max(settings.batch // contender.calls, 1)
                nanoseconds = _batch(function, count, synchronize, clock)
                samples[contender].append(nanoseconds / 1000 / (count * contender.calls))
    finally:
        gc.enable()
    measurements = [
        summarize(group, contender.name, contender.family, "µs", values)
        for contender, values in samples.items()
    ]
    return measurements, failures


def _batch(
    function: Callable[[], Any],
    count: int,
    synchronize: Callable[[], None],
    clock: Callable[[], int],
) -> int:
    synchronize()
    start = clock()
    for _ in range(count):
        function()
    return clock() - start
