"""Audit a wheel: its libraries, its licence notices, and the systems that it can run on."""

from __future__ import annotations

import fnmatch
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auditwheel.error import AuditwheelError
from auditwheel.wheel_abi import analyze_wheel_abi, get_wheel_elfdata
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from aot.audit.findings import Finding
from aot.audit.library import LibraryExpectation, LibraryReport, audit_library
from aot.audit.modules import Progress, no_progress
from aot.errors import AuditError
from aot.files import sha256_of
from aot.toolchain import Toolkit

# Supplied by the torch that is installed, never by the wheel.
_FROM_TORCH = frozenset({"libtorch.so"})
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")


@dataclass(frozen=True)
class WheelExpectation:
    """What a wheel must hold.

    Parameters
    ----------
    libraries
        Its shared libraries, by their name inside the wheel: no more and no fewer.
    notices
        Third parties whose code is linked in, such as ``"flashinfer"`` or ``"cutlass"``: the name
        of a file in a ``licenses`` folder must begin with each.
    files
        Patterns of other files, of which there must be one each.
    """

    libraries: Mapping[str, LibraryExpectation]
    notices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class WheelReport:
    """What a wheel holds, and what is wrong with it.

    Parameters
    ----------
    name
        File name of the wheel.
    size, sha256
        Of the file.
    platform
        The oldest system that its libraries run on, such as ``"manylinux_2_28_x86_64"``.
    licences
        The licence files in it.
    libraries
        One report each.
    wheel_findings
        Those about the wheel itself.
    """

    name: str
    size: int
    sha256: str
    platform: str
    licences: tuple[str, ...]
    libraries: tuple[LibraryReport, ...]
    wheel_findings: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those about the wheel and about its libraries."""
        inner = (finding for library in self.libraries for finding in library.findings)
        return (*self.wheel_findings, *inner)

    @property
    def passed(self) -> bool:
        """``True`` when no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


@dataclass(frozen=True)
class DeclaredBuild:
    """What a wheel says that it was built from.

    Parameters
    ----------
    preset, cuda, flashinfer, machine
        As in its manifest.
    architectures
        The targets of its modules: all of the preset's, or a part.
    """

    preset: str
    cuda: str
    flashinfer: str
    machine: str
    architectures: tuple[str, ...]


