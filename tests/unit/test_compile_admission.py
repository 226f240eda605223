"""Admission: what is compiled at once fits into memory, and everything gets its turn."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable

import pytest
from compile_jobs import limits, make_job
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.compile import admission
from aot.compile.admission import (
    RESERVE_MEGABYTES,
    Limits,
    check_fits,
    choose,
    in_order,
    make_limits,
    seconds_together,
)
from aot.compile.job import Job
from aot.errors import BuildError

WORKERS = st.integers(1, 8)


def jobs_of(costs: list[tuple[int, int]]) -> list[Job]:
    return [
        make_job(f"m/{number}", megabytes=megabytes, seconds=float(seconds))
        for number, (megabytes, seconds) in enumerate(costs)
    ]


COSTS = st.tuples(st.integers(1, 9000), st.integers(1, 600))
JOBS = st.lists(COSTS, min_size=1, max_size=20).map(jobs_of)


def play(
    jobs: list[Job], within: Limits, look: Callable[[list[Job], list[Job]], None]
) -> tuple[list[Job], float]:
    """Compile by the clock; `look` is shown what runs and what waits whenever something started.

    Returns the jobs in the order in which they were started, and how long it took.
    """
    waiting = list(in_order(jobs))
    running: list[tuple[float, int, Job]] = []
    started: list[Job] = []
    now = 0.0
    while waiting or running:
        while (job := choose(waiting, [one for *_, one in running], within)) is not None:
            waiting.remove(job)
            heapq.heappush(running, (now + job.seconds, len(started), job))
            started.append(job)
            look([one for *_, one in running], waiting)
        assert running, "nothing runs, and nothing of what waits is started"
        now = heapq.heappop(running)[0]
    return started, now


# Memory is chosen around what some of them take together: elsewhere there is nothing to decide.
@settings(max_examples=300)
@given(JOBS, WORKERS, st.integers(0, 20_000))
def test_what_runs_together_stays_within_memory_and_workers(
    jobs: list[Job], workers: int, extra: int
) -> None:
    within = limits(workers, max(one.megabytes for one in jobs) + extra)

    def look(running: list[Job], waiting: list[Job]) -> None:
        assert len(running) <= workers
        assert sum(one.megabytes for one in running) <= within.megabytes - RESERVE_MEGABYTES

    started, _ = play(jobs, within, look)
    # Whatever fits alone is compiled, and once.
    assert sorted(one.name for one in started) == sorted(one.name for one in jobs)


@given(JOBS, WORKERS, st.integers(0, 20_000))
def test_no_worker_is_idle_while_something_fits(jobs: list[Job], workers: int, extra: int) -> None:
    within = limits(workers, max(one.megabytes for one in jobs) + extra)
    waiting = list(in_order(jobs))
    running: list[Job] = []
    while (job := choose(waiting, running, within)) is not None:
        left = within.budget - sum(one.megabytes for one in running)
        # The longest of those that fit.
        assert job.seconds == max(one.seconds for one in waiting if one.megabytes <= left)
        waiting.remove(job)
        running.append(job)
    left = within.budget - sum(one.megabytes for one in running)
    assert len(running) == workers or all(one.megabytes > left for one in waiting)


@given(JOBS, WORKERS)
def test_ample_memory_uses_every_worker(jobs: list[Job], workers: int) -> None:
    most: list[int] = []
    play(jobs, limits(workers, 9000 * workers), lambda running, _: most.append(len(running)))
    assert max(most) == min(workers, len(jobs))


def test_the_longest_comes_first_then_the_largest_then_by_name() -> None:
    jobs = [
        make_job("m/b", seconds=1, megabytes=5),
        make_job("m/a", seconds=1, megabytes=5),
        make_job("m/large", seconds=1, megabytes=6),
        make_job("m/long", seconds=2, megabytes=1),
    ]
    names = ["m/long", "m/large", "m/a", "m/b"]
    assert [one.name for one in in_order(jobs)] == names
    assert [one.name for one in in_order(reversed(jobs))] == names


def test_a_small_one_goes_ahead_of_a_large_one_that_does_not_fit() -> None:
    long, large, small = (
        make_job("m/long", seconds=9, megabytes=600),
        make_job("m/large", seconds=8, megabytes=500),
        make_job("m/small", seconds=1, megabytes=400),
    )
    assert choose([large, small], [long], limits(2, 1000)) == small
    assert choose([large], [long], limits(2, 1000)) is None
    assert choose([large], [], limits(2, 1000)) == large
    assert choose([small], [long], limits(1, 1000)) is None
    assert choose([], [], limits()) is None


# What does not fit


@given(JOBS, WORKERS, st.integers(-9000, 9000))
def test_only_what_does_not_fit_even_alone_is_refused(
    jobs: list[Job], workers: int, extra: int
) -> None:
    largest = max(jobs, key=lambda one: one.megabytes)
    within = limits(workers, largest.megabytes + extra)
    if extra >= 0:
        check_fits(jobs, within)
        return
    with pytest.raises(BuildError, match="raise --memory-limit"):
        check_fits(jobs, within)


def test_what_does_not_fit_is_named_with_both_figures() -> None:
    jobs = [make_job("m/a", megabytes=100), make_job("gemm_sm120/gen", megabytes=6400)]
    with pytest.raises(BuildError) as caught:
        check_fits(jobs, Limits(2, RESERVE_MEGABYTES + 6399))
    message = str(caught.value)
    assert "gemm_sm120/gen needs about 6400 MB" in message
    assert f"the limit is {RESERVE_MEGABYTES + 6399} MB" in message
    assert f"{RESERVE_MEGABYTES} MB stay free" in message
    check_fits([], Limits(1, 0))


# How long it takes


@settings(max_examples=300)
@given(JOBS, WORKERS, st.integers(0, 20_000))
def test_the_estimate_is_what_playing_it_through_takes(
    jobs: list[Job], workers: int, extra: int
) -> None:
    within = limits(workers, max(one.megabytes for one in jobs) + extra)
    estimate = seconds_together(jobs, within)
    total = sum(one.seconds for one in jobs)
    assert max(one.seconds for one in jobs) <= estimate <= total
    assert estimate >= total / workers or math.isclose(estimate, total / workers)
    assert math.isclose(estimate, play(jobs, within, lambda *_: None)[1])
    assert seconds_together(jobs[::-1], within) == estimate


@given(JOBS)
def test_one_worker_takes_the_sum(jobs: list[Job]) -> None:
    assert seconds_together(jobs, limits(1, 9000)) == sum(one.seconds for one in jobs)


def test_what_does_not_fit_counts_as_compiled_alone() -> None:
    jobs = [
        make_job("m/large", megabytes=9000, seconds=10),
        make_job("m/a", megabytes=100, seconds=4),
        make_job("m/b", megabytes=100, seconds=4),
    ]
    # `check_fits` refuses it before; the plan is shown nevertheless.
    assert seconds_together(jobs, limits(2, 1000)) == 14


def test_nothing_to_do_takes_no_time() -> None:
    assert seconds_together([], limits()) == 0


# Limits


def test_limits_are_those_that_a_person_gave() -> None:
    assert make_limits(8000, 3) == Limits(3, 8000)
    assert Limits(3, 8000).budget == 8000 - RESERVE_MEGABYTES


def test_without_any_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    monkeypatch.setattr(admission.memory, "available_megabytes", lambda: 4321)
    assert make_limits() == Limits(3, 4321)
    assert make_limits(8000) == Limits(3, 8000)
    assert make_limits(workers=1) == Limits(1, 4321)
