"""The parts that replace names, on small modules of the tests' own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fp4aot._manifest import Manifest, Module, Target
from fp4aot.integrations import rebinding
from fp4aot.integrations._flashinfer import coverage, inspection, table
from fp4aot.integrations.import_hook import AfterImport
from fp4aot.integrations.report import Kept, Report

# Rebinding


@pytest.fixture
def modules(monkeypatch):
    """Make modules with given names in them."""

    def make(**contents: dict) -> list[types.ModuleType]:
        made = []
        for name, namespace in contents.items():
            module = types.ModuleType(name)
            vars(module).update(namespace)
            monkeypatch.setitem(sys.modules, name, module)
            made.append(module)
        return made

    return make


def test_every_binding_changes_under_whatever_name(modules):
    def old():
        return "old"

    def equal_but_other():
        return "old"

    def new():
        return "new"

    defining, importing = modules(
        fp4aot_test_defining={"quantize": old, "other": equal_but_other},
        fp4aot_test_importing={"q": old, "quantize": old, "unrelated": 1},
    )
    assert sorted(rebinding.rebind([(old, new)])) == [
        "fp4aot_test_defining.quantize",
        "fp4aot_test_importing.q",
        "fp4aot_test_importing.quantize",
    ]
    assert defining.quantize is importing.q is importing.quantize is new
    assert defining.other is equal_but_other
    # Back again, also where somebody has bound it since.
    (since,) = modules(fp4aot_test_since={"mine": importing.q})
    rebinding.rebind([(new, old)])
    assert since.mine is defining.quantize is importing.q is importing.quantize is old


def test_lazy_modules_are_not_woken(modules):
    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"asked for {name}")

    lazy = Lazy("fp4aot_test_lazy")
    modules(fp4aot_test_plain={"f": len})
    sys.modules["fp4aot_test_lazy"] = lazy
    sys.modules["fp4aot_test_no_module"] = object()
    try:
        assert "fp4aot_test_plain.f" in rebinding.rebind([(len, len)])
    finally:
        del sys.modules["fp4aot_test_lazy"], sys.modules["fp4aot_test_no_module"]


# The import hook


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that can be imported."""
    folder = tmp_path / "fp4aot_test_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .inner import value\n")
    (folder / "inner.py").write_text("value = 1\n")
    (folder / "data.txt").write_text("data")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_the_action_runs_after_the_packages_code(package):
    seen = []
    hook = AfterImport(package, lambda: seen.append(sys.modules[package].value))
    hook.install()
    hook.install()
    try:
        assert sys.meta_path.count(hook) == 1
        module = importlib.import_module(package)
        importlib.import_module(f"{package}.inner")
        assert seen == [1]
        # The module is as it would be without the hook.
        assert type(module.__loader__).__module__ == "_frozen_importlib_external"
        assert module.__spec__.loader is module.__loader__
        assert importlib.resources.files(package).joinpath("data.txt").read_text() == "data"
        # Imported anew: it runs again.
        del sys.modules[package]
        importlib.import_module(package)
        assert seen == [1, 1]
    finally:
        hook.remove()
        hook.remove()
    assert hook not in sys.meta_path


def test_a_package_that_fails_to_import_fails_as_before(package, tmp_path):
    (tmp_path / package / "inner.py").write_text("raise OSError('no driver')\n")
    seen = []
    hook = AfterImport(package, lambda: seen.append(1))
    hook.install()
    try:
        with pytest.raises(OSError, match="no driver"):
            importlib.import_module(package)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("fp4aot_test_absent")
    finally:
        hook.remove()
    assert seen == []


# Whose function it is


def function_of(module: str, source: str, name: str = "f"):
    namespace = {"__name__": module}
    exec(source, namespace)
    return namespace[name]


WRAPPING = """
import functools
def wrap(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        return function(*arguments, **keywords)
    return wrapper
"""


def test_a_wrapper_belongs_to_who_wrote_it():
    own = function_of("flashinfer.quantization.fp4_quantization", "def f(a): pass")
    cached = function_of("flashinfer.gemm", "import functools\n@functools.cache\ndef f(a=1): pass")
    by_flashinfer = function_of("flashinfer.utils", WRAPPING, "wrap")(own)
    by_another = function_of("another.plugin", WRAPPING, "wrap")(own)
    assert by_another.__module__ == own.__module__
    for function in (own, cached, by_flashinfer):
        assert inspection.is_flashinfers(function)
    assert not inspection.is_flashinfers(by_another)
    assert inspection.owner(by_another) == "another.plugin"
    assert not inspection.is_flashinfers(function_of("flashinfer_tools", "def f(): pass"))
    assert not inspection.is_flashinfers(len)


