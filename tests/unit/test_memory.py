"""How much memory is free: the machine's, or its control group's."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import memory
from aot.memory import available_megabytes


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
