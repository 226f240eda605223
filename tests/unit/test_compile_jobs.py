"""From a plan to compiler runs: FlashInfer's flags, our own sources, and what they cost."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from plans import plan_of, roots_of

from aot.compile.job import Job
from aot.compile.jobs import make_jobs, mapped, prefix_map_flags
from aot.compile.keys import KeyMaker, make_key_maker
from aot.compile.own_sources import (
    COMMON_FLAGS,
    GENERATED,
    TVM_FFI_FLAGS,
    own_sources,
    torch_target_macro,
)
from aot.costs import Cost, Measured
from aot.errors import PlanError
from aot.estimates import estimate
from aot.plan import TVM_FFI_SOURCES, BuildPlan, ModulePlan, Unit

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = Path("/usr/bin/g++")
NVCC = Path("/opt/cuda/bin/nvcc")
SHIM = Path("/checkout/build/lowering/13.0.88/bin/nvcc")
"""The compiler of a toolkit that lowers."""
CUDA_FLAGS = (
    *("-isystem", "@CUDA@/include", "-I@FLASHINFER@/csrc", "-O3", "-DENABLE_FP4", "-O3"),
    *("-gencode=arch=compute_120f,code=sm_120f", "-Xcompiler=-fno-gnu-unique"),
)
HOST_FLAGS = ("-I@PYTHON_INCLUDE@", "-isystem@TVM_FFI@/include", "-DNAME=a b", '-DQUOTED="a"')
GEMM = "@WORKSPACE@/gen/gen_gemm_sm120_cutlass_fp4/fp4_gemm_cutlass_half_128_64_128.cu"


def unit(name: str, language: str, flags: tuple[str, ...], source: str = "") -> Unit:
    suffix = "cu" if language == "cuda" else "cpp"
    source = source or f"@FLASHINFER@/csrc/{name}.{suffix}"
    return Unit(name, source, language, flags, "0" * 64)


PLAN = plan_of(
    ModulePlan(
        *("gemm", "gemm", ("10.0a", "12.0f"), ("10.0a", "12.0f")),
        (unit("large", "cuda", CUDA_FLAGS, GEMM), unit("binding", "c++", HOST_FLAGS)),
        (),
    ),
    ModulePlan("kv", "kv", ("9.0a",), ("9.0a",), (unit("large", "cuda", ("-O1",)),), ()),
    # The same source with the same flags in another module.
    ModulePlan("again", "kv", ("9.0a",), ("9.0a",), (unit("binding", "c++", HOST_FLAGS),), ()),
    tvm_ffi_sources=("src/ffi/error.cc", "src/ffi/extra/env_c_api.cc"),
    added_host_flags=("-fno-gnu-unique",),
)
LOWERED = dataclasses.replace(PLAN, lowering="0123456789abcdef")
MODULES = ["gemm/large", "gemm/binding", "kv/large", "again/binding"]


class Machine:
    """The sources that are hashed when jobs are made, and where the plan's tokens point."""

    def __init__(self, folder: Path) -> None:
        site = folder / "build/environments/site-packages"
        self.generated = folder / "build/wheel/plan"
        self.roots = roots_of(
            site,
            cuda=folder / "build/toolchain/cuda",
            workspace=folder / "build/flashinfer",
            operators=folder / "wheels/fp4aot/csrc",
        )
        self.maps = (
            (str(site), "/usr/src"),
            (str(folder / "build"), "/usr/src/build"),
            (str(folder), "/usr/src/fp4aot"),
        )
        for path in (
            *(self.roots.tvm_ffi / source for source in PLAN.tvm_ffi_sources),
            *(
                self.roots.operators / name
                for name in ("operators/gemm.cpp", "modules/binding.cpp")
            ),
            *(self.roots.operators / name for name in ("torch/bridge.cpp", "torch/bridge.h")),
            *(self.generated / name for name in (*GENERATED, "flashinfer_functions.h")),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"// {path.name}\n")

    def keys(self, plan: BuildPlan) -> KeyMaker:
        return make_key_maker(plan, "g++ (Debian) 12.2.0", (self.roots.operators, self.generated))

    def jobs(
        self,
        plan: BuildPlan = PLAN,
        nvcc: Path = NVCC,
        known: dict[str, Measured] | None = None,
        *,
        caches_device_code: bool = True,
    ) -> dict[str, Job]:
        jobs = make_jobs(
            *(plan, self.roots, self.generated),
            nvcc=nvcc,
            host_compiler=HOST,
            prefix_maps=self.maps,
            keys=self.keys(plan),
            known=known or {},
            caches_device_code=caches_device_code,
        )
        assert len({job.name for job in jobs}) == len(jobs)
        return {job.name: job for job in jobs}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")


