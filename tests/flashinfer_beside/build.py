"""Bundle FlashInfer with prebuilt modules: ``python tests/flashinfer_beside/build.py FOLDER``.

FlashInfer looks for ahead-of-time modules in ``flashinfer/data/aot/<name>/<name>.so``. The bundle
holds its Python package with such libraries, linked as its JIT links them, but from the very object
files that our wheel is linked from. So whatever differs between the two is not the kernels.

It reads ``build/wheel``: the plan and the objects of the wheel that was built last. (Where it has
an entry of ours in place of FlashInfer's binding, FlashInfer's is compiled along: `binding.py`.)
FOLDER gets one archive, which `use.py` imports FlashInfer from on a machine with torch; nothing
else has to travel there. FlashInfer's C++ and CUDA sources are left out, but for a few that its
Python copies: nothing can be compiled from the bundle.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from aot import locks, process  # noqa: E402
from aot.command_line import DEFAULT_BUILD_ROOT  # noqa: E402
from aot.compile.job_list import JobList  # noqa: E402
from aot.errors import AotError, BuildError, PlanError  # noqa: E402
from aot.host_compiler import find_host_compiler  # noqa: E402
from aot.lowering.tensor_map_coordinates import (  # noqa: E402
    TENSOR_MAP_SOURCE,
    WRAPPED_FUNCTIONS,
    compiler_flags,
)
from aot.plan import BuildPlan, Roots  # noqa: E402
from flashinfer_beside import binding  # noqa: E402
from flashinfer_beside.use import ARCHIVE, DESCRIPTION, NEEDS, SITE  # noqa: E402

AOT_FOLDER = Path("flashinfer") / "data" / "aot"

# FlashInfer picks a module by the device's capability, and a lowered one answers on a Hopper: as
# it is, and where `use.as_capability` says 12.0.
LOWERED_ALIASES: Mapping[str, tuple[str, ...]] = {
    "fp4_quantization_100": ("fp4_quantization_90", "fp4_quantization_120f"),
}

# What `import flashinfer` needs beside torch and numpy. The machine's own packages come first.
PURE_NEEDS = (
    *("certifi", "charset-normalizer", "click", "einops", "filelock", "idna", "jinja2"),
    *("markupsafe", "nvidia-ml-py", "packaging", "requests", "tabulate", "tqdm"),
    *("typing-extensions", "urllib3"),
)
TVM_FFI = "apache-tvm-ffi"

# Of a package that is there to be imported, not compiled against.
LEFT_OUT = re.compile(
    # Templates stay, and what is copied beside them: FlashInfer renders and copies these also where
    # it compiles nothing.
    r"(^flashinfer/data/(?!csrc/([^/]+\.jinja|(group_)?gemm_\w*sm120\w*\.cu)$))"
    r"|(^tvm_ffi/(3rdparty|include|share|src)/)"
    r"|(__pycache__/)|(^(?!flashinfer/data/).*\.(a|c|cu|cuh|h|md|pyi|pyx|pxi)$)"
)


@dataclass(frozen=True)
class Built:
    """A finished build: its plan, the paths it refers to, and each module's objects by unit."""

    plan: BuildPlan
    roots: Roots
    objects: Mapping[str, Mapping[str, Path]]


def read_build(folder: Path, only: Sequence[str] = ()) -> Built:
    """Read ``build/wheel``.

    Raises
    ------
    PlanError
        When there is no plan, no such module, or an object is missing.
    """
    plan_file, roots_file = folder / "plan" / "plan.json", folder / "plan" / "roots.json"
    if not plan_file.is_file():
        raise PlanError(f"{plan_file} does not exist; run `python -m aot build` first")
    plan = BuildPlan.from_json(json.loads(plan_file.read_text()))
    roots = Roots(**{name: Path(path) for name, path in json.loads(roots_file.read_text()).items()})
    names = [module.name for module in plan.modules]
    if unknown := sorted(set(only) - set(names)):
        raise PlanError(f"the plan has no {', '.join(unknown)}; it has {', '.join(names)}")
    chosen = [module for module in plan.modules if not only or module.name in only]
    jobs = JobList.from_json(json.loads((folder / "plan" / "jobs.json").read_text()))
    objects = {
        module.name: {
            job.unit: jobs.store.path(job) for job in jobs.jobs if job.module == module.name
        }
        for module in chosen
    }
    missing = [path for made in objects.values() for path in made.values() if not path.is_file()]
    if missing:
        raise PlanError(
            f"{len(missing)} objects are not built, {missing[0]} the first; finish the build"
        )
    return Built(plan, roots, objects)


