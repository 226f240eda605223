"""The plan in CMake's syntax, read back by CMake itself."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from compile_jobs import make_job
from plans import plan_of, roots_of

from aot.codegen.cmake import cmake_variables
from aot.compile.job import Job
from aot.errors import PlanError
from aot.host_compiler import NATIVE_BINUTILS, Binutils
from aot.plan import BuildPlan, ModulePlan, Roots, Unit
from aot.platform_tools import PlatformTools

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "/usr/bin/g++"
ROOTS = roots_of(Path("/site"), cuda=Path("/opt/cuda"), workspace=Path("/build/flashinfer"))
UNITS = {"gemm": ("large", "binding"), "kv": ("large",)}
PLAN = plan_of(
    *(
        ModulePlan(
            *(name, name, ("12.0f",), ("12.0f",)),
            tuple(
                Unit(unit, f"@FLASHINFER@/csrc/{unit}.cu", "cuda", (), "0" * 64) for unit in units
            ),
            (),
        )
        for name, units in UNITS.items()
    ),
    tvm_ffi_sources=("src/ffi/error.cc",),
    added_host_flags=("-fno-gnu-unique",),
)
LOWERED = dataclasses.replace(PLAN, lowering="0123456789abcdef")
ADDED = ("LOCAL_VERSION", "ADDED_LINK_FLAGS")
TOOLS = PlatformTools(NATIVE_BINUTILS, Path("/cuda/lib64/libcudart_static.a"))
MAPS = [("/checkout/build", "/usr/src/build"), ("/checkout", "/usr/src/fp4aot")]
NAMES = (
    *(f"{module}/{unit}" for module, units in UNITS.items() for unit in units),
    *("tvm_ffi/error", "operators/gemm", "operators/kv cache"),
)
OBJECTS = [(make_job(name), Path("/checkout/build/objects") / f"{name}.o") for name in NAMES]


def text_of(
    plan: BuildPlan = PLAN,
    roots: Roots = ROOTS,
    objects: Sequence[tuple[Job, Path]] = OBJECTS,
    tools: PlatformTools = TOOLS,
) -> str:
    return cmake_variables(
        plan, roots, objects, host_compiler=Path(HOST), tools=tools, prefix_maps=MAPS
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


def test_every_object_of_every_module_is_listed(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_MODULES"] == ["gemm", "kv"]
    folder = "/checkout/build/objects"
    assert variables["FP4AOT_OBJECTS_gemm"] == [
        f"{folder}/gemm/large.o",
        f"{folder}/gemm/binding.o",
    ]
    # Units of equal name in two modules stay apart.
    assert variables["FP4AOT_OBJECTS_kv"] == [f"{folder}/kv/large.o"]
    assert variables["FP4AOT_OBJECTS_tvm_ffi"] == [f"{folder}/tvm_ffi/error.o"]
    assert variables["FP4AOT_OBJECTS_operators"] == [
        f"{folder}/operators/gemm.o",
        f"{folder}/operators/kv cache.o",
    ]


def test_what_surrounds_the_objects(variables: dict[str, list[str]]) -> None:
    assert variables["FP4AOT_PLAN_HASH"] == [PLAN.hash]
    assert variables["FP4AOT_HOST_COMPILER"] == [HOST]
    assert variables["FP4AOT_TVM_FFI_INCLUDES"] == ["-I/site/tvm_ffi/include"]
    assert variables["FP4AOT_CUDA_RUNTIME"] == [str(TOOLS.cuda_runtime)]
    # This machine's programs need no other to run them.
    assert variables["FP4AOT_EMULATION"] == []
    # The probe is compiled as the runtime is, and names no folder of this machine.
    flags = variables["FP4AOT_HOST_FLAGS"]
    assert {"-fno-gnu-unique", "-fPIC", "-std=c++17"} <= set(flags)
    assert flags[-2:] == [f"-ffile-prefix-map={folder}={name}" for folder, name in reversed(MAPS)]


def test_cmake_knows_every_variable_that_it_uses(variables: dict[str, list[str]]) -> None:
    cmake = (CHECKOUT / "CMakeLists.txt").read_text()
    options = set(re.findall(r"^set\((FP4AOT_\w+) .*CACHE", cmake, re.MULTILINE))
    used = set(re.findall(r"\$\{(FP4AOT_\w+)\}", cmake))
    # Names that are put together are checked above.
    used |= {"FP4AOT_MODULES"} if "IN LISTS FP4AOT_MODULES" in cmake else set()
    assert {name for name in used if not name.endswith("_")} - options <= set(variables)


def test_nothing_is_added_to_what_is_not_lowered(variables: dict[str, list[str]]) -> None:
    assert [variables[f"FP4AOT_{name}"] for name in ADDED] == [[]] * len(ADDED)


def test_what_encodes_tensor_maps_is_linked_in(tmp_path: Path) -> None:
    lowered = read_by_cmake(tmp_path, text_of(LOWERED))
    assert lowered["FP4AOT_LOCAL_VERSION"] == ["lowered"]
    # Every function that its source wraps.
    text = (CHECKOUT / "aot/lowering/tensor_map.cpp").read_text()
    wrapped = {flag.removeprefix("-Wl,--wrap=") for flag in lowered["FP4AOT_ADDED_LINK_FLAGS"]}
    assert wrapped == set(re.findall(r"\b__wrap_(\w+)", text))
    assert len(wrapped) == 2


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
    plan = dataclasses.replace(PLAN, added_host_flags=balanced)
    read = read_by_cmake(tmp_path, text_of(plan))["FP4AOT_HOST_FLAGS"]
    assert tuple(read[-len(balanced) - len(MAPS) : -len(MAPS)]) == balanced


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
    assert read_by_cmake(tmp_path, text)["FP4AOT_HOST_FLAGS"][-2 - len(MAPS) : -len(MAPS)] == [
        flag,
        "next",
    ]


def test_another_machine_has_tools_of_its_own(tmp_path: Path) -> None:
    tools = PlatformTools(
        Binutils(*(Path(f"/usr/bin/other-{name}") for name in ("ld", "objcopy", "ar"))),
        Path("/other/libcudart_static.a"),
        ("/usr/bin/emulator", "-L", "/usr/other"),
    )
    variables = read_by_cmake(tmp_path, text_of(tools=tools))
    for name in ("ld", "objcopy", "ar"):
        assert variables[f"FP4AOT_{name.upper()}"] == [f"/usr/bin/other-{name}"]
    assert variables["FP4AOT_CUDA_RUNTIME"] == ["/other/libcudart_static.a"]
    # As options of the step, of which each takes one word, also one that begins with a dash.
    assert variables["FP4AOT_EMULATION"] == [
        *("--emulation=/usr/bin/emulator", "--emulation=-L", "--emulation=/usr/other")
    ]
