"""The name of an object: a hash over everything that it is made from, and over no path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from aot import locks
from aot.plan import BuildPlan

_FORMAT: Final = 1  # raised when objects of an earlier version of this package must not be used
_HEADERS: Final = (".h", ".cuh", ".inc")


@dataclass(frozen=True)
class KeyMaker:
    """What all objects of one build have in common.

    Parameters
    ----------
    base
        Hash over the compilers, the machine, the packages whose headers are included, and the
        lowering.
    headers
        Hash over our own headers.
    """

    base: str
    headers: str

    def key(
        self,
        name: str,
        language: str,
        source: str,
        sha256: str,
        flags: Sequence[str],
        *,
        ours: bool,
    ) -> str:
        """Name one object.

        Parameters
        ----------
        name
            Of its job: modules compile some sources with equal flags, and each has its own object.
        language, flags
            As in the plan: flags have tokens in place of folders.
        source
            The source, with a token: it is in debug information and in names of local symbols.
        sha256
            Of the source.
        ours
            Whether it may include our own headers.
        """
        text = [self.base, name, language, source, sha256, [*flags], self.headers if ours else ""]
        return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def make_key_maker(plan: BuildPlan, host_compiler: str, folders: Iterable[Path]) -> KeyMaker:
    """Collect what all objects depend on.

    Parameters
    ----------
    plan
        What is built.
    host_compiler
        How the C++ compiler names itself.
    folders
        Those of our own headers: ``wheels/fp4aot/csrc``, and that of what is generated.
    """
    # Sources and headers of FlashInfer, TVM-FFI and torch are exactly those of the lock.
    lock = locks.find("flashinfer", Version(plan.versions.flashinfer))
    base = {
        "format": _FORMAT,
        "machine": plan.machine,
        "compilers": [plan.compiler, host_compiler],
        "versions": vars(plan.versions),
        "packages": lock.digest if lock else "",
        "lowering": plan.lowering,
    }
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _HEADERS:
                digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    text = json.dumps(base, sort_keys=True)
    return KeyMaker(hashlib.sha256(text.encode()).hexdigest(), digest.hexdigest())
