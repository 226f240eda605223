"""All wheels of a folder, sorted into one index per CUDA version, or every reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from aot.errors import AuditError
from aot.index.wheel import IndexedWheel, read_wheel


@dataclass(frozen=True)
class CudaIndex:
    """The wheels of one CUDA version.

    Parameters
    ----------
    cuda
        The version: ``"13.0"``.
    wheels
        Newest version first.
    """

    cuda: str
    wheels: tuple[IndexedWheel, ...]

    @property
    def name(self) -> str:
        """Name of its folder: ``"cu130"``."""
        return f"cu{self.cuda.replace('.', '')}"

    @property
    def major(self) -> int:
        """Major version of CUDA, which decides the driver that is needed."""
        return int(self.cuda.split(".")[0])


def collect(folder: Path) -> tuple[CudaIndex, ...]:
    """Read every wheel in a folder and below it.

    Wheels of different CUDA versions may have the same file name, so they lie in folders of their
    own; how those are named does not matter.

    Returns
    -------
    tuple[CudaIndex, ...]
        Newest CUDA version first.

    Raises
    ------
    AuditError
        When there is no wheel, when one may not be published, or when two are the same version for
        the same machine and differ; with every reason, not only the first.
    """
    paths = sorted(folder.rglob("*.whl"))
    if not paths:
        raise AuditError(
            f"there is no wheel in {folder}; pass the folder that `python -m aot build` wrote to"
        )
    wheels, reasons = [], []
    for path in paths:
        try:
            wheels.append(read_wheel(path))
        except AuditError as error:
            reasons.append(str(error))
    versions = sorted({wheel.contents.cuda for wheel in wheels}, key=Version, reverse=True)
    indexes = []
    for cuda in versions:
        distinct = _without_copies(wheel for wheel in wheels if wheel.contents.cuda == cuda)
        reasons += _conflicts(cuda, distinct)
        indexes.append(CudaIndex(cuda, distinct))
    if reasons:
        raise AuditError(
            "these wheels cannot be published, and nothing was written:\n"
            + "\n".join(f"  {reason}" for reason in reasons)
        )
    return tuple(indexes)


def _without_copies(wheels: Iterable[IndexedWheel]) -> tuple[IndexedWheel, ...]:
    """Drop the same file found twice; newest version first."""
    distinct = {(wheel.name, wheel.sha256): wheel for wheel in wheels}
    ordered = sorted(distinct.values(), key=lambda wheel: wheel.name)
    return tuple(sorted(ordered, key=lambda wheel: wheel.version, reverse=True))


def _conflicts(cuda: str, wheels: Iterable[IndexedWheel]) -> list[str]:
    """List what would make it a matter of luck which of two wheels gets installed."""
    taken: dict[tuple[Version, str], IndexedWheel] = {}
    reasons = []
    for wheel in wheels:
        for machine in wheel.machines:
            other = taken.setdefault((wheel.version, machine), wheel)
            if other is not wheel:
                reasons.append(
                    f"{other.path} (preset {other.contents.preset}) and {wheel.path} (preset "
                    f"{wheel.contents.preset}) are both version {wheel.version} for CUDA {cuda} on "
                    f"{machine} and differ; keep one, or give one a version of its own"
                )
    return reasons
