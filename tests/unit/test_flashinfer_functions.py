"""The types of FlashInfer's functions: compiled against a stand-in for what declares `Function`."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from aot.catalog import MODULES, Function, Module
from aot.codegen.flashinfer_functions import flashinfer_functions
from aot.errors import PlanError
from aot.host_compiler import find_host_compiler

FUNCTION_H = """
#pragma once
#include <cstdint>
#include <type_traits>
struct DLTensor {};
namespace fp4aot::flashinfer {
struct OptionalTensor;
struct OwningTensor;
template <typename... Signatures>
struct Function {
  static constexpr int kCount = sizeof...(Signatures);
  template <typename Signature>
  static constexpr bool takes = (std::is_same_v<Signature, Signatures> || ...);
};
}  // namespace fp4aot::flashinfer
"""


def compile_header(folder: Path, header: str, checks: str) -> None:
    (folder / "flashinfer").mkdir()
    (folder / "flashinfer" / "function.h").write_text(FUNCTION_H)
    (folder / "flashinfer_functions.h").write_text(header)
    source = folder / "checks.cpp"
    source.write_text(
        '#include "flashinfer_functions.h"\n#include <string_view>\n'
        f"namespace fp4aot::flashinfer {{\n{checks}\n}}\n"
    )
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    done = subprocess.run(
        [find_host_compiler().path, *flags, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def modules_with(*functions: Function) -> list[Module]:
    """As many modules, each with one of the functions."""
    return [dataclasses.replace(MODULES[0], functions=(function,)) for function in functions]


def test_every_type_of_the_catalogue_has_its_own_in_cpp(tmp_path: Path) -> None:
    every = ("DLTensor*", "Optional<DLTensor*>", "Tensor", "int", "float", "bool")
    header = flashinfer_functions(
        modules_with(
            Function("all", every, operator="all"),
            Function("count", (), operator="_count", result="int"),
        )
    )
    checks = """
        using Every = void(DLTensor, OptionalTensor, OwningTensor, int64_t, double, bool);
        static_assert(all::takes<Every>);
        static_assert(count::takes<int64_t()>);
        static_assert(std::string_view(all::kName) == "all");
    """
    compile_header(tmp_path, header, checks)


def test_a_function_has_each_of_its_types_once(tmp_path: Path) -> None:
    one, other = (Function("f", ("int",) * count, operator="f") for count in (1, 2))
    checks = """
        static_assert(f::kCount == 2 && f::takes<void(int64_t)>);
        static_assert(f::takes<void(int64_t, int64_t)>);
    """
    compile_header(tmp_path, flashinfer_functions(modules_with(one, other, one)), checks)


def test_the_catalogues_functions_with_an_operator_are_there_by_name(tmp_path: Path) -> None:
    header = flashinfer_functions(MODULES)
    names = re.findall(r"^struct (\w+)", header, re.MULTILINE)
    functions = [function for module in MODULES for function in module.functions]
    assert names == sorted({function.name for function in functions if function.operator})
    assert max(map(len, header.splitlines())) < 100
    # Two groups of kernels, whose functions differ in one integer.
    checks = "static_assert(group_gemm_mxfp4_nt_groupwise::kCount == 2 && fp4_gemm::kCount == 1);"
    compile_header(tmp_path, header, checks)


def test_a_type_that_operators_cannot_pass_is_refused() -> None:
    function = Function("f", ("int", "Array<int>"), operator="f")
    with pytest.raises(PlanError, match=r"row of f in aot/catalog\.py has the type Array<int>"):
        flashinfer_functions(modules_with(function))
