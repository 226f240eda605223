"""Every way in which the pipeline fails, each with its own exit code.

A message names what was given, what was expected and what to do next; callers print it as it is.
"""

from __future__ import annotations

from typing import ClassVar


class AotError(Exception):
    """Base of all errors that the pipeline raises on purpose."""

    exit_code: ClassVar[int] = 1


class ArchitectureError(AotError):
    """A compute capability or target that is malformed, unsupported or cannot be built."""

    exit_code: ClassVar[int] = 3


class ToolchainError(AotError):
    """No usable CUDA toolkit or host compiler, or one that cannot target what was asked for."""

    exit_code: ClassVar[int] = 4


class PlanError(AotError):
    """An unknown preset or module, or FlashInfer sources that do not match the catalogue."""

    exit_code: ClassVar[int] = 5


class BuildError(AotError):
    """A compiler, linker or the packaging step failed."""

    exit_code: ClassVar[int] = 6


class AuditError(AotError):
    """A built wheel holds something other than what its plan says."""

    exit_code: ClassVar[int] = 7


class OutOfMemoryError(BuildError):
    """A compiler ran out of memory or was killed, and again when it was run alone."""

    exit_code: ClassVar[int] = 8


class DiskFullError(BuildError):
    """No space is left where something has to be written."""

    exit_code: ClassVar[int] = 9


class ShardError(AotError):
    """A shard that is missing, damaged, of another plan, or made by another compiler."""

    exit_code: ClassVar[int] = 10
