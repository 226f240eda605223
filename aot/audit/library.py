"""Audit one shared library."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot.architectures import Architecture
from aot.audit import images, symbols
from aot.audit.findings import Finding, shortened
from aot.audit.modules import DeviceUnit, ModuleImages, Progress, audit_modules, no_progress
from aot.errors import AuditError
from aot.files import sha256_of
from aot.toolchain import Toolkit

_PRINTABLE = re.compile(rb"[\x20-\x7e]*")


@dataclass(frozen=True)
class LibraryExpectation:
    """What a library must hold.

    Parameters
    ----------
    images
        Its machine code: the targets, no more and no fewer, each with the number of images, or
        ``None`` for any number.
    ptx
        The targets of its PTX; by default it carries none.
    exports
        Patterns of the dynamic symbols that it may show.
    needed, undefined
        Patterns of the libraries and symbols that it may ask for.
    forbidden_prefixes
        Folders of the build machine, none of which may be named in it.
    units
        The translation units with device code, in the order of the plan: each image is then known
        by its module, and its machine code is read.
    machine
        What its host code must be for: ``"x86_64"`` or ``"aarch64"``.
    """

    images: Mapping[Architecture, int | None]
    ptx: tuple[Architecture, ...] = ()
    exports: tuple[str, ...] = ()
    needed: tuple[str, ...] = symbols.ALLOWED_NEEDED
    undefined: tuple[str, ...] = symbols.ALLOWED_UNDEFINED
    forbidden_prefixes: tuple[str, ...] = ()
    units: tuple[DeviceUnit, ...] = ()
    machine: str = "x86_64"


@dataclass(frozen=True)
class LibraryReport:
    """What a library holds, and what is wrong with it.

    Parameters
    ----------
    name
        How the report calls it: a path, or the name inside a wheel.
    size, sha256
        Of the file.
    images, ptx
        Number of images for each target, as text such as ``"12.0f"``.
    needed
        Libraries it asks for.
    exports, undefined
        Its dynamic symbols; those it asks for carry their version.
    c_library, c_library_symbols
        The newest version of the C library it asks for, such as ``"2.17"``, and by which symbols.
    findings
        Empty when all is as expected.
    modules
        Its images by module and target, where the expectation names its units.
    machine
        What its host code runs on.
    """

    name: str
    size: int
    sha256: str
    images: Mapping[str, int]
    ptx: Mapping[str, int]
    needed: tuple[str, ...]
    exports: tuple[str, ...]
    undefined: tuple[str, ...]
    c_library: str
    c_library_symbols: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    modules: tuple[ModuleImages, ...] = ()
    machine: str = ""

    @property
    def passed(self) -> bool:
        """``True`` when no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


def audit_library(
    path: Path,
    expectation: LibraryExpectation,
    toolkit: Toolkit,
    name: str | None = None,
    progress: Progress = no_progress,
) -> LibraryReport:
    """Read a shared library and compare it with what it must be.

    Parameters
    ----------
    path
        The library.
    expectation
        What it must hold.
    toolkit
        Its ``cuobjdump`` lists the device code, its ``nvdisasm`` reads it.
    name
        How the report calls it; by default its path.
    progress
        Is told how many images have been read.

    Raises
    ------
    AuditError
        When the file cannot be read as a shared library at all.
    ToolchainError
        When the toolkit has no ``cuobjdump``.
    """
    where = name or str(path)
    if not path.is_file():
        raise AuditError(f"there is no library {path}")
    device_code = images.read_images(path, toolkit)
    dynamic = symbols.read_dynamic(path)
    c_library, c_library_symbols = dynamic.newest_c_library()
    image_problems = tuple(_image_problems(device_code, expectation))
    modules: tuple[ModuleImages, ...] = ()
    # Where images are missing, those that are left cannot be told apart.
    if expectation.units and not image_problems:
        modules, image_problems = audit_modules(
            path, device_code, expectation.units, toolkit, progress
        )
    problems = [
        *image_problems,
        *_dynamic_problems(dynamic, expectation),
        *_path_problems(path, expectation.forbidden_prefixes),
    ]
    return LibraryReport(
        name=where,
        size=path.stat().st_size,
        sha256=sha256_of(path),
        images=_as_text(images.count_images(device_code, "cubin")),
        ptx=_as_text(images.count_images(device_code, "ptx")),
        needed=dynamic.needed,
        exports=tuple(str(symbol) for symbol in dynamic.exported),
        undefined=tuple(str(symbol) for symbol in dynamic.undefined),
        c_library=c_library,
        c_library_symbols=c_library_symbols,
        findings=tuple(Finding("error", problem, where) for problem in problems),
        modules=modules,
        machine=dynamic.machine,
    )


