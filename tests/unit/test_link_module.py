"""Merging modules, with g++ and binutils: equal names stay apart, and nothing else is visible.

For this machine, and for another one where its compiler is installed: programs of that one are run
in an emulator.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from aot.codegen.symbols import entry_symbol, schema_symbol
from aot.errors import BuildError
from aot.host_compiler import HostCompiler, find_host_compiler
from aot.link_module import check_exports, exported_functions, link_module
from aot.platform_tools import emulation
from aot.platforms import PLATFORMS, platform_named

# Two units of a module: what every FlashInfer module has, with the module's own numbers in it.
ENTRY_UNIT = """
#include <cstdlib>
template <typename T> struct Scale {{ static T value() {{ return {scale}; }} }};
inline int shared() {{ static int calls = 0; calls += {scale}; return calls; }}
int other(int);
int global_state = {scale};
extern "C" int __tvm_ffi_gemm(void*, const void*, int, void*) {{
  return Scale<int>::value() * 1000 + shared() * 10 + other(global_state);
}}
extern "C" int __tvm_ffi_home(void*, const void*, int, void*) {{
  return std::getenv("HOME") == nullptr ? 0 : 1;
}}
extern "C" int __tvm_ffi__metadata_gemm(void*, const void*, int, void*) {{ return 70 + {scale}; }}
extern "C" int __tvm_ffi__metadata_home(void*, const void*, int, void*) {{ return 80 + {scale}; }}
"""
OTHER_UNIT = """
template <typename T> struct Scale {{ static T value() {{ return {scale}; }} }};
inline int shared() {{ static int calls = 0; calls += {scale}; return calls; }}
int other(int x) {{ return x + Scale<int>::value() - shared(); }}
"""
FUNCTIONS = ("gemm", "home")


class Workshop:
    def __init__(self, folder: Path, host: HostCompiler) -> None:
        self.folder = folder
        self.host = host
        self.gxx = host.path
        self.binutils = host.binutils()

    def compile(self, name: str, source: str, *flags: str) -> Path:
        (self.folder / f"{name}.cpp").write_text(source)
        target = self.folder / f"{name}.o"
        command = [self.gxx, "-c", "-fPIC", *flags, self.folder / f"{name}.cpp", "-o", target]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return target

    def module(self, name: str, scale: int) -> Path:
        """Compile and merge one module."""
        objects = [
            self.compile(f"{name}_{unit}", text.format(scale=scale), "-fno-gnu-unique")
            for unit, text in (("entry", ENTRY_UNIT), ("other", OTHER_UNIT))
        ]
        out = self.folder / f"module_{name}.o"
        self.link(name, objects, FUNCTIONS, out)
        return out

    def link(self, name: str, objects: Sequence[Path], expected: Sequence[str], out: Path) -> None:
        link_module(name, objects, expected, out, binutils=self.binutils)

    def run(self, program: Path, **environ: str) -> str:
        command = [*emulation(platform_named(self.host.machine), self.host), str(program)]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | environ
        ).stdout

    def global_symbols(self, path: Path) -> set[str]:
        done = subprocess.run(
            [
                *(self.host.tool("nm"), "--extern-only", "--defined-only", "--format=posix"),
                path,
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        return {line.split()[0] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module", params=PLATFORMS)
def host(request: pytest.FixtureRequest) -> HostCompiler:
    machine: str = request.param
    needed = ["g++", "ld", "objcopy"]
    if machine != platform.machine():
        needed = [f"{machine}-linux-gnu-g++", PLATFORMS[machine].emulator]
    for program in needed:
        if shutil.which(program) is None:
            pytest.skip(f"NOT TESTED: linking modules for {machine}, because {program} is missing")
    return find_host_compiler(machine, {"PATH": os.environ["PATH"]})


@pytest.fixture
def workshop(tmp_path: Path, host: HostCompiler) -> Workshop:
    return Workshop(tmp_path, host)


def test_two_modules_with_equal_names_and_other_bodies_in_one_program(workshop: Workshop) -> None:
    modules = [workshop.module(name, scale) for name, scale in (("one", 1), ("two", 2))]
    calls = [
        make(module, function)
        for module in ("one", "two")
        for function in FUNCTIONS
        for make in (entry_symbol, schema_symbol)
    ]
    declarations = "\n".join(f"int {call}(void*, const void*, int, void*);" for call in calls)
    prints = "\n".join(
        f'std::printf("{call} %d\\n", {call}(nullptr, nullptr, 0, nullptr));' for call in calls
    )
    main = workshop.compile(
        "main",
        f"""
        #include <cstdio>
        extern "C" {{
        {declarations}
        char* fp4aot_no_environment(const char*) {{ return nullptr; }}
        }}
        // The program has these names too: nobody's gets into anybody else's way.
        int global_state = 9;
        int other(int) {{ return 9; }}
        int main() {{ {prints} return global_state + other(0) - 18; }}
        """,
    )
    program = workshop.folder / "program"
    subprocess.run([workshop.gxx, main, *modules, "-o", program], check=True, capture_output=True)
    printed = workshop.run(program, HOME="/home")
    values = dict(line.split() for line in printed.splitlines())
    for name, scale in (("one", 1), ("two", 2)):
        # Within a module, both units share one `shared`: its second call sees the first.
        first, second = scale, 2 * scale
        possible = {
            str(scale * 1000 + first * 10 + (2 * scale - second)),
            str(scale * 1000 + second * 10 + (2 * scale - first)),
        }
        assert values[entry_symbol(name, "gemm")] in possible
        assert values[schema_symbol(name, "gemm")] == str(70 + scale)
        assert values[schema_symbol(name, "home")] == str(80 + scale)
        # FlashInfer's look into the environment finds nothing.
        assert values[entry_symbol(name, "home")] == "0"


def test_only_the_renamed_entry_points_are_visible(workshop: Workshop) -> None:
    assert workshop.global_symbols(workshop.module("one", 1)) == {
        make("one", function) for function in FUNCTIONS for make in (entry_symbol, schema_symbol)
    }


def test_objects_of_one_module_may_not_clash(workshop: Workshop) -> None:
    objects = [workshop.compile(name, "int twice() { return 1; }") for name in ("a", "b")]
    with pytest.raises(BuildError, match="merge the objects of one") as caught:
        workshop.link("one", objects, (), workshop.folder / "out.o")
    assert "multiple definition" in str(caught.value)


def test_unique_symbols_are_reported(workshop: Workshop) -> None:
    source = """
        template <typename T> struct Once { static T value; };
        template <typename T> T Once<T>::value = 3;
        inline int counter() { static int calls = 0; return ++calls; }
        extern "C" int __tvm_ffi_f() { return Once<int>::value + counter(); }
    """
    out = workshop.folder / "out.o"
    unique = workshop.compile("unique", source, "-fgnu-unique")
    with pytest.raises(BuildError) as caught:
        workshop.link("one", [unique], ["f"], out)
    message = str(caught.value)
    assert "symbols of one stay visible" in message
    assert "_ZN4OnceIiE5valueE" in message
    assert "-fno-gnu-unique" in message
    assert not out.exists()

    workshop.link("one", [workshop.compile("plain", source, "-fno-gnu-unique")], ["f"], out)
    assert workshop.global_symbols(out) == {entry_symbol("one", "f")}


def test_missing_and_unknown_exports_are_named_before_anything_is_written(
    workshop: Workshop,
) -> None:
    module = workshop.compile(
        "module",
        'extern "C" { int __tvm_ffi_new() { return 1; } int __tvm_ffi_kept() { return 1; }'
        " int __tvm_ffi__metadata_new() { return 1; } int unrelated() { return 1; } }",
    )
    out = workshop.folder / "out.o"
    with pytest.raises(BuildError) as caught:
        workshop.link("one", [module], ["kept", "gone"], out)
    message = str(caught.value)
    assert "the module one does not export gone, which the catalogue lists" in message
    assert "exports new, which the catalogue does not list" in message
    assert "aot/catalog.py" in message
    assert "kept" not in message
    assert not out.exists()


def test_a_call_to_an_export_elsewhere_is_no_export(workshop: Workshop) -> None:
    module = workshop.compile(
        "module",
        'extern "C" int __tvm_ffi_elsewhere(); extern "C" int __tvm_ffi_b()'
        ' { return __tvm_ffi_elsewhere(); } extern "C" int __tvm_ffi_a() { return 1; }',
    )
    assert exported_functions(module) == ("a", "b")


@pytest.mark.parametrize(
    ("exported", "expected", "wrong"),
    [(["a"], ["a", "b"], "does not export b"), (["a", "b"], ["b"], "exports a, which")],
)
def test_exports_differ(exported: list[str], expected: list[str], wrong: str) -> None:
    with pytest.raises(BuildError, match=wrong):
        check_exports("one", exported, expected)
    check_exports("one", exported, exported[::-1])


def test_nothing_is_left_beside_the_module(workshop: Workshop) -> None:
    folder = workshop.folder / "modules"
    folder.mkdir()
    one = workshop.compile("one", 'extern "C" int __tvm_ffi_f() { return 1; }')
    workshop.link("one", [one], ["f"], folder / "one.o")
    workshop.link("one", [one], ["f"], folder / "one.o")
    with pytest.raises(BuildError):
        workshop.link("two", [one], ["g"], folder / "two.o")
    with pytest.raises(BuildError, match="merge the objects of three"):
        workshop.link("three", [folder / "absent.o"], ["g"], folder / "three.o")
    assert [path.name for path in folder.iterdir()] == ["one.o"]


def test_objects_of_another_machine_are_refused(workshop: Workshop) -> None:
    """The linker of one machine does not take what the compiler of another has made."""
    module = workshop.compile("one", 'extern "C" int __tvm_ffi_f() { return 1; }')
    other = next(name for name in PLATFORMS if name != workshop.host.machine)
    gxx = "g++" if other == platform.machine() else f"{other}-linux-gnu-g++"
    if shutil.which(gxx) is None:
        pytest.skip(f"NOT TESTED: another machine's linker, because {gxx} is missing")
    binutils = find_host_compiler(other, {"PATH": os.environ["PATH"]}).binutils()
    out = workshop.folder / "out.o"
    with pytest.raises(BuildError, match="merge the objects of one"):
        link_module("one", [module], ["f"], out, binutils=binutils)
    assert not out.exists()
