"""FlashInfer's specifications, read by the real reader from a small FlashInfer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from aot.architectures import Architecture, parse_list
from aot.catalog import Module
from aot.environment import FlashInferEnvironment
from aot.errors import PlanError
from aot.specs import SourceUnit, read, reader_environment
from aot.toolchain import Toolkit

F120 = Architecture.parse("12.0f")

# A command as FlashInfer writes it: compiler, source, flags, object. Its targets come from the
# environment, read once, and importing it prints.
FLASHINFER = """
__version__ = "0.7.2"
"""
GENERATORS = """
import os

print("FlashInfer prints when it is imported")
TARGETS = os.environ["FLASHINFER_CUDA_ARCH_LIST"].split()


class Specification:
    needs_device_linking = False
    extra_ldflags = None

    def __init__(self, name, **changes):
        self.name = name
        vars(self).update(changes)

    def get_compile_commands(self):
        sources = {"/data/csrc/op.cu": "/cuda/bin/nvcc", "/data/csrc/binding.cpp": "c++"}
        flags = " ".join(f"-gencode=arch=compute_{t.replace('.', '')}" for t in TARGETS)
        return [
            {
                "directory": "/workspace",
                "file": source,
                "command": f"{compiler} -c {source} -O3 {flags} '-DNAME=a b' -O3 "
                f"-o /workspace/{self.name}.o",
            }
            for source, compiler in sources.items()
        ]


def gen_quantization_module():
    return Specification("quantization")


def gen_kv_module():
    return Specification("kv")


def gen_linked_module():
    return Specification("linked", needs_device_linking=True)


def gen_flagged_module():
    return Specification("flagged", extra_ldflags=["-lcuda"])


def gen_broken_module():
    raise RuntimeError("no GPU here")


def gen_leaving_module():
    raise SystemExit(0)
