"""The catalogue agrees with the rest: operators, locks, toolkits, public functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from aot import catalog, locks, not_shipped
from aot.architectures import Architecture, check_fp4_buildable, target_for
from aot.catalog import MODULES, Function, Module
from aot.lowering import LOWERED_VERSION
from aot.lowering.lower import lowered_target
from aot.presets import PRESETS, Preset, for_architectures
from fp4aot import _library
from fp4aot.operators.structured import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "wheels" / "fp4aot"
FUNCTIONS = {function.name: function for module in MODULES for function in module.functions}
OFFERED = {function.operator for function in FUNCTIONS.values() if function.operator}
OF_EXPERTS = {"moe", "group_gemm"}
DENSE = {
    function.operator
    for module in MODULES
    if module.family not in OF_EXPERTS
    for function in module.functions
    if function.operator
}
# Answers a question about a device: it has no tensor, so no `out` form and no public function.
INTERNAL = {operator for operator in OFFERED if operator.startswith("_")}
# Per-token scales are an argument of FlashInfer's `nvfp4_quantize`.
PART_OF_ANOTHER = {"nvfp4_quantize_per_token"}
# It returns nothing.
IN_PLACE = {"nvfp4_quantize_append_paged_kv_cache"}
# The function of the experts, without its activation.
SHARING_A_FUNCTION = {"scaled_fp4_grouped_quantize"}


def module_id(module: Module) -> str:
    return module.name


def public_names() -> set[str]:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {name for name in ast.literal_eval(node.value) if name != "__version__"}
    raise AssertionError("the package has no __all__")


# Rows


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_rows_are_well_formed(module: Module) -> None:
    assert re.fullmatch(r"[a-z0-9_]+", module.name)
    assert re.fullmatch(r"flashinfer\.jit(\.\w+)+:gen_\w+_module\w*", module.generator)
    assert module.architectures
    for name in module.architectures:
        assert str(Architecture.parse(name)) == name
    names = [function.name for function in module.functions]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=lambda function: function.name)
def test_every_function_has_an_operator_or_a_reason(function: Function) -> None:
    assert bool(function.operator) != bool(function.reason)
    assert bool(function.arguments) or function.operator in INTERNAL
    assert set(function.arguments) <= {
        *("DLTensor*", "Optional<DLTensor*>", "Tensor", "int", "float", "bool")
    }


def test_rows_for_different_targets_are_different_modules() -> None:
    names = [module.name for module in MODULES]
    assert len(set(names)) == len(names)
    generators = [module.generator for module in MODULES]
    assert len(set(generators)) == len(generators)


# Architectures (cases 9, 10, 20)


@pytest.mark.parametrize("module", MODULES, ids=module_id)
def test_modules_with_fp4_instructions_have_no_target_that_lacks_them(module: Module) -> None:
    if module.needs_fp4_instructions:
        check_fp4_buildable(map(Architecture.parse, module.architectures), "13.0")
    else:
        assert module.family == "kv_cache"


@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)])
def test_every_blackwell_device_has_every_dense_operator(capability: tuple[int, int]) -> None:
    target = target_for(capability, catalog.DEFAULT_CUDA)
    assert operators_of(MODULES, str(target)) >= DENSE
    assert target.runs_on(capability)


def test_every_blackwell_target_has_each_dense_operator_once() -> None:
    for target in {target for module in MODULES for target in module.architectures} - {"9.0a"}:
        named = [
            function.operator
            for module in MODULES
            if module.family not in OF_EXPERTS and target in module.architectures
            for function in module.functions
            if function.operator
        ]
        assert sorted(named) == sorted(DENSE), target


def test_12_1_never_gets_an_image_of_12_0_alone() -> None:
    assert not Architecture.parse("12.0a").runs_on((12, 1))
    names = {
        target: module.name
        for module in MODULES
        if module.family == "quantization"
        for target in module.architectures
    }
    assert names["12.1a"] == "fp4_quantization_121"
    assert names["12.0f"] == "fp4_quantization_120f"
    assert names["12.0a"] == "fp4_quantization_120"


def test_gemm_modules_have_the_same_exports_and_other_names() -> None:
    modules = [module for module in MODULES if module.family == "gemm"]
    assert [module.name for module in modules] == [
        *("fp4_gemm_cutlass", "fp4_gemm_cutlass_sm103", "fp4_gemm_cutlass_sm120")
    ]
    assert len({module.functions for module in modules}) == 1


def test_some_targets_are_taken_in_the_order_of_the_rows() -> None:
    modules = for_architectures(MODULES, ("12.0f", "9.0a"))
    assert {target for module in modules for target in module.architectures} == {"9.0a", "12.0f"}
    (dequantization,) = [module for module in modules if module.name == "fp4_kv_dequant"]
    assert dequantization.architectures == ("9.0a", "12.0f")
    assert not for_architectures(MODULES, ("9.0", "12.0"))


# Presets and defaults


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_built_with_the_default_toolkit(name: str) -> None:
    preset = PRESETS[name]
    assert preset.name == name
    assert preset.description
    names = [module.name for module in preset.modules]
    assert names
    assert len(set(names)) == len(names)
    for module in preset.modules:
        if module.needs_fp4_instructions:
            check_fp4_buildable(map(Architecture.parse, module.architectures), catalog.DEFAULT_CUDA)


def test_every_preset_says_which_targets_it_has() -> None:
    for preset in PRESETS.values():
        for architecture in {name for module in preset.modules for name in module.architectures}:
            assert architecture in preset.description


@pytest.mark.parametrize("name", ["dense-12.0f", "dense-12.1a", "dense"])
def test_a_dense_preset_has_every_operator_for_each_of_its_blackwells(name: str) -> None:
    modules = PRESETS[name].modules
    targets = {target for module in modules for target in module.architectures} - {"9.0a"}
    for target in targets:
        assert operators_of(modules, target) == DENSE, target


def operators_of(modules: tuple[Module, ...], target: str) -> set[str]:
    return {
        function.operator
        for module in modules
        if target in module.architectures
        for function in module.functions
        if function.operator
    }


# FlashInfer has no grouped GEMM for 11.0, and of NVFP4 only for 12.x.
NVFP4_GROUPS = "group_gemm_nvfp4_nt_groupwise"
MXFP4_GROUPS = "group_gemm_mxfp8_mxfp4_nt_groupwise"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("moe-12.0f", {NVFP4_GROUPS, MXFP4_GROUPS}),
        ("moe-12.1a", {NVFP4_GROUPS, MXFP4_GROUPS}),
        ("group-gemm-12.0f", OFFERED - DENSE - {NVFP4_GROUPS, MXFP4_GROUPS}),
    ],
)
def test_a_preset_for_experts_has_the_dense_path_too(name: str, missing: set[str]) -> None:
    modules = PRESETS[name].modules
    (target,) = {target for module in modules for target in module.architectures} - {"9.0a"}
    assert operators_of(modules, target) == OFFERED - missing


def test_full_has_every_operator_that_there_is_for_each_blackwell() -> None:
    modules = PRESETS["full"].modules
    assert operators_of(modules, "12.0f") == OFFERED
    for target in ("10.0a", "10.3a"):
        assert operators_of(modules, target) == OFFERED - {NVFP4_GROUPS}
    assert operators_of(modules, "11.0a") == OFFERED - {NVFP4_GROUPS, MXFP4_GROUPS}


def test_dense_has_every_blackwell_device() -> None:
    names = {name for module in PRESETS["dense"].modules for name in module.architectures}
    for capability in ((10, 0), (10, 3), (11, 0), (12, 0), (12, 1)):
        assert any(Architecture.parse(name).runs_on(capability) for name in names)


# What is lowered to Hopper


def test_a_lowered_preset_says_that_it_is_for_tests() -> None:
    for name, preset in PRESETS.items():
        assert preset.lowered == name.startswith("lowered")
        assert preset.lowered == preset.description.startswith("TEST ONLY")
    # Whoever does not choose one gets what can be shipped.
    assert not PRESETS["quick"].lowered
    assert not Preset("other", "nothing", ()).lowered


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("lowered", OFFERED - DENSE),
        ("lowered-moe", {MXFP4_GROUPS, NVFP4_GROUPS}),
        ("lowered-group-gemm", OFFERED - DENSE - {NVFP4_GROUPS, MXFP4_GROUPS}),
    ],
)
def test_a_lowered_preset_has_every_operator_on_a_hopper(name: str, missing: set[str]) -> None:
    modules = PRESETS[name].modules
    operators = {
        function.operator
        for module in modules
        for function in module.functions
        if function.operator
    }
    assert operators == OFFERED - missing
    for module in modules:
        # One image of a translation unit can be lowered: two would be for the same target.
        (target,) = module.architectures
        image = lowered_target(f"sm_{Architecture.parse(target).sm}")
        assert Architecture.from_sm(image).runs_on((9, 0)), module.name


def test_a_lowered_wheel_is_no_release() -> None:
    local = Version(f"0.1.0+{LOWERED_VERSION}")
    assert local.local == LOWERED_VERSION
    # As it is written in the name of a wheel and looked for by whoever refuses one.
    assert str(local) == "0.1.0+lowered"


def test_defaults_are_pinned() -> None:
    assert locks.find("flashinfer", Version(catalog.DEFAULT_FLASHINFER)) is not None
    assert locks.find("cuda", Version(catalog.DEFAULT_CUDA)) is not None


def test_the_torch_floor_is_the_same_everywhere() -> None:
    assert _library.release(catalog.TORCH_TARGET) == _library.MINIMUM_TORCH
    metadata = (ROOT / "pyproject.toml").read_text()
    assert f'dependencies = ["torch>={catalog.TORCH_TARGET}"]' in metadata


# Operators (case 19)


def test_every_function_with_an_operator_is_called_from_c() -> None:
    text = "\n".join(path.read_text() for path in (PACKAGE / "csrc" / "operators").glob("*.cpp"))
    called = set(re.findall(r"\bflashinfer::(\w+)[>;]", text))
    assert called == {name for name, function in FUNCTIONS.items() if function.operator}


def test_every_operator_is_registered_in_both_forms() -> None:
    for name in (OFFERED - INTERNAL) | SHARING_A_FUNCTION:
        assert name in OPERATORS, "declare the operator in wheels/fp4aot/operators"
        forms = {form.name for form in OPERATORS[name].overloads("fp4aot")}
        assert forms == ({name} if name in IN_PLACE else {name, f"{name}.out"})


def test_operators_without_a_compiled_function_run_everywhere_in_python() -> None:
    for name in OPERATORS.keys() - (OFFERED | SHARING_A_FUNCTION):
        assert set(OPERATORS[name].keys) == {"CPU", "CUDA"}


def test_every_operator_is_public() -> None:
    named = {name for name in OPERATORS if not name.startswith("_")}
    assert named - PART_OF_ANOTHER <= public_names()


def test_the_public_function_of_every_compiled_one_exists() -> None:
    assert public_names() >= OFFERED - INTERNAL - PART_OF_ANOTHER


def test_a_function_is_shipped_or_not_with_a_reason() -> None:
    assert not public_names() & set(not_shipped.NOT_SHIPPED)
    assert all(not_shipped.NOT_SHIPPED.values())


def _flashinfer_packages() -> list[Path]:
    pattern = "flashinfer-*/lib/python*/site-packages/flashinfer"
    found = sorted((ROOT / "build" / "environments").glob(pattern))
    if not found:
        pytest.skip("NOT TESTED: FlashInfer's own list, because no environment has been made yet")
    return found


def _decorated(path: Path, decorator: str) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(item).split("(")[0] for item in node.decorator_list}
            if decorator in names:
                yield node.name


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def test_all_of_flashinfers_public_quantization_is_accounted_for() -> None:
    for package in _flashinfer_packages():
        public = set(_decorated(package / "quantization/fp4_quantization.py", "flashinfer_api"))
        assert len(public) > 10
        imported = set(_imported(package / "quantization/__init__.py"))
        public |= {name for name in imported if "fp4" in name.lower()}
        assert public <= public_names() | set(not_shipped.NOT_SHIPPED), package


def test_all_of_flashinfers_public_fp4_gemm_is_accounted_for() -> None:
    for package in _flashinfer_packages():
        imported = set(_imported(package / "gemm/__init__.py"))
        public = {name for name in imported if "fp4" in name.lower()}
        assert len(public) > 5
        assert public <= public_names() | set(not_shipped.NOT_SHIPPED), package
