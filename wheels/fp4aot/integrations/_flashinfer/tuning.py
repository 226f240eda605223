"""While FlashInfer tunes, calls are its own; afterwards the operators choose what it would choose.

`flashinfer.autotune`, `autotune_v2` and the methods of FlashInfer's `AutoTuner` that change what it
knows are replaced by functions that do the same and then give the operators their table anew. While
a context tunes, calls of the functions that FlashInfer tunes reach FlashInfer, which profiles the
wheel's kernels (`tunable_modules`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fp4aot._tactics import active
from fp4aot._tactics.table import Table
from fp4aot.integrations._flashinfer import tuned_table
from fp4aot.integrations._flashinfer.call import Function

_LOGGER = logging.getLogger("fp4aot.integrations.flashinfer")


@dataclass
class _State:
    """Of this process.

    Attributes
    ----------
    open
        How many contexts are tuning: calls are FlashInfer's while there is one.
    largest
        The largest `tune_max_num_tokens` of a mixture's calls while FlashInfer tuned, or 0.
    mixtures
        What FlashInfer's runner of those calls would add to the keys of its caches, by their
        weights (`tuned_table.weights_of`): before 0.6.18 it adds nothing.
    other_backends
        N and K of the weights for which FlashInfer has found tactics of another backend's kernels:
        with ``backend="auto"`` it has to choose.
    """

    open: int = 0
    largest: int = 0
    mixtures: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    other_backends: frozenset[tuple[int, int]] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)


state = _State()


def is_open(tensor: torch.Tensor) -> bool:
    """Tell whether a call on a tensor must be FlashInfer's, because it tunes.

    Not a call that a compiler traces: FlashInfer cannot be traced, and what is compiled stays. Nor
    one on the CPU, which FlashInfer cannot run.
    """
    return state.open > 0 and tensor.is_cuda and not torch.compiler.is_compiling()


def context(original: Function, refresh: Callable[[], None]) -> Function:
    """Make the replacement of `autotune` or `autotune_v2`.

    Parameters
    ----------
    original
        FlashInfer's context manager.
    refresh
        Gives the operators what FlashInfer knows now.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    @contextlib.contextmanager
    def replacement(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        bound = signature.bind(*arguments, **keywords)
        # `autotune_v2` also reports what a call finds, so it has to see them all.
        tunes = bool(bound.arguments.get("tune_mode", True))
        try:
            with original(*arguments, **keywords) as value, _counted(tunes):
                if not tunes:
                    # The context has buckets of its own, and perhaps a cache.
                    refresh()
                yield value
        finally:
            refresh()

    return replacement


def afterwards(original: Function, refresh: Callable[[], None]) -> Function:
    """Make the replacement of a function or method that changes what FlashInfer knows."""

    @functools.wraps(original)
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        refresh()
        return result

    return replacement


def refresh() -> None:
    """Give the operators what FlashInfer's autotuner would choose now. Never raises."""
    if state.open:
        # It is not over.
        return
    try:
        # Until somebody asks for it there is none, and nothing to take over.
        tuner = sys.modules["flashinfer.autotuner"].AutoTuner._instance
        if tuner is None:
            return
        with state.lock:
            line = tuned_table.apply(tuner, state)
        if line:
            _LOGGER.info("fp4aot: %s", line)
    except Exception:
        _LOGGER.exception(
            "fp4aot: what FlashInfer's autotuner found could not be taken over; the operators keep "
            "the tactics that they had"
        )


def forget() -> None:
    """Take the autotuner's choices from the operators, which keep what the user loaded."""
    active.set_tuned(Table(), active.set_operators_tables)
    state.largest, state.other_backends = 0, frozenset()
    state.mixtures.clear()


@contextlib.contextmanager
def _counted(tunes: bool) -> Iterator[None]:
    if not tunes:
        yield
        return
    with state.lock:
        state.open += 1
    try:
        yield
    finally:
        with state.lock:
            state.open -= 1
