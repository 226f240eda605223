"""What went into a library and what came out, as the wheel carries it; and the licence notices.

Two files: ``_manifest.json``, which every `import fp4aot` reads and which is therefore short, and
``_provenance.json`` beside it with the whole plan, for ``doctor --verify`` and ``aot diff`` alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot.errors import BuildError
from aot.matrix import read_matrix
from aot.plan import BuildPlan, Roots
from aot.process import run

SOURCE_SUFFIXES = (".cpp", ".h", ".map")
"""Of the files in ``wheels/fp4aot/csrc``: what is compiled, and the linker's version script."""


@dataclass(frozen=True)
class Compilers:
    """What translated the sources.

    Parameters
    ----------
    nvcc
        Full version of the CUDA compiler.
    host
        How the C++ compiler names itself: ``"g++ (Debian 12.2.0-14) 12.2.0"``.
    host_version
        Its version alone: ``"12.2.0"``.
    """

    nvcc: str
    host: str
    host_version: str


def compilers_of(plan: BuildPlan, host_compiler: Path) -> Compilers:
    """Ask the C++ compiler who it is.

    Raises
    ------
    BuildError
        When it does not answer with a version.
    """
    name, version = (
        run([host_compiler, *options], purpose=f"ask {host_compiler} who it is", error=BuildError)
        .stdout.partition("\n")[0]
        .strip()
        for options in (["--version"], ["-dumpfullversion", "-dumpversion"])
    )
    if not name or not version[:1].isdigit():
        raise BuildError(
            f"{host_compiler} calls itself {name!r} and its version {version!r}; expected a name "
            "and a version such as 12.2.0: set CXX to a g++"
        )
    return Compilers(plan.versions.cuda_compiler, name, version)


def hash_operator_sources(folder: Path) -> dict[str, Any]:
    """Hash our own C++ sources: each, and all together.

    Parameters
    ----------
    folder
        ``wheels/fp4aot/csrc``. Sources within a module are in the plan.

    Returns
    -------
    dict
        ``files``: SHA-256 by name within it. ``sha256``: over the lines ``name, NUL, hash`` in the
        order of the names, as `fp4aot._verify.hash_of_sources` computes it again.

    Raises
    ------
    BuildError
        When there are none.
    """
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in SOURCE_SUFFIXES
    }
    if not files:
        raise BuildError(f"{folder} holds no operator sources; pass the folder wheels/fp4aot/csrc")
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return {"files": files, "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def make_provenance(
    plan: BuildPlan, compilers: Compilers, operator_sources: dict[str, Any]
) -> dict[str, Any]:
    """Return what went into a library, to the last flag.

    Parameters
    ----------
    plan
        What the library was built from; its hash can be computed again from what is returned.
    compilers
        What translated it.
    operator_sources
        What `hash_operator_sources` returned.
    """
    return {
        "plan": plan.to_json(),
        "compilers": asdict(compilers),
        "operator_sources": operator_sources,
    }


def read_plan(folder: Path) -> tuple[BuildPlan, Roots]:
    """Read back what `aot.pipeline.write` wrote."""
    plan = BuildPlan.from_json(json.loads((folder / "plan.json").read_text()))
    roots = json.loads((folder / "roots.json").read_text())
    return plan, Roots(**{name: Path(path) for name, path in roots.items()})


def make_manifest(plan: BuildPlan, library: Path, version: str) -> dict[str, Any]:
    """Return the manifest of a wheel.

    Parameters
    ----------
    plan
        What the library was built from.
    library
        The finished library.
    version
        Version of the wheel.

    Raises
    ------
    MatrixError
        When the release matrix, which says what driver is needed, cannot be read.
    """
    minimum_driver = read_matrix().minimum_driver(plan.versions.cuda)
    return {
        "version": version,
        "preset": plan.preset,
        "plan_hash": plan.hash,
        "lowering": plan.lowering,
        "machine": plan.machine,
        "versions": {
            "flashinfer": plan.versions.flashinfer,
            "tvm_ffi": plan.versions.tvm_ffi,
            "cuda": plan.versions.cuda,
            "cuda_compiler": plan.versions.cuda_compiler,
            "torch_minimum": plan.versions.torch_target,
            "torch_headers": plan.versions.torch_headers,
            # Of a CUDA version that is not released, nobody has said which one.
            **({"minimum_driver": minimum_driver} if minimum_driver else {}),
        },
        "modules": [
            {
                "name": module.name,
                "family": module.family,
                "architectures": list(module.images),
                "compiled_for": list(module.architectures),
                "functions": {
                    function.name: function.operator
                    for function in module.functions
                    if function.operator
                },
            }
            for module in plan.modules
        ],
        "library": {
            "name": library.name,
            "size": library.stat().st_size,
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        },
    }


