"""A pinned virtual environment for each FlashInfer version, to read its JIT specifications in.

FlashInfer declares many heavy dependencies, and reading what it would compile needs few of them.
This environment also supplies torch's headers and ``libtorch.so`` for the link, and TVM-FFI's
sources. The pipeline itself imports none of it: it runs this environment's interpreter.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from aot import locks, process
from aot.errors import PlanError

# In order of preference. Given one list with both builds, pip takes the index's, with 3 GB of CUDA.
_TORCH_LOCKS: Final = (locks.FOLDER / "torch-cpu.txt", locks.FOLDER / "torch.txt")

_MARKER = "complete.sha256"


@dataclass(frozen=True)
class FlashInferEnvironment:
    """An environment that can ``import flashinfer.jit``.

    Parameters
    ----------
    python
        Its interpreter. FlashInfer also needs ``FLASHINFER_CUDA_ARCH_LIST`` and
        ``FLASHINFER_WORKSPACE_BASE`` set, see the module that reads the specifications.
    version
        FlashInfer's version.
    site_packages
        Where its packages are.
    flashinfer_data
        FlashInfer's C++ and CUDA sources, with CUTLASS, CCCL and spdlog.
    tvm_ffi_root
        TVM-FFI's package, with its sources and headers.
    torch_include, torch_lib
        torch's headers, and the folder of ``libtorch.so``.
    """

    python: Path
    version: Version
    site_packages: Path
    flashinfer_data: Path
    tvm_ffi_root: Path
    torch_include: Path
    torch_lib: Path


def available_versions() -> tuple[Version, ...]:
    """List the FlashInfer versions that can be built, oldest first."""
    return tuple(lock.version for lock in locks.available("flashinfer"))


def ensure(version: Version | str, folder: Path) -> FlashInferEnvironment:
    """Return the environment of one FlashInfer version, creating it when it is not there.

    Two processes that ask at once get the same one: the second waits for the first.

    Parameters
    ----------
    version
        FlashInfer's exact version.
    folder
        Where environments are kept; created when it is missing.

    Raises
    ------
    PlanError
        When no lock has this version, with those there are; or when it cannot be installed.
    """
    lock = _lock_for(version)
    root = folder.absolute() / f"flashinfer-{lock.version}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(root):
        digest = _digest(lock)
        marker = root / _MARKER
        if not marker.is_file() or marker.read_text(encoding="utf-8").strip() != digest:
            _create(root, lock)
            # Last, and by a rename: an interrupted creation is started over.
            fresh = marker.with_suffix(".new")
            fresh.write_text(digest + "\n", encoding="utf-8")
            fresh.replace(marker)
    return _describe(root, lock.version)


def _lock_for(version: Version | str) -> locks.Lock:
    known = ", ".join(map(str, available_versions()))
    try:
        wanted = Version(str(version))
    except InvalidVersion:
        raise PlanError(f"{version!r} is not a FlashInfer version; there are {known}") from None
    lock = locks.find("flashinfer", wanted)
    if lock is None:
        raise PlanError(
            f"FlashInfer {wanted} is not among the versions that are pinned: {known}. Versions are "
            f"matched exactly; to add one, write aot/locks/flashinfer-{wanted}.in and compile it"
        )
    return lock


def _digest(lock: locks.Lock) -> str:
    """Identify what an environment is made from: the locks and the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (lock.path, *_TORCH_LOCKS):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _create(root: Path, lock: locks.Lock) -> None:
    """Build the environment in its final place, because interpreters in it cannot be moved."""
    if root.exists():
        shutil.rmtree(root)
    python = process.create_venv(root, error=PlanError)
    _install_torch(python)
    _install(python, lock.path)
    _check(python, lock.version)


def _install_torch(python: Path) -> None:
    """Install torch first, and the CPU build where pip finds it."""
    failures = []
    for path in _TORCH_LOCKS:
        try:
            _install(python, path)
        except PlanError as failure:
            failures.append(str(failure))
        else:
            return
    raise PlanError("\n".join(failures))


def _install(python: Path, requirements: Path) -> None:
    process.pip_install(
        *(python, requirements, "--no-compile"),
        purpose=f"install what {requirements.name} lists",
        error=PlanError,
    )


def _check(python: Path, version: Version) -> None:
    """Import what is needed, on a machine without a GPU and without writing outside `scratch`."""
    with tempfile.TemporaryDirectory() as scratch:
        environ = {
            **os.environ,
            "FLASHINFER_WORKSPACE_BASE": scratch,
            "FLASHINFER_CUDA_ARCH_LIST": "10.0a",
        }
        statement = (
            "import flashinfer.jit, importlib.metadata; "
            "print(importlib.metadata.version('flashinfer-python'))"
        )
        printed = process.run(
            [python, "-I", "-c", statement],
            purpose=f"import FlashInfer {version}",
            error=PlanError,
            environ=environ,
        ).stdout.split()
    if not printed or Version(printed[-1]) != version:
        raise PlanError(f"expected FlashInfer {version} in {python}, found {printed}")


def _describe(root: Path, version: Version) -> FlashInferEnvironment:
    site = root / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = site / "site-packages"
    environment = FlashInferEnvironment(
        python=root / "bin" / "python",
        version=version,
        site_packages=site,
        flashinfer_data=site / "flashinfer" / "data",
        tvm_ffi_root=site / "tvm_ffi",
        torch_include=site / "torch" / "include",
        torch_lib=site / "torch" / "lib",
    )
    expected = (
        environment.flashinfer_data / "csrc",
        environment.tvm_ffi_root / "src",
        environment.torch_include / "torch" / "csrc" / "stable" / "library.h",
        environment.torch_lib / "libtorch.so",
    )
    for path in expected:
        if not path.exists():
            raise PlanError(
                f"FlashInfer {version}'s environment has no {path}; delete {root} and try again"
            )
    return environment


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Hold a lock beside the environment for as long as the block runs."""
    with (root.parent / f".{root.name}.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