"""


class FlashInfer:
    """An environment whose interpreter imports the package above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "site/flashinfer"
        (package / "jit").mkdir(parents=True)
        (package / "__init__.py").write_text(FLASHINFER)
        (package / "jit/__init__.py").write_text(GENERATORS)
        self.python = folder / "python"
        # The pipeline isolates the interpreter with -I, as the environment has its own packages.
        self.python.write_text(
            f'#!/bin/sh\n[ "$1" = -I ] || exit 9\nshift\necho run >> {folder}/runs\n'
            f'env > {folder}/environ\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text().splitlines())

    def environment(self) -> FlashInferEnvironment:
        return FlashInferEnvironment(self.python, Version("0.7.2"), *(self.folder,) * 5)

    def toolkit(self) -> Toolkit:
        version = Version("13.0")
        return Toolkit(Path("/cuda"), version, version, Path("/cuda/bin/nvcc"), None, None, "t", ())

    def read(self, modules: Sequence[Module]):
        return read(modules, self.environment(), self.toolkit(), self.folder / "workspace")


@pytest.fixture
def flashinfer(tmp_path: Path) -> FlashInfer:
    return FlashInfer(tmp_path)


def module(name: str, *targets: str, generator: str | None = None) -> Module:
    generator = generator or f"flashinfer.jit:gen_{name}_module"
    return Module(name, "family", generator, targets or ("12.0f",), True, ())


# Reading


def test_flags_are_complete_in_order_and_without_compiler_source_and_object(
    flashinfer: FlashInfer,
) -> None:
    found = flashinfer.read([module("quantization")])
    assert found.flashinfer_version == "0.7.2"
    assert found.python_include.is_absolute()
    (specification,) = found.specifications
    assert specification.name == "quantization"
    flags = ("-O3", "-gencode=arch=compute_120f", "-DNAME=a b", "-O3")
    assert specification.units == (
        SourceUnit(Path("/data/csrc/op.cu"), flags),
        SourceUnit(Path("/data/csrc/binding.cpp"), flags),
    )
    assert [unit.is_cuda for unit in specification.units] == [True, False]


def test_modules_with_other_targets_are_read_apart_and_come_back_in_order(
    flashinfer: FlashInfer,
) -> None:
    rows = [
        module("quantization", "12.0f"),
        module("kv", "9.0a", "12.0f"),
        module("quantization", "12.0f"),
    ]
    found = flashinfer.read(rows)
    assert [item.name for item in found.specifications] == ["quantization", "kv", "quantization"]
    assert flashinfer.runs == 2
    kv = found.specifications[1].units[0].flags
    assert kv[1:3] == ("-gencode=arch=compute_90a", "-gencode=arch=compute_120f")
    assert "-gencode=arch=compute_90a" not in found.specifications[0].units[0].flags


def test_another_module_than_the_catalogues_is_refused(flashinfer: FlashInfer) -> None:
    row = module("quantization", generator="flashinfer.jit:gen_kv_module")
    with pytest.raises(PlanError, match=r"yields the module 'kv'.*catalogue says 'quantization'"):
        flashinfer.read([row])


@pytest.mark.parametrize("name", ["linked", "flagged"])
def test_what_the_build_would_not_do_is_refused(flashinfer: FlashInfer, name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} asks for device linking or for linker flags"):
        flashinfer.read([module(name)])


@pytest.mark.parametrize(
    ("name", "reason"), [("broken", "no GPU here"), ("renamed", "gen_renamed_module")]
)
def test_a_generator_that_fails_is_named_with_its_reason(
    flashinfer: FlashInfer, name: str, reason: str
) -> None:
    with pytest.raises(PlanError, match=f"cannot read FlashInfer's specifications of {name}") as e:
        flashinfer.read([module(name)])
    assert reason in str(e.value)


def test_no_answer_is_an_error(flashinfer: FlashInfer) -> None:
    with pytest.raises(PlanError, match="answer about leaving is not JSON"):
        flashinfer.read([module("leaving")])


# The environment (case 28: the builder needs no GPU)


def test_flashinfer_is_told_its_targets_toolkit_and_folder(
    flashinfer: FlashInfer, tmp_path: Path
) -> None:
    variables = reader_environment(
        parse_list("12.0f 9.0a 10.3a"), flashinfer.toolkit(), tmp_path / "w"
    )
    assert variables["FLASHINFER_CUDA_ARCH_LIST"] == "9.0a 10.3a 12.0f"
    assert variables["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path / "w")
    assert variables["CUDA_HOME"] == "/cuda"


def test_a_build_does_not_depend_on_who_runs_it(
    flashinfer: FlashInfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbing = {
        "FLASHINFER_EXTRA_CUDAFLAGS": "-O0",
        "FLASHINFER_NVCC": "/elsewhere/nvcc",
        "FLASHINFER_JIT_DEBUG": "1",
        "FLASHINFER_CUDA_ARCH_LIST": "7.5",
        "FLASHINFER_WORKSPACE_BASE": "/elsewhere",
        "CUDA_HOME": "/elsewhere",
        "TORCH_CUDA_ARCH_LIST": "7.5",
        "CXX": "clang++",
        "CXXFLAGS": "-O0",
        "NVCC_APPEND_FLAGS": "-O0",
        "PYTHONPATH": "/elsewhere",
        "LD_PRELOAD": "",
    }
    for name, value in disturbing.items():
        monkeypatch.setenv(name, value)
    variables = reader_environment([F120], flashinfer.toolkit(), Path("/w"))
    assert "/elsewhere" not in variables.values()
    assert "-O0" not in variables.values()
    assert set(variables) <= {
        *("PATH", "HOME", "TMPDIR", "CUDA_HOME", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE"),
        *("FLASHINFER_CUDA_ARCH_LIST", "FLASHINFER_WORKSPACE_BASE"),
        "FLASHINFER_DISABLE_VERSION_CHECK",
    }
    assert variables["PATH"] == os.environ["PATH"]

    flashinfer.read([module("quantization")])
    seen = dict(
        line.split("=", 1) for line in (flashinfer.folder / "environ").read_text().splitlines()
    )
    assert seen["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert not {"CXX", "FLASHINFER_NVCC", "NVCC_APPEND_FLAGS", "PYTHONPATH"} & set(seen)
