"""The FlashInfer bundle: what goes in, what is refused, and what importing it changes."""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from flashinfer_beside import build, use

from aot import locks
from aot.errors import BuildError, PlanError
from aot.host_compiler import find_host_compiler

LOCK = """\
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
beta==2.0 ; python_full_version < '3.12' \\
    --hash=sha256:cc
beta==3.0 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
"""


def test_a_lock_s_lines_are_picked_for_another_python():
    assert build.lines_of(LOCK, ["alpha", "beta"], "3.12") == [
        "alpha==1.0 --hash=sha256:aa --hash=sha256:bb",
        "beta==3.0 --hash=sha256:dd",
    ]
    assert build.lines_of(LOCK, ["beta"], "3.10") == ["beta==2.0 --hash=sha256:cc"]
    with pytest.raises(PlanError, match="0 entries for gamma"):
        build.lines_of(LOCK, ["gamma"], "3.12")


@pytest.mark.parametrize("lock", locks.available("flashinfer"), ids=lambda lock: str(lock.version))
def test_every_need_is_pinned_with_hashes(lock):
    lines = build.lines_of(lock.path.read_text(), (build.TVM_FFI, *build.PURE_NEEDS), "3.12")
    assert len(lines) == 1 + len(build.PURE_NEEDS)
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("flashinfer/__init__.py", True),
        ("flashinfer/jit/core.py", True),
        ("flashinfer/tuning_configs/a.json", True),
        ("flashinfer/data/csrc/fp4_gemm_cutlass_sm120.jinja", True),
        ("flashinfer/data/csrc/fp4_kv_quantization.cu", False),
        ("flashinfer/data/cutlass/include/cute/util.jinja", False),
        ("flashinfer/experimental/x/csrc/k.cuh", False),
        ("flashinfer/__pycache__/a.cpython-311.pyc", False),
        ("tvm_ffi/lib/libtvm_ffi.so", True),
        ("tvm_ffi/core.cpython-312-x86_64-linux-gnu.so", True),
        ("tvm_ffi/include/dlpack/dlpack.h", False),
        ("tvm_ffi/src/ffi/error.cc", False),
    ],
)
def test_sources_stay_behind(name, stays):
    assert bool(build.LEFT_OUT.search(name)) is not stays


def make_build(folder: Path, monkeypatch, source: str, lowering: str = "") -> build.Built:
    """A build of one module, whose only unit is compiled here."""
    units = folder / "units" / "fp4_quantization_100"
    units.mkdir(parents=True)
    (folder / "plan").mkdir()
    (folder / "plan" / "plan.json").write_text("{}")
    site = folder / "site"
    roots = {
        name: str(site / "flashinfer" / "data" if name == "flashinfer" else folder / name)
        for name in build.Roots.__dataclass_fields__
    }
    (folder / "plan" / "roots.json").write_text(json.dumps(roots))
    module = SimpleNamespace(
        name="fp4_quantization_100", units=(SimpleNamespace(name="kernels_quantization"),)
    )
    plan = SimpleNamespace(
        modules=(module,),
        hash="0123456789abcdef",
        lowering=lowering,
        versions=SimpleNamespace(flashinfer="0.7.2"),
    )
    monkeypatch.setattr(build.BuildPlan, "from_json", lambda _: plan)
    with pytest.raises(PlanError, match=r"1 objects are not built, .*kernels_quantization.o"):
        build.read_build(folder)
    compile_c(source, units / "kernels_quantization.o")
    (folder / "cuda" / "lib64").mkdir(parents=True)
    archive_empty(folder / "cuda" / "lib64" / "libcudart_static.a", folder)
    return build.read_build(folder)


def compile_c(source: str, out: Path) -> None:
    path = out.with_suffix(".c")
    path.write_text(source)
    command = [find_host_compiler().path, "-x", "c", "-fPIC", "-c", path, "-o", out]
    build.process.run(command, purpose="compile a test unit", error=BuildError)


def archive_empty(path: Path, scratch: Path) -> None:
    compile_c("static int nothing;", scratch / "empty.o")
    build.process.run(
        ["ar", "qcs", path, scratch / "empty.o"], purpose="make an archive", error=BuildError
    )


EXPORT = "int TVMFFIErrorSetRaised(void);\nint __tvm_ffi_f(void) { return TVMFFIErrorSetRaised(); }"


def test_a_module_is_linked_with_tvm_ffi_left_to_python(tmp_path, monkeypatch):
    built = make_build(tmp_path, monkeypatch, EXPORT)
    out = tmp_path / "module.so"
    build.link(built, "fp4_quantization_100", out, find_host_compiler().path)
    symbols = build.process.run(["nm", "-D", out], purpose="read", error=BuildError).stdout
    assert re.search(r" T __tvm_ffi_f$", symbols, re.MULTILINE)
    assert re.search(r" U TVMFFIErrorSetRaised$", symbols, re.MULTILINE)


def test_a_library_that_needs_the_driver_is_refused(tmp_path, monkeypatch):
    source = "int cuMemcpy(void);\nint __tvm_ffi_f(void) { return cuMemcpy(); }"
    built = make_build(tmp_path, monkeypatch, source)
    with pytest.raises(BuildError, match="needs cuMemcpy"):
        build.link(built, "fp4_quantization_100", tmp_path / "m.so", find_host_compiler().path)


