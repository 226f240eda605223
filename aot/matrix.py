"""The release matrix: which wheels a release consists of, read from ``wheels/matrix.toml``.

It is the one list of CUDA versions, platforms, architectures and drivers. What is wrong in it ends
with the key and what to write there, before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from packaging.version import InvalidVersion, Version

from aot import files, locks, presets
from aot.architectures import OLDEST_FP4_TOOLKIT, Architecture, Capability, fp4_rejection
from aot.errors import ArchitectureError, MatrixError
from aot.platforms import PLATFORMS
from aot.toolchain import FROM_CUDA_HOME, FROM_PACKAGES

MATRIX: Final = Path(__file__).resolve().parent.parent / "wheels" / "matrix.toml"
TOOLKITS: Final = (FROM_PACKAGES, FROM_CUDA_HOME)
FIRST_BLACKWELL: Final[Capability] = (10, 0)

_CUDA_VERSION: Final = re.compile(r"[1-9][0-9]*\.(0|[1-9][0-9]*)")
_DRIVER: Final = re.compile(r"[1-9][0-9]{2,}(\.[0-9]{1,3}){0,2}")
_RUNNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_T = TypeVar("_T", str, int, bool, list[Any], dict[str, Any])
_KINDS: Final[Mapping[type, str]] = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class Platform:
    """A kind of machine that wheels are for.

    Parameters
    ----------
    name
        Its processor: ``"x86_64"`` or ``"aarch64"``.
    runner
        The CI machine that builds for it, as GitHub labels it.
    manylinux
        The platform tag of its wheels.
    architectures
        Targets whose GPUs such a machine can have.
    """

    name: str
    runner: str
    manylinux: str
    architectures: tuple[Architecture, ...]


@dataclass(frozen=True)
class CudaRelease:
    """A CUDA version that wheels are built with.

    Parameters
    ----------
    version
        Major and minor version: ``"13.0"``.
    toolkit
        Where the compiler comes from: ``"packages"`` or ``"CUDA_HOME"``.
    driver
        The oldest NVIDIA driver that runs the wheels: ``"580"``, or with its release.
    shards
        Machines that compile one wheel together.
    default
        Whether it is the one that is meant where nobody names another.
    preset
        What its wheels hold.
    excluded_architectures
        Targets of the platforms that its wheels are not built for.
    """

    version: str
    toolkit: str
    driver: str
    shards: int
    default: bool
    preset: str
    excluded_architectures: tuple[Architecture, ...]


@dataclass(frozen=True)
class WheelRow:
    """One wheel of a release, with all that its build has to be told.

    Parameters
    ----------
    cuda, platform
        The CUDA version and the processor, which together say which wheel it is.
    architectures
        What is compiled for.
    flashinfer, preset
        What is compiled.
    driver, toolkit, shards, default
        As in `CudaRelease`.
    runner, manylinux
        As in `Platform`.
    """

    cuda: str
    platform: str
    architectures: tuple[Architecture, ...]
    flashinfer: str
    preset: str
    driver: str
    toolkit: str
    shards: int
    runner: str
    manylinux: str
    default: bool

    @property
    def index(self) -> str:
        """The package index that it goes into: ``"cu130"``."""
        return f"cu{self.cuda.replace('.', '')}"

    @property
    def name(self) -> str:
        """A name for jobs and artifacts: ``"cu130-x86_64"``."""
        return f"{self.index}-{self.platform}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for machines; architectures as the option ``--architectures`` takes them."""
        targets = ",".join(map(str, self.architectures))
        return {"name": self.name, "index": self.index, **vars(self), "architectures": targets}


@dataclass(frozen=True)
class Matrix:
    """What a release consists of: one FlashInfer, platforms and CUDA versions as in the file."""

    flashinfer: str
    platforms: tuple[Platform, ...]
    cuda: tuple[CudaRelease, ...]

    @property
    def default_cuda(self) -> str:
        """The CUDA version that is meant where nobody names another."""
        return next(release.version for release in self.cuda if release.default)

    def minimum_driver(self, cuda: str) -> str | None:
        """Return the oldest driver for a CUDA version; None for one that is not here."""
        return next((one.driver for one in self.cuda if one.version == cuda), None)

    def wheels(self, preset: str = "") -> tuple[WheelRow, ...]:
        """List a wheel for every CUDA version on every platform.

        Parameters
        ----------
        preset
            What they hold, in place of what the matrix says.

        Raises
        ------
        MatrixError
            When there is no such preset, or it leaves a wheel without a Blackwell target.
        """
        if preset:
            _check_preset("--preset", preset)
        return tuple(
            self._wheel(release, platform, preset or release.preset)
            for release in self.cuda
            for platform in self.platforms
        )

    def _wheel(self, release: CudaRelease, platform: Platform, preset: str) -> WheelRow:
        there = preset_targets(preset)
        architectures = tuple(
            target
            for target in platform.architectures
            if target in there and target not in release.excluded_architectures
        )
        if not any(target.capability >= FIRST_BLACKWELL for target in architectures):
            raise MatrixError(
                f"a wheel of the preset '{preset}' with CUDA {release.version} on {platform.name} "
                f"would be for {_list(architectures) or 'nothing'}, without a Blackwell: the "
                f"preset has {_list(there)}, and platforms.{platform.name}.architectures are "
                f"{_list(platform.architectures)}; choose another preset, or correct these"
            )
        return WheelRow(
            cuda=release.version,
            platform=platform.name,
            architectures=architectures,
            flashinfer=self.flashinfer,
            preset=preset,
            driver=release.driver,
            toolkit=release.toolkit,
            shards=release.shards,
            runner=platform.runner,
            manylinux=platform.manylinux,
            default=release.default,
        )


