"""The job pools: however units are scheduled, what runs at once fits into memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import memory
from aot.errors import BuildError
from aot.memory import Schedule, available_megabytes, make_schedule
from aot.plan import Unit

RESERVE = memory._RESERVE_MEGABYTES


def unit(megabytes: int, name: str = "unit") -> Unit:
    return Unit(name, "@FLASHINFER@/a.cu", "cuda", (), "0" * 64, megabytes, 10)


def depths(schedule: Schedule) -> dict[str, int]:
    return {"small_units": schedule.small_jobs, "large_units": schedule.large_jobs}


def worst_case(units: list[Unit], schedule: Schedule) -> int:
    """Memory when both pools are full, each with units as large as its largest."""
    total = 0
    for pool, depth in depths(schedule).items():
        sizes = [one.memory_megabytes for one in units if schedule.pool(one) == pool]
        total += depth * max(sizes, default=0)
    return total


SIZES = st.lists(st.integers(1, 8000), min_size=1, max_size=12)


# Limits around what some units together take: elsewhere there is nothing to decide.
@settings(max_examples=500)
@given(SIZES, st.integers(-300, 20_000), st.integers(1, 8))
def test_full_pools_fit_into_memory(sizes: list[int], extra: int, cores: int) -> None:
    units = [unit(size) for size in sizes]
    limit = RESERVE + max(sizes) + extra
    if extra < 0:
        with pytest.raises(BuildError, match="raise --memory-limit"):
            make_schedule(units, limit, cores)
        return
    schedule = make_schedule(units, limit, cores)
    assert worst_case(units, schedule) <= limit - RESERVE
    assert schedule.jobs <= cores
    for one in units:
        assert depths(schedule)[schedule.pool(one)] >= 1


@given(SIZES, st.integers(1, 64))
def test_ample_memory_uses_every_core(sizes: list[int], cores: int) -> None:
    schedule = make_schedule([unit(size) for size in sizes], RESERVE + 8000 * cores, cores)
    assert schedule.jobs == cores
    assert schedule.pool(unit(max(sizes))) == "small_units"


def test_large_and_small_units_share_the_memory() -> None:
    units = [unit(6400), unit(700)]
    schedule = make_schedule(units, RESERVE + 15_000, cores=8)
    assert schedule.pool(units[0]) == "large_units"
    assert schedule.pool(units[1]) == "small_units"
    # One large one and seven small ones fill 11,300 MB; a second large one would take 17,000.
    assert depths(schedule) == {"small_units": 7, "large_units": 1}


def test_a_unit_that_fills_the_memory_is_compiled_alone() -> None:
    units = [unit(6400), unit(700)]
    schedule = make_schedule(units, RESERVE + 6400, cores=8)
    assert [schedule.pool(one) for one in units] == ["large_units", "large_units"]
    assert schedule.large_jobs == 1


def test_a_unit_that_does_not_fit_is_named_with_both_figures() -> None:
    with pytest.raises(BuildError) as caught:
        make_schedule([unit(100), unit(6400, "gemm_sm120")], RESERVE + 6399, cores=2)
    message = str(caught.value)
    assert "gemm_sm120 needs about 6400 MB" in message
    assert f"the limit is {RESERVE + 6399} MB" in message


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert make_schedule([unit(100)], 100_000).jobs == 3


# Free memory


class System:
    """The two files that tell how much memory there is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:    8388608 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, limit: str, used: str = "", statistics: str = "inactive_file 0\n") -> None:
        self.write("sys/fs/cgroup/memory.max", limit + "\n")
        self.write("sys/fs/cgroup/memory.current", used + "\n")
        self.write("sys/fs/cgroup/memory.stat", statistics)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(memory, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    return System(tmp_path)


def test_without_a_control_group_the_machine_counts(system: System) -> None:
    assert available_megabytes() == 8192


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        ("max", "", 8192),
        (str(4096 * 2**20), str(1024 * 2**20), 3072),
        (str(64 * 2**30), "0", 8192),
        (str(1024 * 2**20), str(2048 * 2**20), 0),
        ("garbage", "0", 8192),
    ],
)
def test_a_control_group_lowers_the_figure(
    system: System, limit: str, used: str, expected: int
) -> None:
    system.group(limit, used)
    assert available_megabytes() == expected


def test_an_unreadable_machine_gets_a_modest_figure(system: System) -> None:
    system.write("proc/meminfo", "")
    assert available_megabytes() == 4096


def test_the_page_cache_of_a_control_group_is_free(system: System) -> None:
    # A container that has unpacked a toolkit: 3.5 of 4 GB are files that the kernel drops on need.
    system.group(
        str(4096 * 2**20), str(4000 * 2**20), f"anon {500 * 2**20}\ninactive_file {3500 * 2**20}\n"
    )
    assert available_megabytes() == 4096 - 500


def test_this_machine_has_memory() -> None:
    assert available_megabytes() > 0
