"""Calls on streams, in threads and in graphs of their own, against calls one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gpusuite.compare import as_tuple
from gpusuite.memory import raw
from gpusuite.records import Details

LONG = 200_000_000
"""Cycles, some 0.1 s."""


def _equal(left: Any, right: Any) -> bool:
    pairs = zip(as_tuple(left), as_tuple(right), strict=True)
    return all(torch.equal(raw(a), raw(b)) for a, b in pairs)


def after_running_work(
    copies: Iterable[tuple[torch.Tensor, torch.Tensor]], call: Callable[[], Any]
) -> Any:
    """Call on a side stream that still works when the call has returned.

    Parameters
    ----------
    copies
        Targets and pinned sources. They are copied on the stream before the call: it gives what the
        targets held before where it is not launched on the stream.
    call
        What must neither wait for the device nor synchronize.
    """
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            result = call()
            running = not stream.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert running, "the call waited for the device"
    stream.synchronize()
    return result


def check_threads(details: Details, calls: Mapping[str, Callable[[], Any]], runs: int) -> None:
    """Repeat each call in a thread and on a stream of its own; its bytes stay the same."""
    expected = {name: call() for name, call in calls.items()}
    torch.cuda.synchronize()
    wrong = []
    start = threading.Barrier(len(calls))

    def run(name: str) -> None:
        try:
            start.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(runs):
                    if not _equal(calls[name](), expected[name]):
                        wrong.append(name)
        except Exception as error:
            wrong.append(f"{name}: {error!r}")

    threads = [threading.Thread(target=run, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    details.compared("results of a thread, of one thread", runs * len(calls), len(wrong))
    assert not wrong, wrong[:5]


def check_one_graph(
    details: Details,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Capture a call for each of the stacked inputs in one graph, and replay it on other inputs."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(len(inputs)):
            outputs[index].copy_(call(inputs[index]))
    inputs.copy_(inputs.flip(0))
    outputs.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    wrong = 0
    for index in range(len(inputs)):
        expected = call(inputs[index])
        torch.cuda.synchronize()
        wrong += not torch.equal(outputs[index], expected)
    details.compared("results of a replay, eager", len(inputs), wrong)
    assert wrong == 0, f"{wrong} of {len(inputs)} runs differ"
