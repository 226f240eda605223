"""CUDA graphs: capture and replay, and what a replay takes beside the kernels' own time."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.results import Measurement, summarize

CALLS = 100
REPLAYS = 21


def chain(count: int, function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function of `count` calls."""
    return lambda: [function() for _ in range(count)]


def replayed(function: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a function into a CUDA graph; what is returned replays it."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()

    def replay() -> Any:
        graph.replay()
        return results

    return replay


def with_own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Copy a function, code object included.

    Dynamo keeps what it compiles by code object, and looks through all of it on a call: two
    contenders must not share one.
    """
    code = function.__code__.replace(co_name=name)
    return types.FunctionType(code, function.__globals__, name, None, function.__closure__)


def replay_times(
    group: str, contender: str, family: str, function: Callable[[], Any]
) -> Measurement:
    """GPU time of one call within a captured graph of many, gaps between kernels included."""
    replay = replayed(chain(CALLS, function))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS + 1)]
    for start, end in events:
        start.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    samples = [start.elapsed_time(end) * 1000 / CALLS for start, end in events[1:]]
    return summarize(group, contender, family, "µs", samples)


def own_times(
    group: str, contender: str, family: str, function: Callable[[], Any]
) -> tuple[Measurement, dict[str, Any]]:
    """GPU time of the kernels of one call by themselves, and which they are.

    Each call is waited for, so that no kernel runs beside another.
    """
    function()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(CALLS):
            function()
            torch.cuda.synchronize()
    kernels = [
        event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    if not kernels or len(kernels) % CALLS:
        raise RuntimeError(
            f"{group}: the profiler saw {len(kernels)} kernels in {CALLS} calls: "
            f"{Counter(event.name[:60] for event in kernels)}"
        )
    count = len(kernels) // CALLS
    kernels.sort(key=lambda event: event.time_range.start)
    samples = [
        sum(event.time_range.elapsed_us() for event in kernels[at : at + count])
        for at in range(0, len(kernels), count)
    ]
    found = {
        "group": group,
        "family": family,
        "kernels_per_call": count,
        "names": sorted({event.name.split("<")[0].split("(")[0][-60:] for event in kernels}),
    }
    return summarize(group, contender, family, "µs", samples), found
