"""From a preset's name to a plan on disk: toolkit, FlashInfer environment, specifications, plan."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from aot import catalog, costs, environment, files, specs, toolchain
from aot.codegen.cmake import cmake_variables
from aot.codegen.flashinfer_functions import flashinfer_functions
from aot.codegen.kernel_table import kernel_table
from aot.codegen.schema_probe import schema_probe
from aot.compile.job import Job
from aot.compile.job_list import JobList
from aot.compile.jobs import make_jobs
from aot.compile.keys import make_key_maker
from aot.compile.store import ObjectStore
from aot.environment import FlashInferEnvironment
from aot.errors import PlanError
from aot.exports import check_exports
from aot.host_compiler import HostCompiler, find_host_compiler
from aot.lowering import LOWERED_VERSION
from aot.lowering.toolkit import make_toolkit
from aot.manifest import compilers_of
from aot.operator_sources import check_operators
from aot.plan import BuildPlan, Roots, make_plan, narrowed, preset_named
from aot.platform_tools import PlatformTools, find_platform_tools
from aot.platforms import platform_named
from aot.toolchain import Toolkit

SOURCE_ROOT = Path(__file__).resolve().parent.parent
# sccache before 0.18 runs nvcc's steps as `nvcc --dryrun` lists them, and misreads the list of CUDA
# 13.3 and newer: "fatbinary fatal: Could not open input file". C++ is cached, and the object store
# works as ever.
_FIRST_WITHOUT_CACHE: Final = Version("13.3")
SOURCE_DATE_EPOCH: Final = "1767225600"
"""Time stamp of everything in a wheel, unless the environment has another: 2026-01-01. So a wheel
that is built again has the same bytes."""
_UNIX_SOCKET_LIMIT = 100  # sun_path holds 108 bytes
# A server that is compiling and gets no new request counts as idle, and takes its compilers along:
# longer than any unit. A build stops its server when it ends.
_IDLE_SECONDS = "7200"


@dataclass(frozen=True)
class Folders:
    """The folders of one checkout's builds. Nothing is written outside `root`.

    Folders that builds share may be links. They are resolved: Python and FlashInfer name real
    paths, and a plan knows its folders by their paths.
    """

    root: Path

    @property
    def toolchain(self) -> Path:
        """CUDA toolkits installed from packages."""
        return (self.root / "toolchain").resolve()

    @property
    def environments(self) -> Path:
        """One virtual environment for each FlashInfer version."""
        return (self.root / "environments").resolve()

    @property
    def lowering(self) -> Path:
        """Toolkits that make machine code for Hopper, by version of the real one."""
        return self.root / "lowering"

    @property
    def workspace(self) -> Path:
        """What FlashInfer's generators write."""
        return self.root / "flashinfer"

    @property
    def object_cache(self) -> Path:
        """The compilers' results, by content."""
        return self.root / "cache"

    @property
    def objects(self) -> Path:
        """Finished objects, by what they are made from."""
        return self.root / "objects"

    @property
    def scratch(self) -> Path:
        """Objects that are being made."""
        return self.root / "compiling"

    @property
    def logs(self) -> Path:
        """What the compilers printed."""
        return self.root / "logs"

    @property
    def wheel(self) -> Path:
        """The build backend's folder."""
        return self.root / "wheel"

    @property
    def generated(self) -> Path:
        """What is made from the plan."""
        return self.wheel / "plan"

    @property
    def planned(self) -> Path:
        """The same for a plan that is only shown."""
        return self.root / "planned"

    @property
    def costs(self) -> Path:
        """What compiling took."""
        return self.root / "costs.json"

    @property
    def record(self) -> Path:
        """What the last build did, job by job."""
        return self.root / "record.json"

    @property
    def report(self) -> Path:
        """The same as a page."""
        return self.root / "report.html"


