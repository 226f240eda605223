"""How much memory is free: the machine's, or its control group's."""

from __future__ import annotations

from pathlib import Path


def available_megabytes() -> int:
    """Memory that this process may still take: the machine's, or its control group's if less."""
    limits = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) // 1024)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text()) - _reclaimable(group)
            limits.append((int(limit) - used) // 2**20)
    except (OSError, ValueError):
        pass  # no control group, or an old one: the machine's figure stands
    return max(0, min(limits)) if limits else 4096


def _reclaimable(group: Path) -> int:
    """Bytes of cached files: counted as used, and dropped when a program asks for more."""
    for line in (group / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
