"""Find a CUDA toolkit, or install one from packages.

Each place that is looked at is accepted or rejected with a reason, and the error prints them all.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from aot import files, locks, process
from aot.architectures import OLDEST_FP4_TOOLKIT, Architecture
from aot.errors import ToolchainError

FROM_PACKAGES: Final = "packages"
FROM_CUDA_HOME: Final = "CUDA_HOME"
FROM_PATH: Final = "PATH"

# What FlashInfer's sources include and the link needs; runtime-only installations lack some of it.
_NEEDED = (
    "bin/nvcc",
    "bin/ptxas",
    "include/cuda_runtime.h",
    "include/cublasLt.h",
    "include/curand_kernel.h",
)
_MARKER = "lock.sha256"
# A gigabyte that no build step reads: cuBLAS, cuRAND and NVRTC are needed for their headers.
_UNUSED_LIBRARIES = ("libcublas*.so*", "libnvblas.so*", "libcurand.so*", "libnvrtc*.so*")


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit that is there and answers.

    Parameters
    ----------
    root
        Its folder, with ``bin`` and ``include``: what other tools call ``CUDA_HOME``.
    version
        Major and minor version, such as 13.0.
    compiler_version
        The compiler's full version, such as 13.0.88.
    nvcc
        The compiler.
    cuobjdump, nvdisasm
        The tools that read device code, where the toolkit has them.
    source
        Where it was found: ``"packages"``, ``"CUDA_HOME"`` or ``"PATH"``.
    targets
        What its assembler can target, with suffixes.
    """

    root: Path
    version: Version
    compiler_version: Version
    nvcc: Path
    cuobjdump: Path | None
    nvdisasm: Path | None
    source: str
    targets: tuple[Architecture, ...]

    def require_targets(self, architectures: Iterable[Architecture]) -> None:
        """Check that the assembler knows each target.

        Raises
        ------
        ToolchainError
            When it does not, with what it does know.
        """
        missing = [str(one) for one in architectures if one not in self.targets]
        if missing:
            raise ToolchainError(
                f"CUDA {self.compiler_version} in {self.root} cannot target {', '.join(missing)}; "
                f"it targets {', '.join(map(str, self.targets))}. Use a newer toolkit"
            )


@dataclass(frozen=True)
class Candidate:
    """One place where a toolkit could be.

    Parameters
    ----------
    source
        Kind of place, as in `Toolkit`.
    place
        The folder or variable that was looked at.
    toolkit
        What is there, when it is accepted.
    rejection
        Why it is not.
    """

    source: str
    place: str
    toolkit: Toolkit | None = None
    rejection: str | None = None

    def __str__(self) -> str:
        return f"{self.source} ({self.place}): {self.rejection or 'accepted'}"


def candidates(
    cuda_version: Version | str, folder: Path, environ: Mapping[str, str] | None = None
) -> tuple[Candidate, ...]:
    """Look at every place where a toolkit of this version could be, in order of preference.

    Parameters
    ----------
    cuda_version
        The version that is wanted; only major and minor count.
    folder
        Where `install` puts toolkits.
    environ
        Environment to read; by default that of this process.

    Raises
    ------
    ToolchainError
        When the version is malformed, or one that builds FP4 out.
    """
    wanted = _wanted(cuda_version)
    variables = os.environ if environ is None else environ
    found = [_look_in_packages(wanted, folder)]
    home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    if home:
        found.append(_look_at(FROM_CUDA_HOME, Path(home), wanted))
    else:
        rejection = f"neither is set; set one to the folder of NVIDIA's CUDA {wanted} toolkit"
        found.append(Candidate(FROM_CUDA_HOME, "CUDA_HOME, CUDA_PATH", rejection=rejection))
    nvcc = shutil.which("nvcc", path=variables.get("PATH", ""))
    if nvcc is None:
        found.append(Candidate(FROM_PATH, "nvcc", rejection="not on PATH"))
    else:
        found.append(_look_on_path(Path(nvcc), wanted))
    return tuple(found)


