"""Loads the C++ library, once, and names the true cause when it cannot be loaded."""

from __future__ import annotations

import platform
import re
import sys
from itertools import zip_longest
from pathlib import Path

from fp4aot import _manifest

MINIMUM_TORCH = (2, 10)
_REINSTALL = "reinstall it: pip install --force-reinstall --no-deps fp4aot"


def release(version: str) -> tuple[int, ...]:
    """Return the release segments of a version, without pre-, post- and local parts.

    Versions are compared by these, never by prefix: 2.10 is newer than 2.9 and than 2.1.
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def is_same_release(one: str, other: str) -> bool:
    """Tell whether two versions are the same release: 0.7 and 0.7.0.post1+cu130 are."""
    pairs = zip_longest(release(one), release(other), fillvalue=0)
    return all(mine == theirs for mine, theirs in pairs)


def check_torch(version: str) -> None:
    """Refuse a torch without the stable ABI that the library was built against.

    Raises
    ------
    ImportError
        Naming the version and what to install.
    """
    if release(version) < MINIMUM_TORCH:
        minimum = ".".join(map(str, MINIMUM_TORCH))
        raise ImportError(
            f"fp4aot needs PyTorch {minimum} or newer and found {version}; "
            f"pip install 'torch>={minimum}'"
        )


def check_platform() -> None:
    """Refuse an operating system or processor that the library was not built for.

    Raises
    ------
    ImportError
        When this is not Linux.
    """
    if sys.platform != "linux":
        raise ImportError(f"fp4aot runs on Linux only, and this is {sys.platform}")


def check_file(library: Path, manifest: _manifest.Manifest) -> None:
    """Refuse a library that is missing or was not written to its end.

    Raises
    ------
    ImportError
        Naming the file and both sizes.
    """
    if not library.is_file():
        raise ImportError(f"fp4aot is incomplete: {library} is missing; {_REINSTALL}")
    size = library.stat().st_size
    if size != manifest.library_size:
        raise ImportError(
            f"fp4aot is damaged: {library} has {size} bytes and its manifest says "
            f"{manifest.library_size}; {_REINSTALL}"
        )


def explain(error: OSError, library: Path, torch_version: str) -> ImportError:
    """Turn the dynamic linker's message into the cause and what to do.

    Parameters
    ----------
    error
        What loading the library raised.
    library
        The file.
    torch_version
        The installed torch.
    """
    # torch raises a sentence of its own from the dynamic linker's error.
    text = str(error.__cause__ or error)
    # "file: what is wrong": the file's own folders say nothing about the cause.
    reason = text.replace(str(library), library.name)
    found = re.search(r"(\S+): cannot open shared object file", reason)
    absent = Path(found[1]).name if found else ""
    symbol = re.search(r"undefined symbol: (\w+)", text)
    if symbol and symbol[1].startswith(("aoti_torch_", "torch_")):
        cause = (
            f"PyTorch {torch_version} lacks the stable-ABI function {symbol[1]}; install a newer "
            "PyTorch, or one whose installation is complete"
        )
    elif absent.startswith("libtorch"):
        cause = f"PyTorch {torch_version} is installed without its C++ library; reinstall torch"
    elif absent and absent != library.name:
        cause = f"it needs {absent}, which is not on this system; install the package with it"
    elif "GLIBC_" in reason:
        cause = (
            f"this system's C library ({' '.join(platform.libc_ver())}) is older than the one the "
            "wheel was built for; use a newer distribution, or a wheel with an older manylinux tag"
        )
    elif absent or "wrong ELF class" in reason or "ELF machine" in reason:
        cause = (
            f"the library was built for another processor than {platform.machine()}; install the "
            "wheel for this platform"
        )
    else:
        cause = f"the file may be damaged; {_REINSTALL}"
    return ImportError(f"fp4aot cannot load {library}: {cause}. The dynamic linker says: {text}")


def load() -> _manifest.Manifest:
    """Load the library and register the Python implementations, unless that has happened.

    Safe to call again, also after `importlib.reload` and in forked processes.

    Returns
    -------
    Manifest
        What the wheel holds.

    Raises
    ------
    ImportError
        With the true cause and what to do.
    """
    check_platform()
    try:
        import torch  # noqa: PLC0415 (its absence is explained)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("fp4aot needs PyTorch; pip install 'torch>=2.10'") from error
    check_torch(torch.__version__)
    try:
        manifest = _manifest.read()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"fp4aot is damaged: its manifest cannot be read ({error}); {_REINSTALL}. In a source "
            "checkout, build and install the wheel instead: nox -s wheel"
        ) from error
    if _is_registered():
        return manifest
    library = _manifest.PACKAGE / manifest.library_name
    check_file(library, manifest)
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise explain(error, library, torch.__version__) from error
    from fp4aot import operators  # noqa: PLC0415 (needs the operators)

    operators.register()
    return manifest


def _is_registered() -> bool:
    """Whether this process has the operators: they outlive the Python modules."""
    import torch  # noqa: PLC0415

    try:
        packet = torch.ops.fp4aot.fp4_quantize
    except AttributeError:
        return False
    return bool(packet.default.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU))