def declared_build(wheel: Path) -> DeclaredBuild:
    """Read what a wheel says of itself: the plan to compare it with.

    Raises
    ------
    AuditError
        When there is no such wheel, or none of this project.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            manifest = json.loads(archive.read("fp4aot/_manifest.json"))
        versions = manifest["versions"]
        targets = {name for one in manifest["modules"] for name in one["compiled_for"]}
        return DeclaredBuild(
            *(manifest["preset"], versions["cuda"], versions["flashinfer"], manifest["machine"]),
            tuple(sorted(targets)),
        )
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as cause:
        raise AuditError(
            f"{wheel} is not a fp4aot wheel with a readable manifest ({cause}); pass the path of a "
            "wheel that `python -m aot build` has written"
        ) from cause


def platform_tag(wheel: Path) -> str:
    """Name the oldest system that a wheel's libraries run on, beside any torch.

    Returns
    -------
    str
        Such as ``"manylinux_2_28_aarch64"``; ``"linux_aarch64"`` when they fit no manylinux policy.
        It is read from the libraries, so it is their machine's and not this one's.

    Raises
    ------
    AuditError
        When its RECORD lists no library, or it cannot be read.
    """
    # It remembers its answers by path, and a wheel may have been rewritten since.
    get_wheel_elfdata.cache_clear()
    try:
        result = analyze_wheel_abi(
            None, None, wheel, _FROM_TORCH, disable_isa_ext_check=False, allow_graft=False
        )
    except (AuditwheelError, zipfile.BadZipFile, RuntimeError, OSError) as cause:
        raise AuditError(f"auditwheel cannot tell the platform of {wheel.name}: {cause}") from cause
    return str(result.overall_policy.name)


def audit_wheel(
    wheel: Path,
    expectation: WheelExpectation,
    toolkit: Toolkit,
    progress: Progress = no_progress,
    earlier: WheelReport | None = None,
) -> WheelReport:
    """Read a wheel and compare it with what it must be.

    Parameters
    ----------
    wheel
        The file; its name need not carry its final platform tag yet.
    expectation
        What it must hold.
    toolkit
        Its ``cuobjdump`` lists the device code, its ``nvdisasm`` reads it.
    progress
        Is told how many images have been read.
    earlier
        What the same expectation found: a library that is the same byte for byte is not read again.

    Raises
    ------
    AuditError
        When it cannot be read as a wheel at all.
    ToolchainError
        When the toolkit lacks one of them.
    """
    platform = platform_tag(wheel)
    findings = list(_tag_findings(wheel, platform))
    reports = []
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        names = tuple(archive.namelist())
        licences = tuple(name for name in names if "licenses" in PurePosixPath(name).parts[:-1])
        findings += _licence_findings(wheel, licences, expectation.notices)
        findings += [
            Finding("error", f"holds no file {pattern}", wheel.name)
            for pattern in expectation.files
            if not fnmatch.filter(names, pattern)
        ]
        present = {name for name in names if re.search(r"\.so(\.\d+)*$", name)}
        for name in sorted(present ^ set(expectation.libraries)):
            what = "is in the wheel unplanned" if name in present else "is not in the wheel"
            findings.append(Finding("error", what, name))
        for name in sorted(present & set(expectation.libraries)):
            path = Path(archive.extract(name, scratch))
            digest = sha256_of(path)
            known = [one for one in earlier.libraries if one.sha256 == digest] if earlier else []
            reports.append(
                known[0]
                if known
                else audit_library(path, expectation.libraries[name], toolkit, name, progress)
            )
    return WheelReport(
        name=wheel.name,
        size=wheel.stat().st_size,
        sha256=sha256_of(wheel),
        platform=platform,
        licences=licences,
        libraries=tuple(reports),
        wheel_findings=tuple(findings),
    )


def _licence_findings(
    wheel: Path, licences: tuple[str, ...], notices: tuple[str, ...]
) -> Iterator[Finding]:
    files = [PurePosixPath(name).name.lower() for name in licences]
    if "license" not in files:
        yield Finding("error", "holds no licenses/LICENSE of its own", wheel.name)
    for notice in notices:
        if not any(file.startswith(notice.lower()) for file in files):
            yield Finding(
                "error",
                f"links in code of {notice} and carries no notice for it; "
                f"expected a file licenses/{notice}-…",
                wheel.name,
            )


def _tag_findings(wheel: Path, platform: str) -> Iterator[Finding]:
    """Compare the platform in the file's name with the one that its libraries allow."""
    try:
        tags = parse_wheel_filename(wheel.name)[3]
    except InvalidWheelFilename as cause:
        raise AuditError(f"{wheel.name} is not the name of a wheel: {cause}") from cause
    claimed = sorted(tag.platform for tag in tags)
    real = _MANYLINUX.fullmatch(platform)
    if real is None:
        yield Finding(
            "error",
            f"fits no manylinux policy ({platform}): it needs too new a C library, a processor "
            "extension, or a library that it does not carry",
            wheel.name,
        )
        return
    for name in claimed:
        claim = _MANYLINUX.fullmatch(name)
        if not name.endswith(f"_{real[3]}"):
            yield Finding("error", f"is tagged {name} and holds {real[3]} code", wheel.name)
        elif claim is None:
            yield Finding("warning", f"is tagged {name}, and can be tagged {platform}", wheel.name)
        elif (int(claim[1]), int(claim[2])) < (int(real[1]), int(real[2])):
            yield Finding(
                "error", f"is tagged {name}, and its libraries need {platform}", wheel.name
            )
