"""Importing registers the operators, once, and does nothing else (cases 21, 22, 28)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fp4aot

PACKAGE = Path(fp4aot.__file__).parent
IMPORT_COPY = "import sys; sys.path.insert(0, sys.argv[1]); import fp4aot"


def test_import_initialises_no_cuda_and_needs_no_gpu(python):
    out = python(
        "import torch, fp4aot; print(torch.cuda.is_initialized(), "
        "torch.ops.fp4aot.fp4_quantize.default._schema.name)"
    )
    assert out.split() == ["False", "fp4aot::fp4_quantize"]


def test_import_again_reload_and_forgetting_the_modules(python):
    python(
        "import importlib, sys, torch, fp4aot\n"
        "importlib.reload(fp4aot)\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'fp4aot']:\n"
        "    del sys.modules[name]\n"
        "import fp4aot as again\n"
        "x = torch.randn(4, 64, dtype=torch.bfloat16)\n"
        "assert again.fp4_quantize(x, torch.ones(1))[0].shape == (4, 32)\n"
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_has_the_operators(python, tmp_path, method):
    program = tmp_path / "main.py"
    program.write_text(
        "import multiprocessing, sys, torch, fp4aot\n"
        "def work(_):\n"
        "    x = torch.ones(4, 64, dtype=torch.bfloat16)\n"
        "    return fp4aot.fp4_quantize(x, torch.ones(1))[0].sum().item()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:\n"
        "        print(pool.map(work, range(4)))\n"
    )
    done = subprocess.run(
        [sys.executable, program, method], capture_output=True, text=True, check=True, timeout=120
    )
    values = done.stdout.strip().strip("[]").split(", ")
    assert len(values) == 4
    assert len(set(values)) == 1


def test_threads_may_call_at_once(python):
    python(
        "import torch, fp4aot\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "w = torch.randint(0, 256, (64, 64), dtype=torch.uint8)\n"
        "s = torch.randint(90, 160, (64, 4), dtype=torch.uint8)\n"
        "want = fp4aot.mxfp4_dequantize_host(w, s)\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    results = list(pool.map(lambda _: fp4aot.mxfp4_dequantize_host(w, s), range(200)))\n"
        "assert all(torch.equal(r, want) for r in results)\n"
    )


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the installed package that a test may damage."""
    shutil.copytree(PACKAGE, tmp_path / "fp4aot")
    return tmp_path


def failure(python, copy: Path) -> str:
    out = python(IMPORT_COPY, str(copy), check=False)
    assert "ImportError: " in out, out
    return out.split("ImportError: ")[-1]


def test_the_undamaged_copy_loads(python, copy):
    assert python(IMPORT_COPY + "; print(fp4aot.__file__)", str(copy)).startswith(str(copy))


def test_a_truncated_library_is_named_with_both_sizes(python, copy):
    library = copy / "fp4aot" / "libfp4aot.so"
    size = library.stat().st_size
    library.write_bytes(library.read_bytes()[: size // 2])
    text = failure(python, copy)
    assert str(library) in text
    assert f"{size // 2} bytes" in text
    assert str(size) in text
    assert "reinstall" in text


def test_a_missing_library_and_a_cut_manifest_are_named(python, copy):
    (copy / "fp4aot" / "libfp4aot.so").unlink()
    assert "libfp4aot.so is missing" in failure(python, copy)
    (copy / "fp4aot" / "_manifest.json").write_text('{"version": "0.1')
    assert "manifest cannot be read" in failure(python, copy)


def compile_library(copy: Path, source: str, *flags: str) -> None:
    """Put a library of our own in the place of the real one, with a manifest that fits."""
    library = copy / "fp4aot" / "libfp4aot.so"
    old = library.stat().st_size
    code = copy / "library.cpp"
    code.write_text(source)
    gxx = os.environ.get("CXX", "g++")
    subprocess.run(
        [gxx, "-shared", "-fPIC", "-o", library, code, *flags], check=True, capture_output=True
    )
    manifest = copy / "fp4aot" / "_manifest.json"
    manifest.write_text(
        manifest.read_text().replace(f'"size": {old}', f'"size": {library.stat().st_size}')
    )


def test_a_torch_without_a_stable_abi_function_is_named(python, copy):
    compile_library(
        copy,
        'extern "C" int torch_function_of_the_future();\n'
        "static int now = torch_function_of_the_future();\n",
    )
    text = failure(python, copy)
    assert "lacks the stable-ABI function torch_function_of_the_future" in text
    assert "install a newer PyTorch" in text


def test_a_library_for_another_processor_is_named(python, copy):
    library = copy / "fp4aot" / "libfp4aot.so"
    content = bytearray(library.read_bytes())
    here = int.from_bytes(content[18:20], "little")  # e_machine: x86-64 or AArch64
    content[18:20] = (183 if here == 62 else 62).to_bytes(2, "little")
    library.write_bytes(content)
    text = failure(python, copy)
    assert "built for another processor" in text


@pytest.mark.parametrize("version", ["2.9.1", "2.1.0+cu121", "1.13.1"])
def test_an_old_torch_is_refused_by_release_not_by_prefix(python, version):
    out = python(f"import torch; torch.__version__ = {version!r}; import fp4aot", check=False)
    assert f"ImportError: fp4aot needs PyTorch 2.10 or newer and found {version}" in out


def test_without_torch_it_says_so(copy):
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", IMPORT_COPY, str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ImportError: fp4aot needs PyTorch; pip install" in done.stderr