def find(
    cuda_version: Version | str, folder: Path, environ: Mapping[str, str] | None = None
) -> Toolkit:
    """Return the first toolkit of this version, as `candidates` lists them.

    Raises
    ------
    ToolchainError
        When there is none, with every place and why it was rejected.
    """
    looked_at = candidates(cuda_version, folder, environ)
    for candidate in looked_at:
        if candidate.toolkit is not None:
            return candidate.toolkit
    wanted = _wanted(cuda_version)
    trace = "\n".join(f"  {candidate}" for candidate in looked_at)
    raise ToolchainError(
        f"no CUDA toolkit {wanted} on this machine:\n{trace}\n{_how_to_get(wanted)}"
    )


def find_or_install(
    cuda_version: Version | str, folder: Path, environ: Mapping[str, str] | None = None
) -> Toolkit:
    """Return a toolkit of this version, installing it where there is none and packages exist.

    Raises
    ------
    ToolchainError
        When there is none and it cannot be installed.
    """
    wanted = _wanted(cuda_version)
    for candidate in candidates(wanted, folder, environ):
        if candidate.toolkit is not None:
            return candidate.toolkit
    if locks.find("cuda", wanted) is None:
        return find(wanted, folder, environ)
    return install(wanted, folder)


def install(cuda_version: Version | str, folder: Path) -> Toolkit:
    """Install a toolkit from packages to ``<folder>/cuda-<version>``, unless it is there already.

    Parameters
    ----------
    cuda_version
        The version; only major and minor count.
    folder
        Created when it is missing.

    Raises
    ------
    ToolchainError
        When there is no lock for this version, or pip fails.
    """
    wanted = _wanted(cuda_version)
    lock = locks.find("cuda", wanted)
    if lock is None:
        raise ToolchainError(f"CUDA {wanted} has no packages to install. {_how_to_get(wanted)}")
    present = _look_in_packages(wanted, folder)
    if present.toolkit is not None:
        return present.toolkit
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"cuda-{wanted}"
    # Installed beside its place and renamed: an interrupted install leaves no half toolkit behind.
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=folder) as name:
        scratch = Path(name)
        python = process.python_with_pip(scratch, error=ToolchainError)
        fresh = scratch / "toolkit"
        process.pip_install(
            *(python, lock.path, "--target", fresh),
            purpose=f"install CUDA {wanted} from {lock.path.name}",
            error=ToolchainError,
        )
        _complete(_root_in(fresh))
        (fresh / _MARKER).write_text(lock.digest + "\n", encoding="utf-8")
        files.put_in_place(fresh, final, scratch)
    installed = _look_in_packages(wanted, folder)
    if installed.toolkit is None:
        raise ToolchainError(f"CUDA {wanted} was installed but is not usable:\n  {installed}")
    return installed.toolkit


def _complete(root: Path) -> None:
    """Give packages the layout that CMake's compiler check expects, and drop what nobody reads."""
    for pattern in _UNUSED_LIBRARIES:
        for library in (root / "lib").glob(pattern):
            library.unlink()
    (root / "lib" / "stubs").mkdir(exist_ok=True)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")


def _root_in(installed: Path) -> Path:
    """Find the toolkit among installed packages: ``nvidia/cu13``, named for the major version."""
    for nvcc in sorted(installed.glob("nvidia/cu*/bin/nvcc")):
        return nvcc.parent.parent
    raise ToolchainError(f"the packages in {installed} hold no nvidia/cu*/bin/nvcc")


def _look_in_packages(wanted: Version, folder: Path) -> Candidate:
    place = folder / f"cuda-{wanted}"
    lock = locks.find("cuda", wanted)
    marker = place / _MARKER
    if not marker.is_file():
        rejection = "not installed" if lock else f"there are no packages of CUDA {wanted}"
        return Candidate(FROM_PACKAGES, str(place), rejection=rejection)
    if lock is not None and marker.read_text(encoding="utf-8").strip() != lock.digest:
        return Candidate(
            FROM_PACKAGES, str(place), rejection=f"installed from an older {lock.path.name}"
        )
    try:
        root = _root_in(place)
    except ToolchainError as reason:
        return Candidate(FROM_PACKAGES, str(place), rejection=str(reason))
    return _look_at(FROM_PACKAGES, root, wanted)


