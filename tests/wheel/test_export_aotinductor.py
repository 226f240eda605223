"""AOTInductor packages of NVFP4 layers: in the process that made them, in fresh ones, in C++.

`docs/export.md` says what these tests show. On the CPU: packages for a GPU are made on one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_cpp_example import LIBRARY, build, run

import fp4aot
from fp4aot.nn import NVFP4Linear

SIZES = (1, 2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)
ROWS = torch.export.Dim("rows", min=1, max=4096)


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def package(model: torch.nn.Module, path: Path) -> Path:
    """Compile for any number of rows; write inputs and eager outputs beside the package."""
    program = torch.export.export(model, (draw(8, 128),), dynamic_shapes=({0: ROWS},))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    cases = [(x, model(x)) for x in (draw(rows, 128) for rows in SIZES)]
    torch.save(cases, path.with_suffix(".cases"))
    return path


@pytest.fixture(scope="module")
def nvfp4(tmp_path_factory) -> Path:
    torch.manual_seed(1)
    linear = torch.nn.Linear(128, 96).to(torch.bfloat16)
    layer = NVFP4Linear.from_linear(linear, activations=draw(64, 128))
    return package(layer, tmp_path_factory.mktemp("aoti") / "nvfp4.pt2")


class HostDequantized(torch.nn.Module):
    """A weight in MXFP4 that the host brings back: the operator whose CPU kernel is C++."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.register_buffer(
            "weight", torch.randint(0, 256, (96, 64), generator=generator).to(torch.uint8)
        )
        self.register_buffer(
            "scale", torch.randint(115, 130, (96, 4), generator=generator).to(torch.uint8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() @ fp4aot.mxfp4_dequantize_host(self.weight, self.scale).t()


COMPARE = """
import sys, torch
{before}
package = torch._inductor.aoti_load_package(sys.argv[1])
for x, expected in torch.load(sys.argv[1].replace(".pt2", ".cases")):
    assert torch.equal(package(x), expected), x.shape
print("equal")
"""


def test_a_fresh_process_with_the_package_imported(python, nvfp4):
    assert python(COMPARE.format(before="import fp4aot"), str(nvfp4)).split()[-1] == "equal"


def test_without_our_package_the_operator_is_named(python, nvfp4):
    """A package holds calls, not kernels: who loads it must have imported fp4aot."""
    out = python(COMPARE.format(before=""), str(nvfp4), check=False)
    assert "equal" not in out.split()
    assert "fp4aot::fp4_quantize" in out


def test_with_the_library_alone_the_cpu_reference_is_missing(python, nvfp4):
    """The library brings CUDA kernels; the CPU's are Python and come with `import fp4aot`."""
    load = f"torch.ops.load_library({str(LIBRARY)!r})"
    out = python(COMPARE.format(before=load), str(nvfp4), check=False)
    assert "equal" not in out.split()
    assert "fp4aot::fp4_quantize" in out
    assert "CPU" in out


@pytest.fixture(scope="module")
def run_package(tmp_path_factory) -> Path:
    return build("run_package.cpp", tmp_path_factory.mktemp("cpp"))


def test_a_package_runs_in_cpp_without_python(run_package, tmp_path):
    model = HostDequantized()
    path = package(model, tmp_path / "host.pt2")
    for x, expected in torch.load(path.with_suffix(".cases"))[::4]:
        torch.save(x, tmp_path / "x.pt")
        done = run(run_package, LIBRARY, path, tmp_path / "x.pt", tmp_path / "y.pt")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == "no"
        torch.testing.assert_close(torch.load(tmp_path / "y.pt"), expected)


def test_in_cpp_the_cpu_reference_is_missing(run_package, nvfp4, tmp_path):
    """An NVFP4 layer's package for the CPU needs Python; the error names operator and device."""
    torch.save(draw(8, 128), tmp_path / "x.pt")
    done = run(run_package, LIBRARY, nvfp4, tmp_path / "x.pt", tmp_path / "y.pt")
    assert done.returncode != 0
    assert "fp4aot::fp4_quantize" in done.stderr
    assert "CPU" in done.stderr
    assert not (tmp_path / "y.pt").exists()


def test_the_package_calls_our_operators(nvfp4):
    """Not a decomposition of them."""
    import zipfile

    with zipfile.ZipFile(nvfp4) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("wrapper.json")]
        calls = json.loads(archive.read(name))
    text = json.dumps(calls)
    assert "fp4aot::fp4_quantize" in text
    assert "fp4aot::mm_fp4" in text
