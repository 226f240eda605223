"""Exported programs of NVFP4 layers, saved and loaded in a fresh process, for any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fp4aot

SIZES = (1, 2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


@pytest.fixture
def saved(tmp_path) -> Path:
    """Two layers and what is between them; inputs and eager outputs beside the program."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.SiLU(), torch.nn.Linear(256, 96)
    ).to(torch.bfloat16)
    with fp4aot.nn.record_input_amax(model) as amax:
        model(draw(64, 128))
    fp4aot.nn.replace_linears(model, amax)
    shapes = ({0: torch.export.Dim("rows", min=1, max=4096)},)
    program = torch.export.export(model, (draw(8, 128),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save([(x, model(x)) for x in (draw(r, 128) for r in SIZES)], tmp_path / "model.cases")
    return tmp_path / "model.pt2"


LOAD = """
import sys, torch
{before}
program = torch.export.load(sys.argv[1])
for x, expected in torch.load(sys.argv[1].replace(".pt2", ".cases")):
    assert torch.equal(program.module()(x), expected), x.shape
print("equal")
"""


def test_a_fresh_process_loads_and_runs_it(python, saved):
    assert python(LOAD.format(before="import fp4aot"), str(saved)).split()[-1] == "equal"


def test_without_our_package_the_operator_is_named(python, saved):
    out = python(LOAD.format(before=""), str(saved), check=False)
    assert "equal" not in out.split()
    assert "fp4aot" in out


def test_it_compiles_after_loading(saved):
    module = torch.export.load(saved).module()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for x, expected in torch.load(saved.with_suffix(".cases")):
        assert torch.equal(compiled(x), expected)


def test_decompositions_leave_our_operators_alone(saved):
    program = torch.export.load(saved).run_decompositions()
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("fp4aot.fp4_quantize.default") == 2
    assert targets.count("fp4aot.mm_fp4.default") == 2