# What the wheel covers


def manifest(**targets: str) -> Manifest:
    """A wheel with operators for targets, such as fp4_quantize="12.0f"."""
    modules = tuple(
        Module(
            *(name, "family"),
            *(tuple(map(Target.parse, text.split())),) * 2,
            ((name, name),),
        )
        for name, text in targets.items()
    )
    return Manifest("0.1.0", "p", "", (("flashinfer", "0.7.2"),), "", modules, "", 0, "")


WHEEL = manifest(fp4_quantize="12.0f", nvfp4_kv_dequantize="8.0 9.0a 12.0f")
QUANTIZE = (("fp4_quantize",), (10, 0))
DEQUANTIZE = (("nvfp4_kv_dequantize",), (8, 0))


@pytest.mark.parametrize(
    ("row", "capabilities", "reason"),
    [
        (QUANTIZE, ((12, 0),), ""),
        (QUANTIZE, ((12, 1), (12, 0)), ""),
        # Nobody can quantize on the other one.
        (QUANTIZE, ((12, 0), (8, 9)), ""),
        (QUANTIZE, ((12, 0), (10, 0)), "not in this wheel for compute capability 10.0"),
        (QUANTIZE, ((9, 0),), "not in this wheel for compute capability 9.0"),
        (DEQUANTIZE, ((9, 0),), ""),
        (DEQUANTIZE, ((9, 0), (10, 0)), "not in this wheel for compute capability 10.0"),
        ((("mm_fp4",), (10, 0)), ((12, 0),), "not in this wheel"),
        ((("mxfp4_dequantize_host",), (10, 0)), ((12, 0),), "not in this wheel"),
        # Nothing compiled.
        (((), (10, 0)), ((9, 0),), ""),
        # There is a GPU, and nobody can tell which: the operator refuses by name.
        (QUANTIZE, None, ""),
        ((("mm_fp4",), (10, 0)), None, "not in this wheel"),
        # No GPU: the reference has everything.
        ((("mm_fp4",), (10, 0)), (), ""),
    ],
)
def test_coverage(row, capabilities, reason):
    operators, lowest = row
    assert coverage.why_not(WHEEL, operators, lowest, capabilities) == reason


def test_the_table_names_operators_that_exist():
    from fp4aot.operators.structured import OPERATORS

    known = {name for name, operator in OPERATORS.items() if "CUDA" not in operator.keys}
    rows = (*table.PUBLIC_FUNCTIONS, *table.MODULE_GETTERS)
    used = {operator for row in rows for operator in row.operators}
    assert used <= known
    # FlashInfer offers the one to nobody. docs/adding-a-module.md ends before its operator replaces
    # FlashInfer's, and its test runs this one.
    assert known - used - {"merge_state"} == {"block_scale_interleave_reverse"}
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)


# Reports


def test_a_summary_is_one_line():
    report = Report(
        *("0.7.4", "0.7.2"),
        active=True,
        replaced=("fp4_quantize", "mm_fp4"),
        kept=(Kept("nvfp4_kv_quantize", "not in this wheel"), Kept("x", "not in this wheel")),
        problems=("FlashInfer 0.7.4 is installed",),
    )
    assert report.summary() == (
        "FlashInfer 0.7.4: 2 functions replaced; FlashInfer keeps nvfp4_kv_quantize, x "
        "(not in this wheel); FlashInfer 0.7.4 is installed"
    )
    waiting = Report("0.7.2", "0.7.2", active=True, pending=True, replaced=("mm_fp4",))
    assert waiting.summary() == "FlashInfer 0.7.2: 1 functions are replaced once it is imported"
    assert Report(None, "0.7.2").summary().startswith("no FlashInfer: not active")


# Importing


def test_importing_the_package_imports_no_server_and_no_flashinfer():
    """In a process of its own; the entry points are imported too."""
    root = Path(__file__).resolve().parents[2]
    program = f"""
import sys
sys.path.insert(0, {str(root / "tests/unit")!r})
import conftest
import fp4aot.integrations, fp4aot.integrations.sglang, fp4aot.integrations.vllm
import fp4aot.integrations.settings, fp4aot.integrations.devices
wrong = {{"flashinfer", "sglang", "vllm", "pynvml", "fp4aot.integrations.flashinfer"}}
assert not wrong & set(sys.modules)
assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
