"""The software bill of materials of a wheel: CycloneDX, in ``.dist-info/sboms`` (PEP 770).

It lists what is compiled or linked into the library, not what was installed to build it. It has
neither a random serial number nor the time of day, so equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from aot.errors import BuildError
from aot.manifest import Compilers
from aot.plan import BuildPlan, Roots

NAME: Final = "fp4aot.cdx.json"
"""File name inside ``.dist-info/sboms``."""

_SCHEMA: Final = SchemaVersion.V1_6
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.fp4aot")
_CUDA_TERMS: Final = "NVIDIA CUDA Toolkit End User License Agreement"


@dataclass(frozen=True)
class Part:
    """Somebody's code in the library.

    Parameters
    ----------
    name
        As its authors call it.
    version
        Empty where its sources do not say.
    licence
        An SPDX expression, or the name of terms that SPDX has no identifier for.
    purl
        Type and namespace of its package URL: ``"pypi"``, ``"github/nvidia"``.
    use
        How it gets into the library.
    inside
        The part whose package its sources come in; empty where that is its own.
    """

    name: str
    version: str
    licence: str
    purl: str
    use: str
    inside: str = ""


def parts(
    plan: BuildPlan, roots: Roots, compilers: Compilers, static_runtime: Path
) -> tuple[Part, ...]:
    """List whose code is in a library of this plan, with the versions that the sources say.

    Raises
    ------
    BuildError
        When a version is no longer where it was.
    """
    flashinfer, tvm_ffi = "flashinfer-python", "apache-tvm-ffi"
    data = roots.flashinfer
    spdlog = data / "spdlog/include/spdlog"
    cutlass = _macros(
        data / "cutlass/include/cutlass/version.h",
        *("CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH"),
    )
    # 3006000 is 3.6.0
    (cccl,) = _macros(data / "cccl/libcudacxx/include/cuda/std/__cccl/version.h", "CCCL_VERSION")
    spdlog_version = _macros(
        spdlog / "version.h", *(f"SPDLOG_VER_{part}" for part in ("MAJOR", "MINOR", "PATCH"))
    )
    # 100201 is 10.2.1
    (fmt,) = _macros(spdlog / "fmt/bundled/core.h", "FMT_VERSION")
    dlpack = _macros(
        roots.tvm_ffi / "include/dlpack/dlpack.h", "DLPACK_MAJOR_VERSION", "DLPACK_MINOR_VERSION"
    )
    versions = plan.versions
    runtime, runtime_purl = _cuda_runtime(plan, static_runtime)
    compiled, headers = "compiled in", "headers, compiled in"
    return (
        Part(flashinfer, versions.flashinfer, "Apache-2.0", "pypi", compiled),
        # Its files carry no version of TensorRT-LLM.
        Part("TensorRT-LLM", "", "Apache-2.0", "github/nvidia", compiled, flashinfer),
        Part("cutlass", _dotted(cutlass), "BSD-3-Clause", "github/nvidia", headers, flashinfer),
        Part(
            "cccl",
            _dotted((cccl // 1_000_000, cccl // 1000 % 1000, cccl % 1000)),
            "Apache-2.0 WITH LLVM-exception AND Apache-2.0 AND BSD-3-Clause",
            *("github/nvidia", headers, flashinfer),
        ),
        Part("spdlog", _dotted(spdlog_version), "MIT", "github/gabime", headers, flashinfer),
        Part(
            "fmt",
            _dotted((fmt // 10_000, fmt // 100 % 100, fmt % 100)),
            *("MIT", "github/fmtlib", headers, flashinfer),
        ),
        Part(tvm_ffi, versions.tvm_ffi, "Apache-2.0", "pypi", compiled),
        Part("dlpack", _dotted(dlpack), "Apache-2.0", "github/dmlc", headers, tvm_ffi),
        Part("torch", versions.torch_headers, "BSD-3-Clause", "pypi", "headers of its stable ABI"),
        Part("nvidia-cuda-runtime", runtime, _CUDA_TERMS, runtime_purl, "linked in statically"),
        Part(
            *("libstdc++", compilers.host_version, "GPL-3.0-or-later WITH GCC-exception-3.1"),
            *("generic/gnu", "linked in statically"),
        ),
    )


def make_sbom(
    plan: BuildPlan,
    roots: Roots,
    library: Path,
    version: str,
    compilers: Compilers,
    static_runtime: Path,
    source_date_epoch: str | None = None,
) -> str:
    """Write the bill of materials of a wheel.

    Parameters
    ----------
    plan, roots
        What the library was built from, and where that is.
    library
        The finished library.
    version
        Version of the wheel.
    compilers
        What translated it.
    static_runtime
        The ``libcudart_static.a`` that was linked in.
    source_date_epoch
        Value of ``SOURCE_DATE_EPOCH``: its time stamp, in seconds. None or empty for none at all.

    Returns
    -------
    str
        CycloneDX 1.6 JSON.

    Raises
    ------
    BuildError
        When the version of a part cannot be read, or the time is not a number of seconds.
    OSError
        When the library or the runtime is not there.
    """
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    root = Component(
        name="fp4aot",
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="fp4aot",
        licenses=[_licence("Apache-2.0")],
        purl=PackageURL("pypi", None, "fp4aot", version),
        components=[_file(library.name, digest)],
    )
    rows = parts(plan, roots, compilers, static_runtime)
    components = {row.name: _component(row) for row in rows}
    components["nvidia-cuda-runtime"].components.add(
        _file(static_runtime.name, hashlib.sha256(static_runtime.read_bytes()).hexdigest())
    )
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, f"{plan.hash} {version} {digest}"),
        components=components.values(),
        metadata=BomMetaData(
            component=root,
            timestamp=_time(source_date_epoch),
            properties=_properties(
                {
                    "plan_hash": plan.hash,
                    "preset": plan.preset,
                    "nvcc": compilers.nvcc,
                    "host_compiler": compilers.host,
                }
            ),
        ),
    )
    bom.register_dependency(root, [components[row.name] for row in rows if not row.inside])
    for row in rows:
        inner = [components[other.name] for other in rows if other.inside == row.name]
        bom.register_dependency(components[row.name], inner)
    text = make_outputter(bom, OutputFormat.JSON, _SCHEMA).output_as_string()
    data = json.loads(text)
    if not source_date_epoch:
        del data["metadata"]["timestamp"]  # optional, and the library fills in the time of day
    return json.dumps(data, indent=2) + "\n"


def _component(part: Part) -> Component:
    kind, _, namespace = part.purl.partition("/")
    # Tags of these projects begin with a v; fmt's do not.
    tagged = kind == "github" and part.version and part.name != "fmt"
    tag = f"v{part.version}" if tagged else part.version
    properties = {"use": part.use} | ({"inside": part.inside} if part.inside else {})
    return Component(
        name=part.name,
        version=part.version or None,
        type=ComponentType.LIBRARY,
        bom_ref=part.name,
        scope=ComponentScope.REQUIRED,
        licenses=[_licence(part.licence)],
        purl=PackageURL(kind, namespace or None, part.name, tag or None),
        properties=_properties(properties),
    )


def _file(name: str, sha256: str) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    return Component(name=name, type=ComponentType.FILE, bom_ref=f"file:{name}", hashes=hashes)


def _licence(text: str) -> License:
    if text == _CUDA_TERMS:
        return DisjunctiveLicense(name=text)
    return LicenseExpression(text) if " " in text else DisjunctiveLicense(id=text)


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"fp4aot:{name}", value=value) for name, value in values.items()]


def _time(source_date_epoch: str | None) -> datetime | None:
    if not source_date_epoch:
        return None
    # Eleven digits end in the year 5138, and datetime in 9999.
    if not source_date_epoch.isdecimal() or len(source_date_epoch) > 11:
        raise BuildError(
            f"SOURCE_DATE_EPOCH is {source_date_epoch!r}; expected seconds since 1970, such as "
            "1767225600, or unset it"
        )
    return datetime.fromtimestamp(int(source_date_epoch), timezone.utc)


def _cuda_runtime(plan: BuildPlan, static_runtime: Path) -> tuple[str, str]:
    """Version and kind of the CUDA runtime: of a package, or of an installed toolkit."""
    # <site-packages>/nvidia/cu13/lib/libcudart_static.a
    site_packages = [*static_runtime.absolute().parents][3:4]
    metadata = "nvidia_cuda_runtime-*.dist-info/METADATA"
    for path in (path for folder in site_packages for path in sorted(folder.glob(metadata))):
        headers = HeaderParser().parsestr(path.read_text(errors="replace"), headersonly=True)
        return str(headers["Version"]), "pypi"
    return plan.versions.cuda, "generic/nvidia"


def _macros(header: Path, *names: str) -> tuple[int, ...]:
    try:
        text = header.read_text(errors="replace")
    except FileNotFoundError:
        raise BuildError(
            f"{header} is not there; the bill of materials needs its version"
        ) from None
    values = []
    for name in names:
        match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)\b", text, re.MULTILINE)
        if match is None:
            raise BuildError(f"{header} defines no {name}; the bill of materials needs it")
        values.append(int(match[1]))
    return tuple(values)


def _dotted(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))