@dataclass(frozen=True)
class Prepared:
    """Everything that a build starts from.

    Parameters
    ----------
    plan, roots
        What is built, and where its tokens point.
    toolkit
        The CUDA toolkit.
    nvcc
        The compiler that makes device code: that of the toolkit, unless the plan is lowered.
    environment, host_compiler, folders
        FlashInfer's environment, the C++ compiler, and where things are written.
    tools
        What the library is linked with, for the machine that it is for.
    """

    plan: BuildPlan
    roots: Roots
    toolkit: Toolkit
    nvcc: Path
    environment: FlashInferEnvironment
    host_compiler: HostCompiler
    folders: Folders
    tools: PlatformTools


def prepare(
    preset: str,
    build_root: Path,
    *,
    cuda: str | None = None,
    flashinfer: str | None = None,
    architectures: Sequence[str] = (),
    machine: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Find or install what a build needs, and plan it.

    Parameters
    ----------
    preset
        Name of a preset.
    build_root
        Folder for everything that is written.
    cuda, flashinfer
        Versions; by default the catalogue's.
    architectures
        Only these of the preset's targets; by default all.
    machine
        What the wheel runs on, ``"x86_64"`` or ``"aarch64"``; by default this machine.
    report
        Is told what is going on, a line a step.

    Raises
    ------
    AotError
        Naming the step that failed and what to do.
    """
    chosen = narrowed(preset_named(preset), architectures)
    folders = Folders(build_root.resolve())
    if any(character.isspace() for character in str(folders.root)):
        raise PlanError(
            f"the build folder is '{folders.root}'; FlashInfer separates its flags by blanks, so "
            "its path must have none: move the checkout, or pass another --build-root"
        )
    platform = platform_named(machine)
    compiler = find_host_compiler(platform.machine)
    report(f"CUDA {cuda or catalog.DEFAULT_CUDA}: finding or installing the toolkit")
    toolkit = toolchain.find_or_install(cuda or catalog.DEFAULT_CUDA, folders.toolchain)
    tools = find_platform_tools(platform, compiler, toolkit, folders.toolchain)
    report(f"FlashInfer {flashinfer or catalog.DEFAULT_FLASHINFER}: preparing its environment")
    flashinfer_environment = environment.ensure(
        flashinfer or catalog.DEFAULT_FLASHINFER, folders.environments
    )
    report("reading FlashInfer's specifications")
    specifications = specs.read(chosen.modules, flashinfer_environment, toolkit, folders.workspace)
    plan, roots = make_plan(
        chosen, specifications, flashinfer_environment, toolkit, platform.machine
    )
    check_operators(plan, roots.operators / "operators")
    check_exports(plan, roots)
    nvcc = toolkit.nvcc
    if chosen.lowered:
        report("making a toolkit that lowers to Hopper: what it builds is for tests alone")
        folder = folders.lowering / str(toolkit.compiler_version)
        folder.parent.mkdir(parents=True, exist_ok=True)
        nvcc = make_toolkit(toolkit.root, folder) / "bin" / "nvcc"
    return Prepared(plan, roots, toolkit, nvcc, flashinfer_environment, compiler, folders, tools)


def write(prepared: Prepared, folder: Path) -> tuple[Job, ...]:
    """Write the plan and the sources that depend on it, each only if it changed; return the jobs.

    Parameters
    ----------
    prepared
        What `prepare` returned.
    folder
        Gets ``plan.json``, ``roots.json``, ``units.cmake``, ``kernel_entries.cpp``,
        ``flashinfer_functions.h`` and ``schema_probe.cpp``.
    """
    plan = prepared.plan
    files.write_json(folder / "plan.json", plan.to_json())
    files.write_json(folder / "roots.json", {k: str(v) for k, v in vars(prepared.roots).items()})
    files.write_text(folder / "kernel_entries.cpp", kernel_table(plan))
    files.write_text(folder / "flashinfer_functions.h", flashinfer_functions(catalog.MODULES))
    files.write_text(folder / "schema_probe.cpp", schema_probe(plan))
    jobs = jobs_of(prepared, folder)
    store = ObjectStore(prepared.folders.objects)
    variables = cmake_variables(
        plan,
        prepared.roots,
        [(job, store.path(job)) for job in jobs],
        host_compiler=prepared.host_compiler.path,
        tools=prepared.tools,
        prefix_maps=prefix_maps(prepared),
    )
    files.write_text(folder / "units.cmake", variables)
    files.write_json(folder / "jobs.json", job_list(prepared, jobs).to_json())
    return jobs


def job_list(prepared: Prepared, jobs: tuple[Job, ...]) -> JobList:
    """Put the jobs of a build together with the folders and the cache that they are run with."""
    folders = prepared.folders
    return JobList(
        jobs=jobs,
        objects=folders.objects,
        scratch=folders.scratch,
        logs=folders.logs,
        costs=folders.costs,
        launcher=tuple(object_cache_command(folders.object_cache)),
    )


def jobs_of(prepared: Prepared, generated: Path) -> tuple[Job, ...]:
    """List the compiler runs of a build.

    Parameters
    ----------
    prepared
        What `prepare` returned.
    generated
        Where `write` has put the sources that depend on the plan.
    """
    name = compilers_of(prepared.plan, prepared.host_compiler.path).host
    return make_jobs(
        prepared.plan,
        prepared.roots,
        generated,
        nvcc=prepared.nvcc,
        host_compiler=prepared.host_compiler.path,
        prefix_maps=prefix_maps(prepared),
        keys=make_key_maker(prepared.plan, name, (prepared.roots.operators, generated)),
        known=costs.read_costs(prepared.folders.costs),
        caches_device_code=prepared.toolkit.version < _FIRST_WITHOUT_CACHE,
    )


def prefix_maps(prepared: Prepared) -> tuple[tuple[str, str], ...]:
    """List this machine's folders and the names that compilers give them instead.

    The audit looks for the same folders: none may be named in a library.
    """
    # The longest first: the build folder usually lies inside the checkout.
    return (
        (str(prepared.environment.site_packages), "/usr/src"),
        (str(prepared.toolkit.root), "/usr/local/cuda"),
        (str(prepared.folders.root), "/usr/src/build"),
        (str(SOURCE_ROOT), "/usr/src/fp4aot"),
    )


def version_variables(plan: BuildPlan) -> dict[str, str]:
    """Environment of the build backend: the label that a wheel of this plan carries."""
    return {"FP4AOT_LOCAL_VERSION": LOWERED_VERSION if plan.lowering else ""}


def object_cache_command(folder: Path) -> list[str]:
    """Command that runs a compiler through the object cache, or nothing where sccache is missing.

    A cache that the user has configured through ``SCCACHE_*`` keeps its configuration.
    """
    program = object_cache_program()
    if program is None:
        return []
    return ["env", *(f"{k}={v}" for k, v in object_cache_variables(folder).items()), str(program)]


def object_cache_program() -> Path | None:
    """Find sccache beside this interpreter, or on the path."""
    for folder in (sysconfig.get_path("scripts"), Path(sys.executable).parent, None):
        found = shutil.which("sccache", path=None if folder is None else str(folder))
        if found:
            return Path(found)
    return None


def object_cache_variables(folder: Path) -> dict[str, str]:
    """Environment of sccache: its files inside the build folder, and a server of its own.

    Another server on this machine would write into a cache of its own choosing. What the user has
    set stays as it is, and is not repeated here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"SCCACHE_DIR": str(folder), "SCCACHE_IDLE_TIMEOUT": _IDLE_SECONDS}
    socket = folder / "server.sock"
    if len(str(socket)) <= _UNIX_SOCKET_LIMIT:
        variables["SCCACHE_SERVER_UDS"] = str(socket)
    return {name: value for name, value in variables.items() if name not in os.environ}
