"""The FlashInfer bundle: what goes in, what is refused, and what importing it changes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compile_jobs import make_job
from flashinfer_beside import binding, build, use

from aot import locks
from aot.compile.job_list import JobList
from aot.errors import BuildError, PlanError
from aot.host_compiler import find_host_compiler
from aot.presets import PRESETS

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
        ("flashinfer/data/csrc/group_gemm_sm120_binding.cu", True),
        ("flashinfer/data/csrc/gemm_groupwise_sm120.cu", True),
        ("flashinfer/data/csrc/gemm_groupwise_sm100.cu", False),
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
    job = make_job("fp4_quantization_100/kernels_quantization")
    own = make_job("operators/gemm", group="own")
    listed = JobList((job, own), *(folder / name for name in ("objects", "s", "l", "c")), ())
    (folder / "plan").mkdir(parents=True)
    (folder / "plan" / "jobs.json").write_text(json.dumps(listed.to_json()))
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
    with pytest.raises(PlanError, match=rf"1 objects are not built, .*{job.key}\.o"):
        build.read_build(folder)
    compile_c(source, folder / "kernels_quantization.o")
    listed.store.put(job, folder / "kernels_quantization.o", "compiled")
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


MISSING = {
    "_ZN12tensorrt_llm7kernels6RunnerIfE3runEv": True,
    "_ZTVN12tensorrt_llm7kernels6RunnerIfEE": True,
    "_ZTIN12tensorrt_llm7kernels9InterfaceE": True,
    "_Z33CutlassGroupGemmFP8GroupwiseScaledv": True,
    "_ZN9deep_gemm3jit8Compiler5buildEv": True,
    "_ZNSt6vectorIiSaIiEE3endEv": False,
    "_ZTVN10__cxxabiv120__si_class_type_infoE": False,
    "cudaMalloc": False,
    "TVMFFIErrorSetRaised": False,
}


def test_what_a_binding_names_of_other_dtypes_is_told_from_what_libraries_have():
    assert binding.absent_from(MISSING) == sorted(n for n, ours in MISSING.items() if ours)
    symbols = binding.ObjectSymbols(frozenset(list(MISSING)[:1]), frozenset(MISSING))
    assert next(iter(MISSING)) not in binding.absent(symbols)


@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("return f() == 0 && v[0] == 0 && v[4095] == 0 ? 0 : 1;", 0, ""),
        ("run();", -signal.SIGABRT, "this bundle of FlashInfer holds FP4 kernels alone"),
    ],
    ids=["idle functions and tables", "a runner of another dtype"],
)
def test_stubs_link_and_say_what_they_are(tmp_path, statement, status, message):
    run, table = list(MISSING)[:2]
    stubs = tmp_path / "stubs.cpp"
    stubs.write_text(binding.stub_source([run, table], ["f"], "int own() { return 7; }"))
    main = tmp_path / "main.cpp"
    main.write_text(
        f'extern char v[] __asm__("{table}");\nvoid run() __asm__("{run}");\n'
        'extern "C" { int own(); int __tvm_ffi_f(void*, const void*, int, void*); }\n'
        "int f() { return __tvm_ffi_f(0, 0, 0, 0) + own() - 7; }\n"
        f"int main() {{ {statement} }}\n"
    )
    program = tmp_path / "program"
    command = [find_host_compiler().path, "-std=c++17", "-O1", "-fPIC", stubs, main, "-o", program]
    build.process.run(command, purpose="link stubs", error=BuildError)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert message in done.stderr


def make_toolkit_stand_in(folder: Path) -> None:
    """A compiler by nvcc's name: it leaves out what only nvcc knows."""
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    compiler = find_host_compiler().path
    nvcc.write_text(f'#!/bin/sh\nshift 2\nexec {compiler} -x c++ "$@"\n')
    nvcc.chmod(0o755)


def make_selected_module(folder: Path, source: str) -> tuple:
    """A module with a kernel, an entry of ours, and FlashInfer's binding."""
    make_toolkit_stand_in(folder)
    csrc = folder / "flashinfer" / "csrc"
    csrc.mkdir(parents=True)
    (csrc / "group_gemm_sm120_binding.cu").write_text(source)
    names = ("kernel", "modules_nvfp4_group_gemm_sm120")
    for name in names:
        compile_c(
            f"int {name}(void) {{ return 5; }}\nint export_(void) {{ return 5; }}"
            if name != "kernel"
            else "int kernel(void) { return 5; }",
            folder / f"{name}.o",
        )
    module = SimpleNamespace(
        name="gemm_sm120",
        images=("12.0f",),
        architectures=("12.0f",),
        units=tuple(SimpleNamespace(name=name, flags=("-fPIC", "-DANSWER=5")) for name in names),
    )
    plan = SimpleNamespace(modules=(module,), lowering="")
    roots = SimpleNamespace(
        cuda=folder / "cuda", flashinfer=folder / "flashinfer", expand=lambda flag: flag
    )
    return plan, roots, module, {name: folder / f"{name}.o" for name in names}


BINDING = """
void CutlassGroupGemmFP8GroupwiseScaled();
extern "C" int kernel(void);
extern "C" int export_(void) {
  if (kernel() != ANSWER) CutlassGroupGemmFP8GroupwiseScaled();
  return 0;
}
"""


def test_flashinfer_s_binding_takes_the_place_of_ours(tmp_path):
    plan, roots, module, objects = make_selected_module(tmp_path, BINDING)
    compiler = find_host_compiler().path
    linked = binding.objects_with_binding(plan, roots, module, objects, tmp_path, compiler)
    merged, stubs = (binding.read_symbols(path) for path in linked)
    assert {"kernel", "export_"} <= merged.defined
    assert "modules_nvfp4_group_gemm_sm120" not in merged.defined
    assert "_Z34CutlassGroupGemmFP8GroupwiseScaledv" in merged.undefined & stubs.defined


def test_a_module_whose_binding_is_not_replaced_is_refused(tmp_path):
    plan, roots, module, objects = make_selected_module(tmp_path, BINDING)
    module.units = module.units[:1]
    with pytest.raises(PlanError, match="gemm_sm120 has no unit modules_nvfp4_group_gemm_sm120"):
        binding.objects_with_binding(plan, roots, module, objects, tmp_path, Path("g++"))


def test_the_catalogue_replaces_the_bindings_that_are_put_back():
    """By name: what is left out of our wheel's objects must be what stands for the binding."""
    modules = {m.name: m for preset in PRESETS.values() for m in preset.modules}
    for name, each in binding.BINDINGS.items():
        replaced = modules[name].selection.replaced
        theirs = {Path(source).name for source in each.sources}
        assert theirs <= set(replaced), name
        ours = {f"modules_{Path(source).stem}" for source in replaced.values()}
        assert each.in_place_of[0] in ours


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
