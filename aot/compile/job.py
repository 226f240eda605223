"""One compiler run: what it needs, and the name under which its object is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Group = Literal["unit", "own"]
"""A translation unit of a FlashInfer module, or a source of the runtime and the operators."""


@dataclass(frozen=True)
class Job:
    """One object to make.

    Parameters
    ----------
    name
        ``module/unit``, ``operators/source`` or ``tvm_ffi/source``.
    group
        Whether it belongs to a FlashInfer module, which can be compiled in a shard.
    source
        The source, on this machine.
    command
        The compiler and its flags, on this machine, without ``-c`` and ``-o``.
    key
        SHA-256 over everything that its object depends on: equal on any machine and path.
    compiler
        The program that does the work proper: ``"cicc"`` or ``"cc1plus"``.
    targets
        Compute capabilities of its device code, as nvcc's programs name them: ``"100a"``.
    megabytes, seconds
        Peak memory and wall time that are expected: measured earlier, or estimated.
    cached
        Whether the object cache can take it.
    """

    name: str
    group: Group
    source: Path
    command: tuple[str, ...]
    key: str
    compiler: str
    targets: frozenset[str]
    megabytes: int
    seconds: float
    cached: bool = True

    @property
    def module(self) -> str:
        """The first half of its name."""
        return self.name.partition("/")[0]

    @property
    def unit(self) -> str:
        """The second half of its name."""
        return self.name.partition("/")[2]