def _look_on_path(nvcc: Path, wanted: Version) -> Candidate:
    """Ask the compiler where it lives: what is on PATH may be a script or a link."""
    try:
        plan = process.run(
            [nvcc, "--dryrun", "-E", "-x", "cu", os.devnull],
            purpose=f"ask {nvcc} for its folder",
            error=ToolchainError,
        )
    except ToolchainError as reason:
        return Candidate(FROM_PATH, str(nvcc), rejection=str(reason))
    top = re.search(r"^#\$ TOP=(.+)$", plan.stderr, re.MULTILINE)
    root = Path(top[1].strip()) if top else nvcc.resolve().parent.parent
    return _look_at(FROM_PATH, root.resolve(), wanted)


def _look_at(source: str, root: Path, wanted: Version) -> Candidate:
    """Accept a folder that holds a working toolkit of this version."""
    place = str(root)
    try:
        toolkit = _examine(source, root)
    except ToolchainError as reason:
        return Candidate(source, place, rejection=str(reason))
    if toolkit.version < OLDEST_FP4_TOOLKIT:
        rejection = (
            f"is CUDA {toolkit.compiler_version}, which builds FP4 out; "
            f"FP4 needs {OLDEST_FP4_TOOLKIT} or newer"
        )
        return Candidate(source, place, rejection=rejection)
    if toolkit.version != wanted:
        return Candidate(
            source, place, rejection=f"is CUDA {toolkit.compiler_version}, not {wanted}"
        )
    return Candidate(source, place, toolkit)


def _examine(source: str, root: Path) -> Toolkit:
    missing = [name for name in _NEEDED if not (root / name).is_file()]
    if missing:
        raise ToolchainError(f"holds no {', '.join(missing)}")
    programs = root / "bin"
    nvcc = programs / "nvcc"
    answer = process.run(
        [nvcc, "--version"], purpose=f"ask {nvcc} for its version", error=ToolchainError
    ).stdout
    match = re.search(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)", answer)
    if match is None:
        raise ToolchainError(f"nvcc --version tells no version: {answer.strip()!r}")
    return Toolkit(
        root=root,
        version=Version(match[1]),
        compiler_version=Version(match[2]),
        nvcc=nvcc,
        cuobjdump=_program(programs / "cuobjdump"),
        nvdisasm=_program(programs / "nvdisasm"),
        source=source,
        targets=_targets(programs / "ptxas"),
    )


def _targets(ptxas: Path) -> tuple[Architecture, ...]:
    """Ask the assembler for its targets: nvcc's own list leaves the suffixes out."""
    text = process.run(
        [ptxas, "--help"], purpose=f"ask {ptxas} for its targets", error=ToolchainError
    ).stdout
    return tuple(sorted({Architecture.from_sm(sm) for sm in re.findall(r"'(sm_\d+[af]?)'", text)}))


def _program(path: Path) -> Path | None:
    return path if path.is_file() else None


def _wanted(cuda_version: Version | str) -> Version:
    """Reduce a version to major and minor, and refuse one without FP4."""
    try:
        full = Version(str(cuda_version))
    except InvalidVersion:
        raise ToolchainError(
            f"{cuda_version!r} is not a CUDA version; expected e.g. '13.0'"
        ) from None
    wanted = Version(f"{full.major}.{full.minor}")
    if wanted < OLDEST_FP4_TOOLKIT:
        raise ToolchainError(
            f"CUDA {full} builds FP4 out; ask for {OLDEST_FP4_TOOLKIT} or newer, e.g. 13.0"
        )
    return wanted


def _how_to_get(wanted: Version) -> str:
    installable = [str(lock.version) for lock in locks.available("cuda")]
    if str(wanted) in installable:
        return f"CUDA {wanted} installs from packages: aot.toolchain.install('{wanted}', folder)"
    return (
        f"From packages there are {', '.join(installable) or 'none'}; "
        f"for {wanted}, install NVIDIA's toolkit and set CUDA_HOME to its folder"
    )
