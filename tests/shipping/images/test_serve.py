"""The image to serve with: no compiler, a user with a number, a read-only root, a health check."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aot.index import IndexedWheel
from tests.shipping.images.conftest import SUITE, ServeImage
from tests.shipping.images.programs import compilers
from tests.shipping.images.tools import WORK
from tests.shipping.images.weight import weigh

PYTHON = ("python", "-I")
# Triton, which PyTorch's CUDA build brings, assembles with a ptxas of its own for torch.compile.
# It compiles no C++ and no CUDA.
TRITON = "/triton/backends/nvidia/bin/"


def test_there_is_no_compiler(serve: ServeImage) -> None:
    assert [path for path in compilers(serve.root) if TRITON not in path] == []


@pytest.mark.parametrize(
    "name",
    ["gcc", "x86_64-linux-gnu-g++-12", "cc", "nvcc", "ptxas", "cicc", "ninja", "cmake", "ld"],
)
def test_a_compiler_would_be_found(tmp_path: Path, name: str) -> None:
    program = tmp_path / "usr" / "bin" / name
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert compilers(tmp_path) == [f"usr/bin/{name}"]


def test_the_health_check_is_doctor_and_passes(serve: ServeImage) -> None:
    kind, *command = serve.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert command == ["python", "-I", "-m", "fp4aot", "doctor"]
    done = serve.run(*command)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "No GPU: the operators run on the CPU reference" in done.stdout


def test_what_runs_by_itself_is_doctor(serve: ServeImage) -> None:
    assert serve.config["Cmd"] == serve.config["Healthcheck"]["Test"][1:]


def test_the_self_test_passes(serve: ServeImage) -> None:
    done = serve.run(*PYTHON, "-m", "fp4aot", "selftest", "--json")
    assert done.exit_code == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert outcomes
    assert {outcome["result"] for outcome in outcomes} <= {"passed"}


def test_the_installed_files_are_those_of_the_wheel(serve: ServeImage) -> None:
    done = serve.run(*PYTHON, "-m", "fp4aot", "doctor", "--verify", "--json")
    assert done.exit_code == 0, done.stdout + done.stderr


def test_it_holds_the_wheel_that_was_built(serve: ServeImage, wheel: IndexedWheel) -> None:
    done = serve.run(*PYTHON, "-m", "fp4aot", "doctor", "--json")
    assert json.loads(done.stdout)["wheel"]["library_sha256"] == wheel.contents.library_sha256


def test_its_user_has_a_number_and_no_rights(serve: ServeImage) -> None:
    script = "import os; print(os.getuid(), os.getgid(), open('/proc/self/status').read())"
    done = serve.run(*PYTHON, "-c", script)
    assert done.stdout.startswith("10001 10001 ")
    assert "CapEff:\t0000000000000000" in done.stdout


@pytest.mark.parametrize(
    ("folder", "writable"), [("/opt/fp4aot", False), ("/", False), ("/tmp", True)]
)
def test_only_tmp_can_be_written(serve: ServeImage, folder: str, writable: bool) -> None:
    script = f"open('{folder}/written', 'w').write('x')"
    done = serve.run(*PYTHON, "-c", script)
    assert (done.exit_code == 0) == writable, done.stderr


def test_bytecode_is_there_already(serve: ServeImage) -> None:
    (package,) = serve.root.glob("opt/fp4aot/lib/python3*/site-packages/fp4aot")
    sources = list(package.rglob("*.py"))
    assert sources
    missing = [
        path
        for path in sources
        if not list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc"))
    ]
    assert missing == []
    done = serve.run("python", "-v", "-c", "import fp4aot")
    assert done.exit_code == 0
    # Where each module's code is from: bytecode, or a source that it has just compiled.
    loaded = re.findall(r"code object from '(/opt/fp4aot/\S+)'", done.stderr)
    assert any("/fp4aot/__pycache__/" in path for path in loaded)
    assert [path for path in loaded if not path.endswith(".pyc")] == []


def test_a_compiled_model_runs_without_a_compiler(serve: ServeImage) -> None:
    """Traced by Dynamo; Inductor's code for the CPU would need g++, which is not what serves."""
    script = (
        "import torch, fp4aot\n"
        "f = torch.compile(lambda x, s: fp4aot.nvfp4_quantize(x, s), backend='eager',"
        " fullgraph=True)\n"
        "x, s = torch.randn(16, 64, dtype=torch.bfloat16), torch.ones(1)\n"
        "assert all(torch.equal(a, b) for a, b in zip(f(x, s), fp4aot.nvfp4_quantize(x, s)))\n"
    )
    done = serve.run(*PYTHON, "-c", script)
    assert done.exit_code == 0, done.stderr


def test_nothing_is_left_behind(serve: ServeImage) -> None:
    """What it weighs; no cache, no list of packages, nothing of the build."""
    weight = weigh(serve.root, WORK / SUITE / "root")
    (WORK / "weight.json").write_text(json.dumps(weight))
    assert weight["anything else"] < 1_000_000
    assert all(weight[part] > 1_000_000 for part in ("base", "fp4aot", "PyTorch and what it needs"))


def test_what_is_left_behind_would_be_found(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    for folder in (root, base):
        (folder / "etc").mkdir(parents=True)
        (folder / "etc/issue").write_text("Debian")
    package = root / "opt/fp4aot/lib/python3.11/site-packages"
    for name, size in (("torch", 40), ("fp4aot", 30), ("fp4aot-1.0.dist-info", 3)):
        (package / name).mkdir(parents=True)
        (package / name / "file").write_bytes(bytes(size))
    (root / "etc/passwd").write_text("more")
    (root / "etc/link").symlink_to("/nowhere")
    parts = {"base": 6, "fp4aot": 33, "PyTorch and what it needs": 40, "anything else": 4}
    assert weigh(root, base) == parts


def test_labels(serve: ServeImage) -> None:
    labels = serve.config["Labels"]
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.version"] == "0.0.0-test"
    assert labels[f"{prefix}.revision"] == "0123456789abcdef"
    assert labels[f"{prefix}.source"] == "https://example.org/fp4aot"
    assert labels[f"{prefix}.licenses"].startswith("Apache-2.0")
    assert labels["fp4aot.cuda"] == "13.0"
