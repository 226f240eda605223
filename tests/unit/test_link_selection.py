"""Is a selected part of a module complete, and nothing too much? With g++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aot.errors import BuildError
from aot.link_module import link_module
from aot.link_selection import check_selection

ENTRY = """
namespace tensorrt_llm { void run(); }
extern "C" int __tvm_ffi_moe(void*, const void*, int, void*) { tensorrt_llm::run(); return 0; }
extern "C" int __tvm_ffi__metadata_moe(void*, const void*, int, void*) { return 0; }
"""
RUNNER = """
#include <cstdio>
namespace tensorrt_llm {
template <typename T> void launch();
extern template void launch<int>();
void run() { std::puts("run"); launch<int>(); }
}
"""
LAUNCHER = """
namespace tensorrt_llm {
template <typename T> void launch() {}
template void launch<int>();
}
"""
LAUNCHER_OF_ANOTHER_TYPE = LAUNCHER.replace("<int>", "<double>")


@pytest.fixture(scope="module")
def gxx() -> str:
    found = shutil.which("g++")
    assert found, "these tests need g++"
    return found


def compiled(gxx: str, folder: Path, **sources: str) -> list[Path]:
    objects = []
    for name, text in sources.items():
        (folder / f"{name}.cpp").write_text(text)
        objects.append(folder / f"{name}.o")
        command = [gxx, "-c", "-fPIC", "-fno-gnu-unique", folder / f"{name}.cpp", "-o", objects[-1]]
        subprocess.run(command, check=True, capture_output=True)
    return objects


def test_a_complete_selection_is_linked(gxx: str, tmp_path: Path) -> None:
    objects = compiled(gxx, tmp_path, entry=ENTRY, runner=RUNNER, launcher=LAUNCHER)
    link_module("moe", objects, ["moe"], tmp_path / "moe.out.o", selected=True)
    assert (tmp_path / "moe.out.o").is_file()


def test_a_unit_that_nothing_needs_is_named(gxx: str, tmp_path: Path) -> None:
    objects = compiled(
        *(gxx, tmp_path),
        entry=ENTRY,
        runner=RUNNER,
        launcher=LAUNCHER,
        other_launcher=LAUNCHER_OF_ANOTHER_TYPE,
    )
    with pytest.raises(BuildError, match=r"moe: nothing needs other_launcher;"):
        check_selection("moe", objects)
    # A whole module may hold what nothing needs: FlashInfer lists it.
    link_module("moe", objects, ["moe"], tmp_path / "moe.out.o")


def test_a_symbol_that_no_unit_has_is_named_with_who_needs_it(gxx: str, tmp_path: Path) -> None:
    objects = compiled(gxx, tmp_path, entry=ENTRY, runner=RUNNER)
    with pytest.raises(BuildError) as error:
        check_selection("moe", objects)
    text = str(error.value)
    assert "no selected source defines" in text
    assert "12tensorrt_llm6launch" in text
    assert "in runner" in text
    # The C library's functions are not a module's to have.
    assert "puts" not in text


def test_nothing_is_written_for_an_incomplete_selection(gxx: str, tmp_path: Path) -> None:
    objects = compiled(gxx, tmp_path, entry=ENTRY, runner=RUNNER)
    with pytest.raises(BuildError):
        link_module("moe", objects, ["moe"], tmp_path / "moe.out.o", selected=True)
    assert not (tmp_path / "moe.out.o").exists()