# FlashInfer's units


def test_device_code_is_compiled_with_flashinfers_flags_in_order(machine: Machine) -> None:
    job = machine.jobs()["gemm/large"]
    source = "gen/gen_gemm_sm120_cutlass_fp4/fp4_gemm_cutlass_half_128_64_128.cu"
    assert job.source == machine.roots.workspace / source
    named = f"--orig_src_path_name,/usr/src/build/flashinfer/{source}"
    assert job.command == (
        *(str(NVCC), "-ccbin", str(HOST)),
        *("-isystem", f"{machine.roots.cuda}/include", f"-I{machine.roots.flashinfer}/csrc"),
        *("-O3", "-DENABLE_FP4", "-O3", "-gencode=arch=compute_120f,code=sm_120f"),
        "-Xcompiler=-fno-gnu-unique",
        *(
            f"-Xcompiler=-ffile-prefix-map={folder}={name}"
            for folder, name in reversed(machine.maps)
        ),
        # Names of local symbols are made of it: they must not differ from checkout to checkout.
        *(f"-Xcicc={named}", f"-Xcudafe={named}"),
    )
    assert (job.group, job.compiler, job.targets) == ("unit", "cicc", {"100a", "120f"})


def test_host_code_is_compiled_by_the_host_compiler(machine: Machine) -> None:
    job = machine.jobs()["gemm/binding"]
    assert job.source == machine.roots.flashinfer / "csrc/binding.cpp"
    assert job.command == (
        *(str(HOST), "-I/usr/include/python3.11", f"-isystem{machine.roots.tvm_ffi}/include"),
        *("-DNAME=a b", '-DQUOTED="a"'),
        *(f"-ffile-prefix-map={folder}={name}" for folder, name in reversed(machine.maps)),
    )
    assert (job.group, job.compiler) == ("unit", "cc1plus")


def test_units_come_in_the_order_of_the_plan_then_our_own(machine: Machine) -> None:
    jobs = machine.jobs()
    assert [*jobs] == [
        *MODULES,
        *("tvm_ffi/error", "tvm_ffi/env_c_api"),
        *("operators/gemm", "operators/bridge", "operators/kernel_entries"),
    ]
    assert {job.group for job in jobs.values() if job.name not in MODULES} == {"own"}
    assert (jobs["kv/large"].module, jobs["kv/large"].unit) == ("kv", "large")


def test_the_same_source_in_two_modules_is_two_objects(machine: Machine) -> None:
    jobs = machine.jobs()
    assert jobs["gemm/binding"].source == jobs["again/binding"].source
    assert len({job.key for job in jobs.values()}) == len(jobs)


def test_no_token_is_left_over(machine: Machine) -> None:
    words = [word for job in machine.jobs().values() for word in (*job.command, str(job.source))]
    assert not [word for word in words if re.search(r"@[A-Z_]+@", word)]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/checkout/build/flashinfer/a.cu", "/usr/src/build/flashinfer/a.cu"),
        ("/checkout/wheels/a.cu", "/usr/src/fp4aot/wheels/a.cu"),
        # Of another folder whose name begins alike.
        ("/checkout2/a.cu", "/checkout2/a.cu"),
        ("/elsewhere/a.cu", "/elsewhere/a.cu"),
    ],
)
def test_a_source_is_named_by_the_first_folder_that_it_is_in(path: str, name: str) -> None:
    maps = [("/checkout/build", "/usr/src/build"), ("/checkout", "/usr/src/fp4aot")]
    assert mapped(path, maps) == name


def test_units_are_lowered_by_the_compiler_that_is_asked_for_blackwell(machine: Machine) -> None:
    normal, lowered = machine.jobs(), machine.jobs(LOWERED, SHIM)
    assert lowered["gemm/large"].command[0] == str(SHIM)
    assert lowered["gemm/large"].command[1:] == normal["gemm/large"].command[1:]
    # Host code has nothing to lower.
    assert lowered["gemm/binding"].command == normal["gemm/binding"].command
    # And yet nothing of one build is taken for the other.
    assert not {job.key for job in lowered.values()} & {job.key for job in normal.values()}


@pytest.mark.parametrize("understood", [True, False])
def test_an_nvcc_that_the_cache_does_not_understand_is_run_without_it(
    machine: Machine, understood: bool
) -> None:
    jobs = machine.jobs(caches_device_code=understood)
    assert {name for name, job in jobs.items() if not job.cached} == (
        set() if understood else {"gemm/large", "kv/large"}
    )
    # The objects are the same.
    assert {job.key for job in jobs.values()} == {job.key for job in machine.jobs().values()}


