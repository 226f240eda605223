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
from aot.catalog import Function, Module
from aot.lowering import LOWERED_VERSION
from aot.lowering.lower import lowered_target
from aot.presets import PRESETS, Preset
from fp4aot import _library, _registration

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "wheels" / "fp4aot"
MODULES = [
    *(catalog.quantization(name) for name in catalog.QUANTIZATION_ARCHITECTURES),
    catalog.kv_dequantization("8.0", "9.0a", "12.0f"),
    catalog.kv_quantization("10.0a", "12.0f"),
    *(catalog.gemm(kernels, *names) for kernels, names in catalog.GEMM_ARCHITECTURES.items()),
    *(catalog.moe(kernels, *names) for kernels, names in catalog.MOE_ARCHITECTURES.items()),
    *(
        catalog.group_gemm(kernels, *names)
        for kernels, names in catalog.GROUP_GEMM_ARCHITECTURES.items()
    ),
]
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
def test_every_blackwell_device_has_a_quantization_module(capability: tuple[int, int]) -> None:
    target = target_for(capability, catalog.DEFAULT_CUDA)
    assert catalog.quantization(str(target)).architectures == (str(target),)
    assert target.runs_on(capability)


def test_12_1_never_gets_an_image_of_12_0_alone() -> None:
    assert not Architecture.parse("12.0a").runs_on((12, 1))
    assert catalog.quantization("12.1a").name == "fp4_quantization_121"
    assert catalog.quantization("12.0f").name == "fp4_quantization_120f"
    assert catalog.quantization("12.0a").name == "fp4_quantization_120"


def test_every_target_with_quantization_has_one_group_of_gemm_kernels() -> None:
    targets = [name for names in catalog.GEMM_ARCHITECTURES.values() for name in names]
    assert sorted(targets) == sorted(catalog.QUANTIZATION_ARCHITECTURES)


def test_gemm_modules_have_the_same_exports_and_other_names() -> None:
    modules = [
        catalog.gemm(kernels, *names) for kernels, names in catalog.GEMM_ARCHITECTURES.items()
    ]
    assert [module.name for module in modules] == [
        *("fp4_gemm_cutlass", "fp4_gemm_cutlass_sm103", "fp4_gemm_cutlass_sm120")
    ]
    assert len({module.functions for module in modules}) == 1


@pytest.mark.parametrize("bare", ["10.0", "12.0", "9.0a"])
def test_a_target_without_a_module_has_no_row(bare: str) -> None:
    with pytest.raises(KeyError):
        catalog.quantization(bare)


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
    text = "\n".join(path.read_text() for path in sorted((PACKAGE / "csrc").glob("*.cpp")))
    called = {name for name in FUNCTIONS if f'"{name}"' in text}
    assert called == {name for name, function in FUNCTIONS.items() if function.operator}


def test_every_operator_is_registered_in_both_forms() -> None:
    registered = {overload.name for overload in _registration._OVERLOADS}
    for operator in (OFFERED - INTERNAL) | SHARING_A_FUNCTION:
        assert {operator, f"{operator}.out"} <= registered


def test_operators_without_a_compiled_function_run_everywhere_in_python() -> None:
    for overload in _registration._OVERLOADS:
        if overload.name.removesuffix(".out") not in OFFERED | SHARING_A_FUNCTION:
            assert overload.kernel is not None
            assert set(overload.dispatch_keys) == {"CPU", "CUDA"}


def test_every_operator_is_public() -> None:
    registered = {overload.name.split(".")[0] for overload in _registration._OVERLOADS}
    named = {name for name in registered if not name.startswith("_")}
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