def test_an_unknown_module_and_a_missing_build_are_named(tmp_path, monkeypatch):
    with pytest.raises(PlanError, match=r"plan.json does not exist; run `python -m aot build`"):
        build.read_build(tmp_path)
    make_build(tmp_path, monkeypatch, EXPORT)
    with pytest.raises(PlanError, match="the plan has no nonsense; it has fp4_quantization_100"):
        build.read_build(tmp_path, ["nonsense"])


FAKE_FLASHINFER = {
    "__init__.py": "__version__ = '0.7.2'\nfrom . import jit, utils\n",
    "utils.py": (
        "import functools\n"
        "class P:\n    major, minor, multi_processor_count = 9, 0, 132\n"
        "def get_device_properties(device):\n    return P()\n"
        "@functools.cache\ndef get_compute_capability(device):\n"
        "    p = get_device_properties(device)\n    return p.major, p.minor\n"
    ),
    "jit/__init__.py": "from . import core, cpp_ext\n",
    "jit/core.py": (
        "from .cpp_ext import run_ninja\n"
        "class JitSpecNvcc:\n    name = 'fp4_kv_quant'\n    aot_path = 'a/b.so'\n"
        "    def build(self, verbose=None):\n        run_ninja(1, 2, verbose)\n"
    ),
    "jit/cpp_ext.py": "def run_ninja(workdir, ninja_file, verbose):\n    raise SystemError\n",
}


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A bundle of a stand-in for FlashInfer, with a linked module; imports of it are undone."""
    folder = tmp_path / "build"
    built = make_build(folder, monkeypatch, EXPORT, lowering="abc")
    package = built.roots.flashinfer.parent
    for name, text in FAKE_FLASHINFER.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for wheel, member in (("apache_tvm_ffi-1-x.whl", "tvm_ffi/a.py"), ("einops-1-x.whl", "e/b.py")):
        with zipfile.ZipFile(wheels / wheel, "w") as content:
            content.writestr(member, "")
    library = tmp_path / "m.so"
    library.write_bytes(b"library")
    out = tmp_path / "bundle"
    out.mkdir()
    build.pack(out / use.ARCHIVE, built, wheels, {"fp4_quantization_100": library})
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(os, "environ", os.environ.copy())
    before = set(sys.modules)
    yield out
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "flashinfer":
            del sys.modules[name]


def test_libraries_lie_where_flashinfer_looks_also_under_a_hopper_s_name(bundle, tmp_path):
    unpacked = use.unpack(bundle, tmp_path / "unpacked")
    aot = unpacked / use.SITE / "flashinfer" / "data" / "aot"
    for name in ("fp4_quantization_100", "fp4_quantization_90", "fp4_quantization_120f"):
        assert (aot / name / f"{name}.so").read_bytes() == b"library"
    assert (aot / "fp4_quantization_90" / "fp4_quantization_90.so").is_symlink()
    assert (unpacked / use.SITE / "tvm_ffi" / "a.py").is_file()
    assert (unpacked / use.NEEDS / "e" / "b.py").is_file()
    described = use.describe(unpacked)
    assert (described["flashinfer"], described["plan_hash"]) == ("0.7.2", "0123456789abcdef")
    assert len(described["libraries"]["fp4_quantization_100"]["sha256"]) == 64


def test_the_archive_names_nobody(bundle):
    with tarfile.open(bundle / use.ARCHIVE) as tar:
        assert {(one.uid, one.uname, one.mtime) for one in tar.getmembers()} == {(0, "", 0)}


def test_flashinfer_is_imported_from_the_bundle_and_cannot_compile(bundle):
    flashinfer = use.import_flashinfer(bundle)
    assert Path(flashinfer.__file__).parts[-3:] == (use.SITE, "flashinfer", "__init__.py")
    core = sys.modules["flashinfer.jit.core"]
    with pytest.raises(use.MissingModuleError, match=r"the module fp4_kv_quant, .* as a/b.so"):
        core.JitSpecNvcc().build(verbose=True)
    for module in (core, sys.modules["flashinfer.jit.cpp_ext"]):
        with pytest.raises(use.MissingModuleError, match="run ninja on b in a"):
            module.run_ninja("a", "b", verbose=False)
    assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == use.ARCHITECTURES
    with pytest.raises(RuntimeError, match="imported already"):
        use.import_flashinfer(bundle)


def test_what_flashinfer_declares_and_nobody_has_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "flashinfer_python-0.7.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 0.7.2\n"
        "Requires-Dist: torch>=2.4\nRequires-Dist: no-such-dsl<2,>=1\n"
        "Requires-Dist: no-such-extra==1; extra == 'cu13'\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert use.absent_dependencies() == ["no-such-dsl"]


def test_a_bundle_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"make it with build\.py"):
        use.import_flashinfer(tmp_path)


def test_another_capability_is_what_flashinfer_has_cached_and_no_more(bundle, monkeypatch):
    flashinfer = use.import_flashinfer(bundle)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    ask, read = flashinfer.utils.get_compute_capability, flashinfer.utils.get_device_properties
    device = torch.device("cuda", 0)
    assert ask(device) == (9, 0)
    with use.as_capability(12, 0):
        assert ask(device) == ask(torch.device("cuda")) == (12, 0)
        assert flashinfer.utils.get_compute_capability is ask, "callers hold the function itself"
        assert flashinfer.utils.get_device_properties is read
        assert (read(device).major, read(device).multi_processor_count) == (9, 132)
    assert ask(device) == (9, 0)
    with pytest.raises(KeyError), use.as_capability(12, 0):
        raise KeyError
    assert ask(device) == (9, 0)
