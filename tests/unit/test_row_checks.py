"""Rows against the operators that C++ defines and the functions that the planned sources export."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plans import plan_of

from aot.catalog import Function
from aot.errors import PlanError
from aot.exports import check_exports
from aot.operator_sources import check_operators, defined_operators
from aot.plan import BuildPlan, ModulePlan, Roots, Unit

FUNCTIONS = (
    Function("quantize", ("int",), operator="fp4_quantize"),
    Function("count", (), operator="_count", result="int"),
    Function("other", ("int",), reason="not offered"),
)
BINDING = """
// TVM_FFI_DLL_EXPORT_TYPED_FUNC(old, Old);
#define EXPORT(name) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, name)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(quantize,
                              Quantize);
  TVM_FFI_DLL_EXPORT_TYPED_FUNC(count,Count);
"""
LAUNCHER = """
extern "C" {
TVM_FFI_DLL_EXPORT int __tvm_ffi_other(void* self, const TVMFFIAny* args, int32_t count,
                                       TVMFFIAny* result);
}
"""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    data = tmp_path / "data"
    data.mkdir()
    (data / "binding.cu").write_text(BINDING)
    (data / "launcher.cpp").write_text(LAUNCHER)
    (data / "unplanned.cu").write_text("TVM_FFI_DLL_EXPORT_TYPED_FUNC(unplanned, Unplanned);\n")
    return Roots(data, *[tmp_path / "elsewhere"] * 5)


def plan_with(*functions: Function) -> BuildPlan:
    units = tuple(
        Unit(name, f"@FLASHINFER@/{name}", language, (), "0" * 64)
        for name, language in (("binding.cu", "cuda"), ("launcher.cpp", "c++"))
    )
    return plan_of(ModulePlan("quant", "family", ("12.0f",), ("12.0f",), units, functions))


# Exports


def test_sources_that_export_what_the_rows_list_are_planned(roots: Roots) -> None:
    check_exports(plan_with(*FUNCTIONS), roots)


@pytest.mark.parametrize(("gone", "file"), [("quantize", "binding.cu"), ("other", "launcher.cpp")])
def test_an_export_without_a_row_is_refused(roots: Roots, gone: str, file: str) -> None:
    rows = [function for function in FUNCTIONS if function.name != gone]
    with pytest.raises(PlanError) as error:
        check_exports(plan_with(*rows), roots)
    assert str(error.value).splitlines() == [
        "FlashInfer 0.7.2 exports other functions than aot/catalog.py lists:",
        f"  quant: {roots.flashinfer / file} exports {gone}; it wants a row in aot/catalog.py, "
        "with an operator or a reason for having none",
    ]


@pytest.mark.parametrize("name", ["unplanned", "old", "name"])
def test_a_row_without_an_export_is_refused(roots: Roots, name: str) -> None:
    row = Function(name, (), operator="fp4_quantize")
    with pytest.raises(PlanError) as error:
        check_exports(plan_with(*FUNCTIONS, row), roots)
    assert str(error.value).splitlines()[1:] == [
        f"  quant: no source exports {name} (exports are in: binding.cu, launcher.cpp); FlashInfer "
        "has dropped the function: remove its row from aot/catalog.py"
    ]


def test_every_difference_is_named_at_once(roots: Roots) -> None:
    (roots.flashinfer / "launcher.cpp").write_text("")
    plan = plan_with(*FUNCTIONS[1:])
    again = dataclasses.replace(plan.modules[0], name="again", units=())
    with pytest.raises(PlanError) as error:
        check_exports(dataclasses.replace(plan, modules=(*plan.modules, again)), roots)
    message = str(error.value)
    for part in ("exports quantize;", "quant: no source exports other", "again: no source exports"):
        assert part in message
    assert "exports are in: none of its sources" in message


# Operators


def test_operators_are_found_by_the_macros_that_define_them(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("FP4AOT_OPERATOR(fp4_quantize, Quantize)\nmm_fp4(a, b);\n")
    (tmp_path / "b.cpp").write_text('FP4AOT_FUNCTION(\n    _count, "(int device) -> int");\n')
    (tmp_path / "b.h").write_text("#define FP4AOT_FUNCTION(name, schema) name\n")
    assert defined_operators(tmp_path) == {"fp4_quantize", "_count"}
    check_operators(plan_with(*FUNCTIONS), tmp_path)


def test_a_row_whose_operator_is_not_defined_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("FP4AOT_OPERATOR(fp4_quantize_other, Quantize)\n")
    with pytest.raises(PlanError) as error:
        check_operators(plan_with(*FUNCTIONS), tmp_path)
    assert str(error.value).splitlines() == [
        f"aot/catalog.py has rows whose operators no source in {tmp_path} defines:",
        "  quant.quantize: fp4_quantize",
        "  quant.count: _count",
        "define them there with FP4AOT_OPERATOR or FP4AOT_FUNCTION, or correct `operator=`",
    ]
