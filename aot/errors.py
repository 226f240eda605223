"""Every way in which the pipeline fails, each with its own exit code.

A message names what was given, what was expected and what to do next; callers print it as it is.
"""

from __future__ import annotations

import errno
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


class MatrixError(AotError):
    """A release matrix that says something impossible, or a choice from it that is not there."""

    exit_code: ClassVar[int] = 11


class BaseImageError(AotError):
    """A base image that is not described, not pinned, or not what its registry has."""

    exit_code: ClassVar[int] = 12


class BakeError(AotError):
    """A bake file that is not what the matrix and the bases say."""

    exit_code: ClassVar[int] = 13


class ReleaseError(AotError):
    """Something that a release needs is not there."""

    exit_code: ClassVar[int] = 14


def is_disk_full(cause: OSError) -> bool:
    """Say whether an error of the system is a lack of space, on the disk or within a quota."""
    return cause.errno in {errno.ENOSPC, errno.EDQUOT}