# Keys


def test_keys_are_the_same_in_any_checkout(machine: Machine, tmp_path: Path) -> None:
    elsewhere = Machine(tmp_path / "some" / "quite different place")
    here, there = machine.jobs(), elsewhere.jobs()
    assert {n: job.key for n, job in here.items()} == {n: job.key for n, job in there.items()}
    assert here["gemm/large"].command != there["gemm/large"].command


@pytest.mark.parametrize(
    "place",
    [
        lambda machine: machine.roots.operators / "torch/bridge.h",
        lambda machine: machine.generated / "flashinfer_functions.h",
    ],
)
def test_our_headers_change_our_own_sources_alone(
    machine: Machine, place: Callable[[Machine], Path]
) -> None:
    before = machine.jobs()
    place(machine).write_text("// changed\n")
    after = machine.jobs()
    changed = {name for name in before if before[name].key != after[name].key}
    assert changed == set(before) - set(MODULES)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda machine: machine.roots.operators / "operators/gemm.cpp", "operators/gemm"),
        (lambda machine: machine.roots.tvm_ffi / "src/ffi/error.cc", "tvm_ffi/error"),
        (lambda machine: machine.generated / GENERATED[0], "operators/kernel_entries"),
    ],
)
def test_a_changed_source_changes_its_own_key_alone(
    machine: Machine, place: Callable[[Machine], Path], name: str
) -> None:
    before = machine.jobs()
    place(machine).write_text("// changed\n")
    after = machine.jobs()
    assert [name for name in before if before[name].key != after[name].key] == [name]


def test_a_source_in_another_folder_is_another_object(machine: Machine) -> None:
    before = machine.jobs()
    operators = machine.roots.operators
    (operators / "torch/bridge.cpp").rename(operators / "operators/bridge.cpp")
    after = machine.jobs()
    assert [name for name in before if before[name].key != after[name].key] == ["operators/bridge"]


def test_our_sources_within_modules_include_no_header_of_ours() -> None:
    """Their keys do not depend on our headers."""
    operators = CHECKOUT / "wheels/fp4aot/csrc"
    sources = [*operators.glob("modules/*")]
    assert sources
    for source in sources:
        included = re.findall(r'#\s*include\s+[<"]([^>"]+)', source.read_text())
        assert included, source
        for name in included:
            assert not (operators / name).exists(), name
            assert not (source.parent / name).exists(), name


# Costs


def test_without_a_measurement_the_estimate_counts(machine: Machine) -> None:
    jobs = machine.jobs()
    for module in PLAN.modules:
        for one in module.units:
            job = jobs[f"{module.name}/{one.name}"]
            assert (job.megabytes, job.seconds) == estimate(Path(one.source), one.flags)
    assert jobs["gemm/large"].megabytes > jobs["kv/large"].megabytes
    own = jobs["operators/gemm"]
    assert (own.megabytes, own.seconds) == estimate(Path("operators/gemm"))
    assert estimate(Path("operators/gemm")) != estimate(Path("tvm_ffi/error"))


def test_a_measurement_of_the_same_object_counts(machine: Machine) -> None:
    jobs = machine.jobs()
    known = {
        jobs[name].key: Measured(name, Cost(12.5, 1000)) for name in ("kv/large", "operators/gemm")
    }
    measured = machine.jobs(known=known)
    for name, job in measured.items():
        if name in {"kv/large", "operators/gemm"}:
            assert job.seconds == 12.5
            assert 1000 < job.megabytes < 1200
        else:
            assert job == jobs[name]
    # What is known of it is no part of what it is.
    assert {n: job.key for n, job in measured.items()} == {n: job.key for n, job in jobs.items()}


# Our own sources


