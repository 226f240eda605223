"""Why compilers fail, by what they say, by their exit code, and by what the kernel counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.compile.failure import Failure, classify, memory_kills, relevant

NVCC_KILLED = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
GXX_KILLED = "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
NVCC_CRASHED = "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)\n"
GXX_CRASHED = "g++: internal compiler error: Segmentation fault signal terminated program cc1plus\n"


@pytest.mark.parametrize(
    ("code", "output", "kind"),
    [
        (1, 'a.cu(5): error: identifier "x" is undefined\n', "error"),
        (1, "", "error"),
        (2, "cc1plus: out of memory allocating 65536 bytes after a total of 8 bytes\n", "memory"),
        (1, "virtual memory exhausted: Cannot allocate memory\n", "memory"),
        (1, "terminate called after throwing an instance of 'std::bad_alloc'\n", "memory"),
        (1, "LLVM ERROR: out of memory\n", "memory"),
        (-9, "", "killed"),
        (137, "", "killed"),
        # What ends programs before the kernel does, with a milder signal.
        (-15, "", "killed"),
        (143, "", "killed"),
        (255, NVCC_KILLED, "killed"),
        (255, "nvcc error   : 'cicc' died due to signal 15 (Termination signal)\n", "killed"),
        (1, GXX_KILLED, "killed"),
        (1, "g++: fatal error: Terminated signal terminated program cc1plus\n", "killed"),
        (1, "Killed\n", "killed"),
        # A crash is an error of the compiler: more memory does not help.
        (-11, "", "error"),
        (139, "", "error"),
        (-6, "", "error"),
        (255, NVCC_CRASHED, "error"),
        (1, GXX_CRASHED, "error"),
        (255, "nvcc error   : 'cicc' died due to signal 6 (Abort signal)\n", "error"),
        (1, "a.cpp:3: error: 'SIGNAL_90' was not declared: skilled\n", "error"),
        (1, "fatal error: error writing to /tmp/x.s: No space left on device\n", "disk"),
        (1, "ptxas fatal   : Disk quota exceeded\n", "disk"),
        # The disk comes first: what failed to write is often killed after.
        (-9, "No space left on device\n", "disk"),
    ],
)
def test_kinds(code: int, output: str, kind: str) -> None:
    assert classify(code, output, killed_for_memory=False).kind == kind


@pytest.mark.parametrize(
    ("code", "output", "kind"),
    [
        (-9, "", "memory"),
        (255, NVCC_KILLED, "memory"),
        (1, GXX_KILLED, "memory"),
        # The kernel has killed something else meanwhile.
        (1, "a.cu(5): error\n", "error"),
        (255, NVCC_CRASHED, "error"),
        (1, "No space left on device\n", "disk"),
    ],
)
def test_the_kernels_count_makes_a_kill_a_lack_of_memory(code: int, output: str, kind: str) -> None:
    assert classify(code, output, killed_for_memory=True).kind == kind


def test_only_what_may_succeed_alone_is_retried() -> None:
    retried = {kind: Failure(kind, "").may_be_retried for kind in ("memory", "killed")}  # type: ignore[arg-type]
    assert retried == {"memory": True, "killed": True}
    assert not Failure("error", "").may_be_retried
    assert not Failure("disk", "").may_be_retried


def test_each_kind_has_its_own_words() -> None:
    kinds = ("error", "memory", "killed", "disk")
    reasons = {Failure(kind, "").reason for kind in kinds}  # type: ignore[arg-type]
    assert len(reasons) == len(kinds)
    assert "out of memory" in reasons


# What is shown

WARNINGS = [f"a.h({number}): warning: unused" for number in range(300)]


def test_a_short_output_is_shown_whole() -> None:
    assert relevant("a warning\nan error\nmore\n") == "a warning\nan error\nmore"
    assert relevant("") == ""


@pytest.mark.parametrize(
    "reason",
    [
        "a.cu(5): error: no such thing",
        "virtual memory exhausted: Cannot allocate memory",
        "what():  std::bad_alloc",
        "sh: write failed: No space left on device",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "Killed",
    ],
)
def test_the_reason_is_shown_however_many_warnings_there_are(reason: str) -> None:
    assert relevant("\n".join([*WARNINGS, reason, *WARNINGS])) == reason
    assert classify(1, "\n".join([*WARNINGS, reason]), killed_for_memory=False).text == reason


def test_without_a_reason_the_end_is_shown() -> None:
    assert relevant("\n".join(WARNINGS)).splitlines() == WARNINGS[-40:]


def test_what_is_shown_stays_short() -> None:
    errors = [f"a.cu({number}): error: no" for number in range(300)]
    assert relevant("\n".join(errors)).splitlines() == errors[:40]


# The kernel's count


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_kills_of_the_machine_and_of_the_control_group_count(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == 0
    write(tmp_path, "proc/vmstat", "nr_free_pages 12\noom_kill 3\noom_kill_other 9\n")
    assert memory_kills(tmp_path) == 3
    write(tmp_path, "sys/fs/cgroup/memory.events", "low 0\noom 7\noom_kill 4\n")
    assert memory_kills(tmp_path) == 7
    write(tmp_path, "proc/vmstat", "nothing of it\n")
    assert memory_kills(tmp_path) == 4


def test_this_kernel_counts() -> None:
    assert "oom_kill" in Path("/proc/vmstat").read_text()
    assert memory_kills() >= 0