def link(built: Built, module: str, out: Path, compiler: Path) -> None:
    """Link one module as FlashInfer's JIT does.

    TVM-FFI's functions stay undefined: Python's ``tvm_ffi`` has them in the global scope. Unlike
    there, the CUDA runtime is static, so that no toolkit is needed where the library runs.

    Raises
    ------
    BuildError
        When it does not link, or needs a function of CUDA's or FlashInfer's that is not in it.
    """
    runtime = built.roots.cuda / "lib64" / "libcudart_static.a"
    objects = [*built.objects[module].values()]
    if module in binding.BINDINGS:
        planned = next(planned for planned in built.plan.modules if planned.name == module)
        objects = binding.objects_with_binding(
            built.plan, built.roots, planned, built.objects[module], out.parent, compiler
        )
    added: list[str | Path] = []
    if built.plan.lowering:
        # The same replacement of tensor maps as in the lowered wheel.
        wrapper = out.with_suffix(".tensor_map.o")
        process.run(
            [
                *(compiler, "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden"),
                *(f"-isystem{built.roots.cuda / 'include'}", *compiler_flags()),
                *("-c", TENSOR_MAP_SOURCE, "-o", wrapper),
            ],
            purpose="compile the tensor map wrapper",
            error=BuildError,
        )
        added = [wrapper, *(f"-Wl,--wrap={name}" for name in WRAPPED_FUNCTIONS)]
    process.run(
        [
            *(compiler, "-shared", "-o", out, *objects, *added),
            *(runtime, "-lrt", "-lpthread", "-ldl"),
            # A second CUDA runtime must not lend its symbols to torch's, nor take them from it.
            *("-Wl,--exclude-libs,ALL", "-Wl,--strip-all"),
        ],
        purpose=f"link {module} for FlashInfer",
        error=BuildError,
    )
    symbols = process.run(
        ["nm", "-D", "--undefined-only", out], purpose=f"read {out.name}", error=BuildError
    ).stdout.split()
    if strays := sorted(name for name in symbols if re.match(r"_*cu(da)?[A-Z]", name)):
        raise BuildError(f"{out.name} needs {', '.join(strays)}, which nothing gives it")
    if module in binding.BINDINGS and (unmet := binding.absent_from(symbols)):
        raise BuildError(f"{out.name} needs {unmet[0]} and {len(unmet) - 1} more of FlashInfer's")


