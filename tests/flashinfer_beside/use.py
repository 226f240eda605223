"""Import FlashInfer from a bundle that `build.py` made. Standard library, and torch at run time.

FlashInfer's code runs as it is, with three exceptions, all of them here:

- Compiling is an error. ``JitSpecNvcc.build`` and ``run_ninja``, through which every one of its
  compilations with nvcc goes, are replaced by functions that raise `MissingModuleError`. Its other
  questions to programs (``nvcc --version``, ``nvcc --list-gpu-arch``) are left alone, and so are
  other users of compilers in the process, such as Inductor.
- Its own environment variables are set: ``FLASHINFER_WORKSPACE_BASE`` to a temporary folder,
  ``FLASHINFER_CUDA_ARCH_LIST`` to the targets of the modules, without which it refuses to name the
  module of another capability.
- Inside `as_capability`, the value that its ``get_compute_capability`` has cached for each device
  is another one. The function itself, and what a call of it costs, stay the same.

Which prebuilt library serves which of its modules is decided by file names alone: it looks for
``flashinfer/data/aot/<name>/<name>.so`` before it compiles anything. In a bundle of lowered modules
``fp4_quantization_100`` also goes by the names that FlashInfer has for a Hopper and for 12.0.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ARCHIVE = "flashinfer.tar.xz"
DESCRIPTION = "bundle.json"
SITE = "site"
NEEDS = "needs"

ARCHITECTURES = "9.0a 10.0a 12.0f"


class MissingModuleError(RuntimeError):
    """FlashInfer wanted to compile something."""


def unpack(bundle: Path, folder: Path) -> Path:
    """Unpack a bundle for several processes to import from, and return `folder`.

    Parameters
    ----------
    bundle
        The folder that `build.py` wrote.
    folder
        Empty or missing.
    """
    archive = bundle / ARCHIVE
    if not archive.is_file():
        raise FileNotFoundError(f"{archive} does not exist: make it with build.py beside this file")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def describe(unpacked: Path) -> dict[str, Any]:
    """What the bundle is made of: FlashInfer's version, the plan's hash, the libraries."""
    return json.loads((unpacked / DESCRIPTION).read_text())


def absent_dependencies() -> list[str]:
    """Name what FlashInfer declares as needed and this process does not have; after `prepare`.

    The bundle has what its FP4 functions need. Some of the rest is large, and importing FlashInfer
    takes longer where it is installed.
    """
    absent = []
    for text in importlib.metadata.requires("flashinfer-python") or ():
        requirement, _, marker = text.partition(";")
        name = re.match(r"[\w.-]+", requirement.strip())
        if name is not None and "extra" not in marker:
            try:
                importlib.metadata.version(name[0])
            except importlib.metadata.PackageNotFoundError:
                absent.append(name[0])
    return sorted(absent)


def prepare(bundle: Path) -> Path:
    """Set paths and environment so that ``import flashinfer`` finds the bundle; return its folder.

    Parameters
    ----------
    bundle
        The folder that `build.py` wrote, or one that `unpack` filled. The former is unpacked into a
        temporary folder, which goes when the process ends.

    Raises
    ------
    RuntimeError
        When FlashInfer has been imported already.
    """
    if "flashinfer" in sys.modules or "tvm_ffi" in sys.modules:
        raise RuntimeError("flashinfer or tvm_ffi is imported already, from somewhere else")
    unpacked = bundle
    if not (bundle / DESCRIPTION).is_file():
        unpacked = unpack(bundle, Path(_temporary_folder()))
    os.environ["FLASHINFER_WORKSPACE_BASE"] = _temporary_folder()
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = ARCHITECTURES
    os.environ.pop("FLASHINFER_DISABLE_JIT", None)  # it would hide which module is missing
    # The bundle's FlashInfer and TVM-FFI before the machine's, and what they need after.
    sys.path.insert(0, str(unpacked / SITE))
    sys.path.append(str(unpacked / NEEDS))
    importlib.invalidate_caches()
    return unpacked


def import_flashinfer(bundle: Path) -> ModuleType:
    """Import FlashInfer from a bundle; no call of it can compile anything.

    Parameters
    ----------
    bundle
        As in `prepare`.

    Returns
    -------
    ModuleType
        The package ``flashinfer``.

    Raises
    ------
    RuntimeError
        When FlashInfer has been imported already, or comes from elsewhere.
    """
    unpacked = prepare(bundle)
    flashinfer = importlib.import_module("flashinfer")
    if not Path(flashinfer.__file__).is_relative_to(unpacked.resolve()):
        raise RuntimeError(f"flashinfer was imported from {flashinfer.__file__}, not {unpacked}")
    forbid_compilation()
    return flashinfer


def forbid_compilation() -> None:
    """Let FlashInfer raise `MissingModuleError` where it would start a compiler."""
    core = importlib.import_module("flashinfer.jit.core")
    cpp_ext = importlib.import_module("flashinfer.jit.cpp_ext")

    def build(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise MissingModuleError(
            f"FlashInfer wants to compile the module {self.name}, which is not in the bundle as "
            f"{self.aot_path}"
        )

    def run_ninja(workdir: Path, ninja_file: Path, *_: Any, **__: Any) -> NoReturn:
        raise MissingModuleError(f"FlashInfer wants to run ninja on {ninja_file} in {workdir}")

    core.JitSpecNvcc.build = build
    core.run_ninja = run_ninja
    cpp_ext.run_ninja = run_ninja


@contextlib.contextmanager
def as_capability(major: int, minor: int) -> Iterator[None]:
    """Let FlashInfer take every CUDA device for one of another compute capability.

    Parameters
    ----------
    major, minor
        The capability. At 12.0 `flashinfer.mm_fp4` with ``backend="cutlass"`` chooses the module
        ``fp4_gemm_cutlass_sm120``.

    Notes
    -----
    ``flashinfer.utils.get_compute_capability`` is a cached function, and everything that asks for a
    capability by way of it sees what it has cached. Its cache is emptied and filled with the given
    value for each device; afterwards it is emptied again. What FlashInfer reads elsewhere, the
    number of multiprocessors say, stays the device's own.
    """
    import torch

    utils = importlib.import_module("flashinfer.utils")

    class Properties:
        """A device's properties with another capability."""

        def __init__(self, real: Any) -> None:
            self.major, self.minor, self._real = major, minor, real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    read = utils.get_device_properties
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    utils.get_compute_capability.cache_clear()
    utils.get_device_properties = lambda device: Properties(read(device))
    try:
        for device in (*devices, torch.device("cuda")):
            utils.get_compute_capability(device)
    finally:
        utils.get_device_properties = read
    try:
        yield
    finally:
        utils.get_compute_capability.cache_clear()


def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="flashinfer-beside-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