def preset_targets(preset: str) -> tuple[Architecture, ...]:
    """List the targets that some module of a preset is compiled for."""
    return tuple(sorted(map(Architecture.parse, presets.PRESETS[preset].targets)))


def read_matrix(path: Path = MATRIX) -> Matrix:
    """Read a matrix from a file.

    Raises
    ------
    MatrixError
        When it cannot be read, or `parse_matrix` refuses it; names the file.
    """
    try:
        data = files.read_toml(path)
    except OSError as cause:
        raise MatrixError(f"the release matrix cannot be read: {cause}") from cause
    except ValueError as cause:  # also what is not UTF-8
        raise MatrixError(f"{path} is not TOML: {cause}; correct it there") from cause
    try:
        return parse_matrix(data)
    except MatrixError as cause:
        raise MatrixError(f"{path}: {cause}") from cause


def parse_matrix(data: Mapping[str, Any]) -> Matrix:
    """Read and check a matrix.

    Parameters
    ----------
    data
        The content of the file.

    Raises
    ------
    MatrixError
        Naming the key, what is there, what was expected and what to do.
    """
    root = _Table("", data)
    root.allow("flashinfer", "preset", "platforms", "cuda")
    flashinfer = _flashinfer(root)
    preset = _preset(root)
    named = _Table("platforms", root.get("platforms", dict))
    named.allow(*PLATFORMS)
    platforms = tuple(_platform(named, name) for name in named.values)
    releases = root.get("cuda", list)
    cuda = tuple(_release(f"cuda[{i}]", release, preset) for i, release in enumerate(releases))
    if not platforms or not cuda:
        empty = "cuda" if platforms else "platforms"
        raise MatrixError(f"{empty} is empty, so a release would be; write one entry at least")
    _check_releases(cuda)
    matrix = Matrix(flashinfer, platforms, cuda)
    _check_targets(matrix)
    matrix.wheels()
    return matrix


