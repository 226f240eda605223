"""The plan in CMake's syntax, read back by CMake itself."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.codegen.cmake import cmake_variables, torch_target_macro
from aot.errors import PlanError
from aot.memory import Schedule
from aot.plan import BuildPlan, ModulePlan, Roots, Unit, Versions

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "/usr/bin/g++"
NVCC = "/opt/cuda/bin/nvcc"
ROOTS = Roots(
    flashinfer=Path("/site/flashinfer/data"),
    tvm_ffi=Path("/site/tvm_ffi"),
    torch=Path("/site/torch"),
    cuda=Path("/opt/cuda"),
    python_include=Path("/usr/include/python3.11"),
    workspace=Path("/build/flashinfer"),
)
CUDA_FLAGS = (
    *("-isystem", "@CUDA@/include", "-I@FLASHINFER@/csrc", "-O3", "-DENABLE_FP4", "-O3"),
    *("-gencode=arch=compute_120f,code=sm_120f", "-Xcompiler=-fno-gnu-unique"),
)
HOST_FLAGS = ("-I@PYTHON_INCLUDE@", "-isystem@TVM_FFI@/include", "-DNAME=a b", '-DQUOTED="a"')


def unit(name: str, language: str, flags: tuple[str, ...], megabytes: int = 700) -> Unit:
    suffix = "cu" if language == "cuda" else "cpp"
    source = f"@FLASHINFER@/csrc/{name}.{suffix}"
    return Unit(name, source, language, flags, "0" * 64, megabytes, 10)


PLAN = BuildPlan(
    preset="test",
    versions=Versions("0.7.2", "0.1.15", "13.0", "13.0.88", "2.10", "2.13.0"),
    modules=(
        ModulePlan(
            "gemm",
            "gemm",
            ("12.0f",),
            ("12.0f",),
            (unit("large", "cuda", CUDA_FLAGS, 6400), unit("binding", "c++", HOST_FLAGS)),
            (),
        ),
        ModulePlan("kv", "kv", ("9.0a",), ("9.0a",), (unit("large", "cuda", ("-O1",)),), ()),
    ),
    tvm_ffi_sources=("src/ffi/error.cc", "src/ffi/extra/env_c_api.cc"),
    added_host_flags=("-fno-gnu-unique",),
)
LOWERED = dataclasses.replace(PLAN, lowering="0123456789abcdef")
SHIM = "/checkout/build/lowering/13.0.88/bin/nvcc"
"""The compiler of a toolkit that lowers."""
ADDED = ("UNIT_DEPENDS", "LOCAL_VERSION", "ADDED_SOURCES", "ADDED_SOURCE_FLAGS", "ADDED_LINK_FLAGS")
MAPS = [("/checkout/build", "/usr/src/build"), ("/checkout", "/usr/src/fp4aot")]


def text_of(
    plan: BuildPlan = PLAN,
    roots: Roots = ROOTS,
    schedule: Schedule | None = None,
    launcher: tuple[str, ...] = ("env", "SCCACHE_DIR=/checkout/build/cache", "sccache"),
    nvcc: str = NVCC,
) -> str:
    return cmake_variables(
        plan,
        roots,
        schedule or Schedule(2, 1, 6400),
        nvcc=Path(nvcc),
        host_compiler=Path(HOST),
        launcher=launcher,
        prefix_maps=MAPS,
    )


def read_by_cmake(folder: Path, text: str) -> dict[str, list[str]]:
    """Have CMake include the text, and list every element of every variable that it sets."""
    program = shutil.which("cmake")
    if program is None:
        pytest.skip("NOT TESTED: reading the variables, because this machine has no CMake")
    names = re.findall(r"^set\((\w+)", text, re.MULTILINE)
    (folder / "units.cmake").write_text(text)
    script = [f"include({folder}/units.cmake)"]
    for name in names:
        script += [
            f'message("= {name}")',
            f"foreach(item IN LISTS {name})",
            # A marker at both ends, so that blanks count.
            '  message("- ${item}|")',
            "endforeach()",
        ]
    (folder / "read.cmake").write_text("\n".join(script) + "\n")
    done = subprocess.run(
        [program, "-P", folder / "read.cmake"], capture_output=True, text=True, check=True
    )
    values: dict[str, list[str]] = {}
    for line in done.stderr.splitlines():
        if line.startswith("= "):
            name = line[2:]
            values[name] = []
        else:
            values[name].append(line[2:].removesuffix("|"))
    assert set(values) == set(names)
    return values


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return read_by_cmake(tmp_path_factory.mktemp("cmake"), text_of())


def test_device_code_is_compiled_with_flashinfers_flags_in_order(
    variables: dict[str, list[str]],
) -> None:
    assert variables["FP4AOT_COMMAND_gemm_large"] == [
        *(NVCC, "-ccbin", HOST),
        *("-isystem", "/opt/cuda/include", "-I/site/flashinfer/data/csrc"),
        *("-O3", "-DENABLE_FP4", "-O3", "-gencode=arch=compute_120f,code=sm_120f"),
        "-Xcompiler=-fno-gnu-unique",
        "-Xcompiler=-ffile-prefix-map=/checkout/build=/usr/src/build",
        "-Xcompiler=-ffile-prefix-map=/checkout=/usr/src/fp4aot",
    ]


def test_host_code_is_compiled_by_the_host_compiler(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_COMMAND_gemm_binding"] == [
        *(HOST, "-I/usr/include/python3.11", "-isystem/site/tvm_ffi/include"),
        *("-DNAME=a b", '-DQUOTED="a"'),
        *(f"-ffile-prefix-map={folder}={name}" for folder, name in MAPS),
    ]


def test_every_unit_of_every_module_is_listed(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_MODULES"] == ["gemm", "kv"]
    assert variables["FP4AOT_UNITS_gemm"] == ["large", "binding"]
    assert variables["FP4AOT_UNITS_kv"] == ["large"]
    # Units of equal name in two modules stay apart.
    assert "-O1" in variables["FP4AOT_COMMAND_kv_large"]
    assert variables["FP4AOT_SOURCE_gemm_large"] == ["/site/flashinfer/data/csrc/large.cu"]


def test_what_surrounds_the_units(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_PLAN_HASH"] == [PLAN.hash]
    assert variables["FP4AOT_LAUNCHER"] == ["env", "SCCACHE_DIR=/checkout/build/cache", "sccache"]
    assert variables["FP4AOT_HOST_FLAGS"][0] == "-fno-gnu-unique"
    assert variables["FP4AOT_TVM_FFI_SOURCES"] == [
        "/site/tvm_ffi/src/ffi/error.cc",
        "/site/tvm_ffi/src/ffi/extra/env_c_api.cc",
    ]
    assert variables["FP4AOT_TORCH_TARGET_VERSION"] == ["0x020a000000000000"]
    for folder in ("torch", "tvm_ffi"):
        assert f"-isystem/site/{folder}/include" in variables["FP4AOT_OPERATOR_INCLUDES"]


def test_nothing_is_added_to_what_is_not_lowered(variables: dict[str, list[str]]) -> None:
    assert [variables[f"FP4AOT_{name}"] for name in ADDED] == [[]] * len(ADDED)


def test_units_are_lowered_by_the_compiler_that_is_asked_for_blackwell(tmp_path: Path) -> None:
    lowered = read_by_cmake(tmp_path, text_of(LOWERED, nvcc=SHIM))
    compiler, *flags = lowered["FP4AOT_COMMAND_gemm_large"]
    assert compiler == SHIM
    normal = read_by_cmake(tmp_path, text_of())
    assert flags == normal["FP4AOT_COMMAND_gemm_large"][1:]
    assert "-gencode=arch=compute_120f,code=sm_120f" in flags
    # Host code has nothing to lower, and the headers and the runtime are the real toolkit's.
    for name in ("COMMAND_gemm_binding", "OPERATOR_INCLUDES", "CUDA_LIBRARY_DIR"):
        assert lowered[f"FP4AOT_{name}"] == normal[f"FP4AOT_{name}"]


def test_units_are_compiled_anew_when_the_lowering_changes(tmp_path: Path) -> None:
    lowered = read_by_cmake(tmp_path, text_of(LOWERED, nvcc=SHIM))
    # The assembler of the toolkit that lowers: it names the lowering's sources.
    assert lowered["FP4AOT_UNIT_DEPENDS"] == [str(Path(SHIM).with_name("ptxas"))]
    cmake = (CHECKOUT / "CMakeLists.txt").read_text()
    assert "DEPENDS ${source} ${FP4AOT_UNIT_DEPENDS}" in cmake


def test_what_encodes_tensor_maps_is_added_and_linked_in(tmp_path: Path) -> None:
    lowered = read_by_cmake(tmp_path, text_of(LOWERED, nvcc=SHIM))
    (source,) = lowered["FP4AOT_ADDED_SOURCES"]
    assert Path(source) == CHECKOUT / "aot/lowering/tensor_map.cpp"
    text = Path(source).read_text()
    # Every define that it must be given, and every function that it wraps.
    defines = {flag.removeprefix("-D").partition("=")[0] for flag in added_flags(lowered)}
    assert defines == set(re.findall(r"FP4AOT_TENSOR_MAP_TYPE_\w+", text))
    wrapped = {flag.removeprefix("-Wl,--wrap=") for flag in lowered["FP4AOT_ADDED_LINK_FLAGS"]}
    assert wrapped == set(re.findall(r"\b__wrap_(\w+)", text))
    assert len(wrapped) == 2


def added_flags(variables: dict[str, list[str]]) -> list[str]:
    flags = variables["FP4AOT_ADDED_SOURCE_FLAGS"]
    assert all(re.fullmatch(r"-D\w+=0x[0-9a-f]+u", flag) for flag in flags)
    return flags


def test_pools_follow_the_schedule(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_SMALL_JOBS"] == ["2"]
    assert variables["FP4AOT_LARGE_JOBS"] == ["1"]
    assert variables["FP4AOT_POOL_gemm_large"] == ["large_units"]
    assert variables["FP4AOT_POOL_gemm_binding"] == ["small_units"]
    assert variables["FP4AOT_OWN_POOL"] == ["small_units"]


def test_one_job_at_a_time_includes_our_own_sources() -> None:
    text = text_of(schedule=Schedule(1, 1, 1))
    assert "set(FP4AOT_OWN_POOL [=[large_units]=])" in text
    assert "small_units" not in text


def test_no_launcher_is_an_empty_list(tmp_path: Path) -> None:
    assert read_by_cmake(tmp_path, text_of(launcher=()))["FP4AOT_LAUNCHER"] == []


def test_no_token_is_left_over() -> None:
    assert re.findall(r"@[A-Z_]+@", text_of()) == []


def test_tokens_are_undone(tmp_path: Path) -> None:
    nested = dataclasses.replace(ROOTS, cuda=tmp_path, torch=tmp_path / "site/torch")
    for flag in (f"-I{tmp_path}/include", f"-isystem{tmp_path}/site/torch/include:{tmp_path}"):
        assert nested.expand(nested.tokenize(flag)) == flag


def test_flags_reach_cmake_letter_by_letter(tmp_path: Path) -> None:
    flags = (
        *(" ", "a b", '-DX="a \\"b\\""', "-D'Y'", "$HOME", "${CMAKE_VERSION}", "$ENV{PATH}"),
        *(
            "@CMAKE_VERSION@",
            "#no comment",
            "(",
            ")",
            "[[x",
            "]]",
            "[=[",
            "x]",
            "a\\b",
            "\\n",
            "%d",
        ),
        *("-Wl,-rpath,$ORIGIN", "ü", "-DZ=1|", "//", "!", "~", "`id`", "$(id)", "*", "?", "&&"),
    )
    # Elements with an unbalanced bracket are tested one by one: they would swallow what follows.
    balanced = tuple(flag for flag in flags if flag.count("[") == flag.count("]"))
    plan = dataclasses.replace(
        PLAN,
        modules=(ModulePlan("m", "f", ("12.0f",), ("12.0f",), (unit("u", "c++", balanced),), ()),),
    )
    read = read_by_cmake(tmp_path, text_of(plan))["FP4AOT_COMMAND_m_u"]
    assert read == [HOST, *balanced, *(f"-ffile-prefix-map={old}={new}" for old, new in MAPS)]


@pytest.mark.parametrize("flag", ["-DA=1;2", "]=]", "a]=]b"])
def test_what_cmake_cannot_hold_is_refused(flag: str) -> None:
    plan = dataclasses.replace(PLAN, added_host_flags=(flag,))
    with pytest.raises(PlanError, match=re.escape(repr(flag))):
        text_of(plan)


@pytest.mark.parametrize("flag", ["a[", "a]", "a\\", "x]=", "\nx"])
def test_what_cmake_misreads_is_refused_too(tmp_path: Path, flag: str) -> None:
    plan = dataclasses.replace(PLAN, added_host_flags=(flag, "next"))
    try:
        text = text_of(plan)
    except PlanError:
        return
    assert read_by_cmake(tmp_path, text)["FP4AOT_HOST_FLAGS"][:2] == [flag, "next"]


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


@pytest.mark.parametrize("present", ["lib64", "lib"])
def test_the_static_runtime_is_looked_for(tmp_path: Path, present: str) -> None:
    (tmp_path / present).mkdir()
    (tmp_path / present / "libcudart_static.a").touch()
    text = text_of(roots=dataclasses.replace(ROOTS, cuda=tmp_path))
    assert f"set(FP4AOT_CUDA_LIBRARY_DIR [=[{tmp_path}/{present}]=])" in text
