"""Times calls on a CUDA device with events, each with a cold L2 cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Longer than the CPU takes to enqueue a round: the device never waits for it.
_HEAD_START_CYCLES = 2_000_000


class CudaTimer:
    """A `measure.Timer` for one device.

    Before each run a buffer of twice the L2 cache's size is overwritten: between two layers of a
    model the weights of all others have passed through the cache. The device sleeps first, so that
    events, overwriting and runs are all enqueued before it starts: a device that waits for the
    CPU between two events would measure the CPU.

    Parameters
    ----------
    device
        The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(2 * max(cache, 2**24), dtype=torch.int8, device=device)

    def __call__(self, run: Callable[[], object], repetitions: int) -> list[float]:
        """Run and return the microseconds of each."""
        with torch.cuda.device(self._device):
            events = [(_event(), _event()) for _ in range(repetitions)]
            run()
            torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
            for start, end in events:
                self._flush.zero_()
                start.record()
                run()
                end.record()
            torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) * 1000 for start, end in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