@dataclass(frozen=True)
class _Table:
    """A table of the file, which knows how its keys are called from the top."""

    path: str
    values: Mapping[str, Any]

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def allow(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                raise MatrixError(
                    f"{self.at(key)} is unknown; expected {', '.join(known)}. Remove it or correct "
                    "its name"
                )

    def get(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        if key not in self.values:
            if default is not None:
                return default
            raise MatrixError(f"{self.at(key)} is missing; write {_KINDS[kind]} there")
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise MatrixError(f"{self.at(key)} is {value!r}; write {_KINDS[kind]}")
        return value

    def matching(self, key: str, pattern: re.Pattern[str], example: str) -> str:
        """Get a text of a certain form."""
        value = self.get(key, str)
        if not pattern.fullmatch(value):
            raise MatrixError(f"{self.at(key)} is {value!r}; write something like '{example}'")
        return value

    def one_of(self, key: str, choices: Sequence[str]) -> str:
        value = self.get(key, str)
        if value not in choices:
            raise MatrixError(f"{self.at(key)} is {value!r}; write one of {', '.join(choices)}")
        return value

    def architectures(self, key: str, default: list[Any] | None = None) -> tuple[Architecture, ...]:
        found: list[Architecture] = []
        for i, text in enumerate(self.get(key, list, default)):
            at = f"{self.at(key)}[{i}]"
            if not isinstance(text, str):
                raise MatrixError(f"{at} is {text!r}; write an architecture such as '10.0a'")
            try:
                target = Architecture.parse(text)
            except ArchitectureError as cause:
                raise MatrixError(f"{at}: {cause}") from cause
            if target in found:
                raise MatrixError(f"{at} is {text!r}, which is there already; remove one of them")
            found.append(target)
        return tuple(found)


def _flashinfer(root: _Table) -> str:
    text = root.get("flashinfer", str)
    known = [str(lock.version) for lock in locks.available("flashinfer")]
    try:
        lock = locks.find("flashinfer", Version(text))
    except InvalidVersion:
        lock = None
    if lock is None:
        raise MatrixError(
            f"flashinfer is {text!r}, and aot/locks has {', '.join(known)}; write one of them, or "
            "add a lock (aot/locks/__init__.py says how)"
        )
    return text


def _preset(table: _Table, default: str | None = None) -> str:
    preset = table.get("preset", str, default)
    _check_preset(table.at("preset"), preset)
    return preset


def _check_preset(at: str, preset: str) -> None:
    to_ship = [name for name, one in presets.PRESETS.items() if not one.lowered]
    if preset not in to_ship:
        what = "is for tests alone" if preset in presets.PRESETS else "is unknown"
        raise MatrixError(f"{at} is {preset!r}, which {what}; write one of {', '.join(to_ship)}")


def _platform(named: _Table, name: str) -> Platform:
    table = _Table(named.at(name), named.get(name, dict))
    table.allow("runner", "manylinux", "architectures")
    manylinux = re.compile(rf"manylinux_[0-9]+_[0-9]+_{name}")
    architectures = table.architectures("architectures")
    return Platform(
        name,
        table.matching("runner", _RUNNER, "ubuntu-24.04"),
        table.matching("manylinux", manylinux, f"manylinux_2_28_{name}"),
        architectures,
    )


def _release(path: str, data: object, preset: str) -> CudaRelease:
    if not isinstance(data, dict):
        raise MatrixError(f"{path} is {data!r}; write {_KINDS[dict]}: [[cuda]]")
    table = _Table(path, data)
    table.allow(
        *("version", "toolkit", "driver", "default", "shards", "preset", "excluded_architectures")
    )
    version = table.matching("version", _CUDA_VERSION, "13.0")
    if Version(version) < OLDEST_FP4_TOOLKIT:
        raise MatrixError(
            f"{table.at('version')} is {version!r}, which builds FP4 out; write "
            f"'{OLDEST_FP4_TOOLKIT}' or a newer one"
        )
    toolkit = table.one_of("toolkit", TOOLKITS)
    if toolkit == FROM_PACKAGES and locks.find("cuda", Version(version)) is None:
        there = ", ".join(str(lock.version) for lock in locks.available("cuda"))
        raise MatrixError(
            f"{table.at('toolkit')} is '{FROM_PACKAGES}', and aot/locks has {there} but not "
            f"{version}; add a lock (aot/locks/__init__.py says how), or write '{FROM_CUDA_HOME}'"
        )
    shards = table.get("shards", int)
    if shards < 1:
        raise MatrixError(f"{table.at('shards')} is {shards}; write 1 or more")
    return CudaRelease(
        version=version,
        toolkit=toolkit,
        driver=table.matching("driver", _DRIVER, "580.65.06"),
        shards=shards,
        default=table.get("default", bool, False),
        preset=_preset(table, preset),
        excluded_architectures=table.architectures("excluded_architectures", []),
    )


def _check_releases(cuda: Sequence[CudaRelease]) -> None:
    versions = [release.version for release in cuda]
    for i, version in enumerate(versions):
        if version in versions[:i]:
            raise MatrixError(
                f"cuda[{i}].version is '{version}', as cuda[{versions.index(version)}].version is; "
                "remove one of them"
            )
    defaults = [i for i, release in enumerate(cuda) if release.default]
    if len(defaults) != 1:
        these = ", ".join(f"cuda[{i}].default" for i in defaults) or "no cuda[…].default"
        raise MatrixError(f"{these} is true; write default = true for exactly one version")


def _check_targets(matrix: Matrix) -> None:
    """Refuse an architecture that no preset has, that nobody builds, or that cannot be built."""
    presets = {release.preset for release in matrix.cuda}
    known = sorted({target for preset in presets for target in preset_targets(preset)})
    for platform in matrix.platforms:
        for i, target in enumerate(platform.architectures):
            if target not in known:
                raise MatrixError(
                    f"platforms.{platform.name}.architectures[{i}] is '{target}', and the presets "
                    f"{', '.join(sorted(presets))} are for {_list(known)}; write some of these"
                )
    anywhere = {target for platform in matrix.platforms for target in platform.architectures}
    for i, release in enumerate(matrix.cuda):
        for j, target in enumerate(release.excluded_architectures):
            if target not in anywhere:
                raise MatrixError(
                    f"cuda[{i}].excluded_architectures[{j}] is '{target}', which no platform has; "
                    "remove it"
                )
        for platform in matrix.platforms:
            _check_buildable(i, release, platform)


def _check_buildable(i: int, release: CudaRelease, platform: Platform) -> None:
    for j, target in enumerate(platform.architectures):
        if target in release.excluded_architectures or target.capability < FIRST_BLACKWELL:
            continue
        rejection = fp4_rejection(target, release.version)
        if rejection is not None:
            raise MatrixError(
                f"platforms.{platform.name}.architectures[{j}] is '{target}', and cuda[{i}] is "
                f"CUDA {release.version}: the target {rejection}; add it to "
                f"cuda[{i}].excluded_architectures"
            )


def _list(architectures: Sequence[Architecture]) -> str:
    return ", ".join(map(str, architectures))