def write_notices(roots: Roots, folder: Path) -> None:
    """Collect the licences of everything that is compiled or linked into the library.

    Whole licence files where a package ships one; the notice at the head of a header where the
    sources come without.

    Raises
    ------
    BuildError
        When one is not where it was: a wheel without its notices must not be published.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, text in _notices(roots):
        (folder / name).write_text(text)


def _notices(roots: Roots) -> Iterator[tuple[str, str]]:
    site_packages = roots.tvm_ffi.parent
    yield "flashinfer-LICENSE.txt", _licence(site_packages, "flashinfer_python-*", "LICENSE")
    yield "apache-tvm-ffi-LICENSE.txt", _licence(site_packages, "apache_tvm_ffi-*", "LICENSE")
    yield "apache-tvm-ffi-NOTICE.txt", _licence(site_packages, "apache_tvm_ffi-*", "NOTICE")
    yield "pytorch-LICENSE.txt", _licence(site_packages, "torch-*", "LICENSE")
    sources = roots.flashinfer
    yield "cutlass-NOTICE.txt", _notice(sources / "cutlass/include/cutlass/cutlass.h")
    yield "cccl-NOTICE.txt", _notice(sources / "cccl/cub/cub/cub.cuh")
    yield (
        "tensorrt-llm-NOTICE.txt",
        _notice(sources / "csrc/nv_internal/cpp/kernels/quantization.cu"),
    )
    spdlog = sources / "spdlog/include/spdlog"
    yield "spdlog-NOTICE.txt", _first_lines(spdlog / "spdlog.h", 2)
    yield "fmt-LICENSE.txt", _read(spdlog / "fmt/bundled/fmt.license.rst")
    # Apache-2.0 as TVM-FFI; its header names the authors only.
    yield "dlpack-NOTICE.txt", _first_lines(roots.tvm_ffi / "include/dlpack/dlpack.h", 5)
    yield "cuda-runtime-LICENSE.txt", _cuda_licence(roots.cuda)


def _cuda_licence(cuda: Path) -> str:
    """Read the terms of the static CUDA runtime, of packages or of an installed toolkit."""
    for folder, pattern in (
        (cuda.parent.parent, "nvidia_cuda_runtime-*.dist-info/**/License.txt"),
        (cuda, "EULA.txt"),
        (cuda, "LICENSE"),
    ):
        for path in sorted(folder.glob(pattern)):
            return path.read_text(errors="replace")
    raise BuildError(f"no licence of the CUDA runtime near {cuda}; the wheel must carry it")


def _licence(site_packages: Path, distribution: str, name: str) -> str:
    for path in sorted(site_packages.glob(f"{distribution}.dist-info/**/{name}")):
        return path.read_text(errors="replace")
    raise BuildError(f"{distribution} in {site_packages} ships no {name}; the wheel must carry it")


def _notice(header: Path) -> str:
    """Return the comment at the head of a source file."""
    lines = []
    for line in _read(header).splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("/*", "*", "//")):
            break
        lines.append(line)
    text = "\n".join(lines).strip()
    if "icense" not in text:
        raise BuildError(f"{header} does not begin with a licence notice any more")
    return text + "\n"


def _first_lines(header: Path, count: int) -> str:
    return "\n".join(_read(header).splitlines()[:count]) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        raise BuildError(f"the notice {path} is not there; the wheel must carry it") from None