def download(requirements: Iterable[str], lock: Path, python_version: str, folder: Path) -> None:
    """Fetch the wheels of some packages for another Python, checked against the lock's hashes."""
    wanted = "\n".join(lines_of(lock.read_text(), requirements, python_version))
    (folder / "requirements.txt").write_text(wanted + "\n")
    # pip matches a platform tag exactly.
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    python = process.python_with_pip(folder, error=BuildError)
    process.run(
        [
            *(python, "-I", "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python_version),
            *(word for tag in tags for word in ("--platform", tag)),
            *("--dest", folder, "--requirement", folder / "requirements.txt"),
        ],
        purpose=f"fetch FlashInfer's needs for Python {python_version}",
        error=BuildError,
    )


def lines_of(lock: str, names: Iterable[str], python_version: str) -> list[str]:
    """Pick some packages' entries out of a lock, without their environment markers.

    Raises
    ------
    PlanError
        When a package has not exactly one entry that fits.
    """
    from packaging.requirements import Requirement

    environment = {"python_full_version": f"{python_version}.0", "python_version": python_version}
    entries = [entry for entry in re.split(r"\n(?=\S)", lock) if "==" in entry]
    picked = []
    for name in names:
        fitting = []
        for entry in entries:
            head, *hashes = entry.replace("\\\n", "\n").split("\n")
            requirement = Requirement(head.strip())
            marker = requirement.marker
            if requirement.name == name and (marker is None or marker.evaluate(environment)):
                pinned = f"{requirement.name}{requirement.specifier}"
                fitting.append(" ".join([pinned, *(line.strip() for line in hashes)]).strip())
        if len(fitting) != 1:
            raise PlanError(f"the lock has {len(fitting)} entries for {name}, and needs one")
        picked += fitting
    return picked


def pack(archive: Path, built: Built, wheels: Path, libraries: Mapping[str, Path]) -> None:
    """Write the archive: packages, libraries, and a description of it all."""
    site = built.roots.flashinfer.parents[1]
    aliases = LOWERED_ALIASES if built.plan.lowering else {}
    description = {
        "flashinfer": built.plan.versions.flashinfer,
        "plan_hash": built.plan.hash,
        "lowering": built.plan.lowering,
        "libraries": {
            name: {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "also_named": list(aliases.get(name, ())),
            }
            for name, path in libraries.items()
        },
    }
    # A mild preset: what is in there compresses well enough, and this takes seconds.
    with tarfile.open(archive, "w:xz", preset=1) as tar:
        _add_bytes(tar, DESCRIPTION, json.dumps(description, indent=2).encode())
        for folder in (site / "flashinfer", *site.glob("flashinfer_python-*.dist-info")):
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(site).as_posix()
                if path.is_file() and not LEFT_OUT.search(name):
                    tar.add(path, f"{SITE}/{name}", filter=_anonymous)
        for wheel in sorted(wheels.glob("*.whl")):
            place = SITE if wheel.name.startswith(TVM_FFI.replace("-", "_")) else NEEDS
            with zipfile.ZipFile(wheel) as content:
                for member in content.infolist():
                    if not member.is_dir() and not LEFT_OUT.search(member.filename):
                        data = content.read(member)
                        _add_bytes(tar, f"{place}/{member.filename}", data)
        for name, path in libraries.items():
            tar.add(path, f"{SITE}/{AOT_FOLDER}/{name}/{name}.so", filter=_anonymous)
            for alias in aliases.get(name, ()):
                link = tarfile.TarInfo(f"{SITE}/{AOT_FOLDER}/{alias}/{alias}.so")
                link.type = tarfile.SYMTYPE
                link.linkname = f"../{name}/{name}.so"
                tar.addfile(link)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def build(folder: Path, build_root: Path, python_version: str, only: Sequence[str] = ()) -> Path:
    """Make the bundle and return its archive."""
    built = read_build(build_root / "wheel", only)
    lock = next(
        lock
        for lock in locks.available("flashinfer")
        if str(lock.version) == built.plan.versions.flashinfer
    )
    compiler = find_host_compiler().path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        libraries = {}
        for module in built.objects:
            libraries[module] = scratch / f"{module}.so"
            link(built, module, libraries[module], compiler)
        wheels = scratch / "wheels"
        wheels.mkdir()
        download((TVM_FFI, *PURE_NEEDS), lock.path, python_version, wheels)
        archive = folder / ARCHIVE
        pack(archive, built, wheels, libraries)
    return archive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="gets the archive")
    parser.add_argument("--build-root", type=Path, default=DEFAULT_BUILD_ROOT)
    parser.add_argument("--python-version", default="3.12", help="of the machine with the GPU")
    parser.add_argument("--module", action="append", default=[], help="only this one; repeatable")
    arguments = parser.parse_args()
    try:
        archive = build(
            arguments.folder,
            arguments.build_root.resolve(),
            arguments.python_version,
            arguments.module,
        )
    except AotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
