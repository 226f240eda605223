"""Watch the compilers at work, and tell how much memory each translation unit takes.

A compiler is a chain of programs, and the object cache starts some of them itself, in folders of
its own: no parent is common to them. So every compiler process of this machine is looked at, and
its command line tells the unit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aot.architectures import Architecture
from aot.plan import BuildPlan, Roots

COMPILERS: Final = frozenset({"cudafe++", "cicc", "ptxas", "cc1plus"})
_SECONDS_BETWEEN: Final = 0.25
_TARGET = re.compile(r"(?:^| )-arch (?:compute_|sm_)(\w+)")


@dataclass(frozen=True)
class Process:
    """One running program.

    Parameters
    ----------
    name
        The program.
    arguments
        Its command line.
    peak_megabytes
        The most memory it has had so far.
    """

    name: str
    arguments: tuple[str, ...]
    peak_megabytes: int


@dataclass(frozen=True)
class _Marks:
    """What tells a unit in a command line."""

    source: str
    module: str
    unit: str
    targets: frozenset[str]
    compiler: str


def running_compilers(proc: Path = Path("/proc")) -> Iterator[Process]:
    """List the compiler processes of this machine, as far as this user may see them."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "comm").read_text().strip()
            if name not in COMPILERS:
                continue
            status = (folder / "status").read_text()
            peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
            line = (folder / "cmdline").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        if peak:
            arguments = tuple(line.rstrip("\0").split("\0"))
            yield Process(name, arguments, int(peak[1]) // 1024)


class Watch:
    """Collects the peak of every unit of a plan.

    Attributes
    ----------
    peaks
        Megabytes of the largest process, by ``module/unit``. A unit that was only preprocessed,
        which the object cache does to look it up, is not among them.
    compiled
        The units whose compiler proper was at work. The object cache also keeps the results of
        single programs: a unit can have a peak and still come from the cache for the most part.
    """

    def __init__(self, plan: BuildPlan, roots: Roots) -> None:
        self.peaks: dict[str, int] = {}
        self.compiled: set[str] = set()
        self._units = [
            _Marks(
                source=roots.expand(unit.source),
                module=module.name,
                unit=unit.name,
                targets=frozenset(Architecture.parse(name).sm for name in module.architectures),
                compiler="cicc" if unit.language == "cuda" else "cc1plus",
            )
            for module in plan.modules
            for unit in module.units
        ]

    def observe(self, processes: Iterable[Process]) -> None:
        """Look at what is running now."""
        for process in processes:
            if "-E" in process.arguments:
                continue
            unit = self._unit_of(process)
            if unit:
                name = f"{unit.module}/{unit.unit}"
                self.peaks[name] = max(self.peaks.get(name, 0), process.peak_megabytes)
                if process.name == unit.compiler:
                    self.compiled.add(name)

    def _unit_of(self, process: Process) -> _Marks | None:
        """Name the unit that a process works on; None for one of somebody else's.

        Also None for a program that says too little, such as ``cudafe++`` on a source that several
        modules share. None of those is the largest of its unit.
        """
        line = " ".join(process.arguments)
        target = _TARGET.search(line)
        # The host compiler is given a generated file, and the name of the object.
        found = [
            one
            for one in self._units
            if f"/units/{one.module}/ " in line and f" {one.unit}." in line
        ] or [
            one
            for one in self._units
            if one.source in process.arguments and (target is None or target[1] in one.targets)
        ]
        return found[0] if len(found) == 1 else None


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Observe from a thread for as long as the block runs."""
    over = threading.Event()

    def observe() -> None:
        while not over.wait(_SECONDS_BETWEEN):
            watch.observe(running_compilers())

    thread = threading.Thread(target=observe, name="compiler-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