def _as_text(counts: Mapping[Architecture, int]) -> dict[str, int]:
    return {str(architecture): count for architecture, count in counts.items()}


def _image_problems(
    found: tuple[images.Image, ...], expectation: LibraryExpectation
) -> Iterator[str]:
    """Compare device code with what the plan says, target by target."""
    counts = images.count_images(found, "cubin")
    for architecture in sorted(set(counts) | set(expectation.images)):
        count = counts.get(architecture, 0)
        if architecture not in expectation.images:
            yield f"holds {count} images for {architecture}, which its plan does not list"
        elif count == 0:
            yield f"holds no image for {architecture}, which its plan lists"
        else:
            wanted = expectation.images[architecture]
            if wanted is not None and wanted != count:
                yield f"holds {count} images for {architecture}; its plan makes {wanted}"
    ptx = set(images.count_images(found, "ptx"))
    if ptx != set(expectation.ptx):
        listed = " ".join(map(str, sorted(ptx))) or "none"
        wanted_ptx = " ".join(map(str, sorted(expectation.ptx))) or "none"
        yield f"holds PTX for: {listed}; expected: {wanted_ptx}"
    if any(image.kind == "nvvm" for image in found):
        yield "holds device code for a link-time compile that never happened"


def _dynamic_problems(
    dynamic: symbols.DynamicInfo, expectation: LibraryExpectation
) -> Iterator[str]:
    """Check what the loader will see."""
    if dynamic.machine != expectation.machine:
        yield (
            f"is a library for {dynamic.machine}; its plan is for {expectation.machine}. Build it "
            f"with the host compiler and the CUDA runtime of {expectation.machine}"
        )
    foreign = dynamic.foreign_libraries(expectation.needed)
    if foreign:
        yield (
            f"needs {shortened(foreign)}; allowed are {', '.join(expectation.needed)}. "
            "Link it statically, or leave it to torch"
        )
    if dynamic.run_paths:
        yield (
            f"has the run path {shortened(dynamic.run_paths)}: it would load libraries from "
            "there; link without -rpath"
        )
    shown = tuple(
        symbol.name
        for symbol in dynamic.exported
        if not symbols.matches(symbol.name, expectation.exports)
    )
    if shown:
        yield (
            f"exports {shortened(shown)}, which can clash with other libraries in the process; "
            "the version script must hide them"
        )
    unique = tuple(s.name for s in dynamic.exported + dynamic.undefined if s.binding == "unique")
    if unique:
        yield (
            f"has process-wide unique symbols: {shortened(unique)}; "
            "compile host code with -fno-gnu-unique"
        )
    missing = dynamic.foreign_symbols(expectation.undefined)
    if missing:
        yield (
            f"asks for {shortened(tuple(map(str, missing)))}, which neither the C library nor "
            f"torch's stable ABI supplies: it would not load"
        )
    if dynamic.text_relocations:
        yield "has text relocations, which hardened systems refuse; compile with -fPIC"
    if dynamic.executable_stack:
        yield "asks for an executable stack, which newer C libraries refuse to load"


def _path_problems(path: Path, prefixes: tuple[str, ...]) -> Iterator[str]:
    """Look for folders of the build machine anywhere in the file."""
    if not prefixes or path.stat().st_size == 0:
        return
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for prefix in prefixes:
            # A whole path: a checkout in /src is not what /usr/src names.
            whole = rb"(?<![\w.+-])" + re.escape(prefix.encode()) + rb"(?![\w.+-])"
            found = re.search(whole, data)
            if found is None:
                continue
            example = _PRINTABLE.match(data, found.start())
            text = example[0].decode() if example else prefix
            yield (
                f"names a folder of the build machine: {text[:200]!r}; "
                "compile with -ffile-prefix-map"
            )