def test_the_runtime_and_the_operators_have_their_own_flags(machine: Machine) -> None:
    found = {one.name: one for one in own_sources(PLAN, machine.roots, machine.generated)}
    common = (*COMMON_FLAGS, *PLAN.added_host_flags)
    runtime = found["tvm_ffi/error"]
    assert runtime.path == machine.roots.tvm_ffi / "src/ffi/error.cc"
    assert runtime.flags == (*common, *TVM_FFI_FLAGS)
    operator = found["operators/gemm"]
    assert operator.flags[: len(common)] == common
    assert {"-Werror", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000"} <= set(
        operator.flags
    )
    for name in ("TORCH", "TVM_FFI", "CUDA"):
        assert f"-isystem@{name}@/include" in operator.flags
    # What is generated is found beside them, wherever it was written.
    assert "-I@GENERATED@" in operator.flags
    assert f"-I{machine.generated}" in machine.jobs()["operators/gemm"].command
    standards = [
        [flag for flag in source.flags if flag.startswith("-std")] for source in (runtime, operator)
    ]
    assert standards == [["-std=c++17"], ["-std=c++20"]]
    assert found["operators/kernel_entries"].path == machine.generated / "kernel_entries.cpp"
    assert found["operators/kernel_entries"].flags == operator.flags


def test_every_source_of_this_checkout_is_compiled(machine: Machine) -> None:
    operators = CHECKOUT / "wheels/fp4aot/csrc"
    plan = dataclasses.replace(PLAN, tvm_ffi_sources=TVM_FFI_SOURCES)
    roots = dataclasses.replace(machine.roots, operators=operators)
    names = [one.name for one in own_sources(plan, roots, machine.generated)]
    assert len(names) == len(set(names))
    assert set(names) == {
        *(f"tvm_ffi/{Path(source).stem}" for source in TVM_FFI_SOURCES),
        *(f"operators/{path.stem}" for path in operators.rglob("*.cpp")),
        *(f"operators/{Path(name).stem}" for name in GENERATED),
    }


@pytest.mark.parametrize("other", ["torch/gemm.cpp", "flashinfer/kernel_entries.cpp"])
def test_two_sources_of_one_name_are_refused(machine: Machine, other: str) -> None:
    path = machine.roots.operators / other
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(
        PlanError, match=rf"would both be the object operators/{path.stem}"
    ) as error:
        machine.jobs()
    assert str(path) in str(error.value)
    assert len(re.findall(rf"\S+/{path.name}", str(error.value))) == 2


def test_what_encodes_tensor_maps_is_added_to_what_is_lowered(machine: Machine) -> None:
    found = {one.name: one for one in own_sources(LOWERED, machine.roots, machine.generated)}
    source = found["operators/tensor_map"]
    assert source.path == CHECKOUT / "aot/lowering/tensor_map.cpp"
    # Every define that it must be given.
    given = {
        flag.removeprefix("-D").partition("=")[0]
        for flag in source.flags
        if re.fullmatch(r"-D\w+=0x[0-9a-f]+u", flag)
    }
    assert given == set(re.findall(r"FP4AOT_TENSOR_MAP_TYPE_\w+", source.path.read_text()))
    names = {one.name for one in own_sources(PLAN, machine.roots, machine.generated)}
    assert set(found) - names == {"operators/tensor_map"}
    normal = next(own_sources(PLAN, machine.roots, machine.generated))
    assert not [flag for flag in normal.flags if "TENSOR_MAP" in flag]


@pytest.mark.parametrize(
    ("version", "macro"),
    [
        ("2.10", "0x020a000000000000"),
        ("2.9", "0x0209000000000000"),
        ("2.1", "0x0201000000000000"),
        ("3.0", "0x0300000000000000"),
    ],
)
def test_torch_target(version: str, macro: str) -> None:
    assert torch_target_macro(version) == macro


def test_torch_target_is_as_torchs_header_has_it() -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED: torch's header, without torch")
    header = Path(torch.__file__).parent / "include/torch/csrc/stable/version.h"
    found = re.findall(
        r"define TORCH_VERSION_(\d+)_(\d+)_0 \(\(\(0ULL \+ (\d+)\) << (\d+)\) \| "
        r"\(\(0ULL \+ (\d+)\) << (\d+)\)\)",
        header.read_text(),
    )
    assert found
    for major, minor, *parts in found:
        a, high, b, low = map(int, parts)
        assert int(torch_target_macro(f"{major}.{minor}"), 16) == a << high | b << low


def test_the_first_map_that_fits_counts_for_the_compiler_too(tmp_path: Path) -> None:
    gxx = shutil.which("g++")
    if gxx is None:
        pytest.skip("NOT TESTED: what g++ does with the flags, because this machine has none")
    source = tmp_path / "build/inside/a.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("const char* name() { return __FILE__; }\n")
    maps = ((str(source.parent), "/usr/src/inside"), (str(tmp_path), "/usr/src/outside"))
    done = subprocess.run(
        [gxx, "-S", "-o", "-", *prefix_map_flags(maps), str(source)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"{mapped(str(source), maps)}"' in done.stdout
    assert "/usr/src/inside/a.cpp" in done.stdout
