"""Why a compiler failed: its own error, a lack of memory, a full disk, or a signal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Kind = Literal["error", "memory", "killed", "disk"]

_SHOWN_LINES: Final = 40
_MEMORY: Final = re.compile(
    r"out of memory|cannot allocate memory|virtual memory exhausted|std::bad_alloc"
    r"|memory exhausted",
    re.IGNORECASE,
)
# Nvcc: "'cicc' died due to signal 9 (Kill signal)"; g++: "Killed signal terminated program …".
# A compiler that crashes names another signal: that is an error of its own, and no lack of memory.
_KILLED: Final = re.compile(
    r"\bkilled\b|\bsignal[: ]+(?:9|15)\b|\bSIG(?:KILL|TERM)\b|\bterminated signal\b",
    re.IGNORECASE,
)
_KILLING_CODES: Final = frozenset({-9, -15, 128 + 9, 128 + 15})
_DISK: Final = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_ERROR: Final = re.compile(r"\berror\b|\bsignal\b", re.IGNORECASE)
_REASONS: Final = (_ERROR, _KILLED, _MEMORY, _DISK)


@dataclass(frozen=True)
class Failure:
    """One attempt that failed.

    Parameters
    ----------
    kind
        ``"memory"``: it, or the system, ran out of memory. ``"killed"``: something ended it, and
        the kernel counts no lack of memory. ``"disk"``: no space is left. Else ``"error"``.
    text
        What the compiler said of it.
    """

    kind: Kind
    text: str

    @property
    def may_be_retried(self) -> bool:
        """Whether it may succeed when nothing runs beside it."""
        return self.kind in {"memory", "killed"}

    @property
    def reason(self) -> str:
        """In words, for a person."""
        return {
            "error": "the compiler reported an error",
            "memory": "out of memory",
            "killed": "the compiler was killed",
            "disk": "no space is left on the disk",
        }[self.kind]


def classify(exit_code: int, output: str, *, killed_for_memory: bool) -> Failure:
    """Say why a compiler failed.

    Parameters
    ----------
    exit_code
        Of the process; negative for a signal.
    output
        What it printed.
    killed_for_memory
        Whether the kernel has killed processes for lack of memory while it ran.
    """
    text = relevant(output)
    if _DISK.search(output):
        return Failure("disk", text)
    killed = exit_code in _KILLING_CODES or bool(_KILLED.search(output))
    if _MEMORY.search(output) or (killed and killed_for_memory):
        return Failure("memory", text)
    return Failure("killed" if killed else "error", text)


def relevant(output: str) -> str:
    """Return the lines that name errors, or the end: compilers print hundreds of warnings."""
    lines = output.splitlines()
    if len(lines) <= _SHOWN_LINES:
        return "\n".join(lines)
    errors = [line for line in lines if any(one.search(line) for one in _REASONS)]
    return "\n".join(errors[:_SHOWN_LINES] or lines[-_SHOWN_LINES:])


def memory_kills(system: Path = Path("/")) -> int:
    """Count the processes that the kernel has killed for lack of memory since it started.

    Parameters
    ----------
    system
        Root of the file system, for tests.
    """
    total = 0
    for name in ("sys/fs/cgroup/memory.events", "proc/vmstat"):
        try:
            text = (system / name).read_text()
        except OSError:
            continue
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        total += int(found[1]) if found else 0
    return total
