"""NVFP4Linear of the installed wheel: ModelOpt's tensors, one graph, export."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import fp4aot
from fp4aot.nn import NVFP4Linear

SIZES = (2, 3, 7, 16, 31, 33, 64, 129, 500, 1000)


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def stack() -> torch.nn.Sequential:
    """Three layers, each calibrated on what the one before makes of a sample."""
    torch.manual_seed(1)
    sizes = ((128, 256), (256, 96), (96, 64))
    model = torch.nn.Sequential(*(torch.nn.Linear(k, n) for k, n in sizes)).to(torch.bfloat16)
    with fp4aot.nn.record_input_amax(model) as amax:
        model(draw(64, 128))
    fp4aot.nn.replace_linears(model, amax)
    return model


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_serves_ten_sizes_of_a_rank(backend):
    """Case 24: a new size compiles nothing, and a new rank compiles once."""
    model = stack()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for rows in SIZES:
        x = draw(rows, 128)
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1
    for batch, rows in zip((5, 2, 3, 9), SIZES[2:], strict=False):
        x = draw(batch, rows, 128)
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 2


@pytest.mark.parametrize("shape", [(0, 128), (2, 0, 128), (1, 128)])
def test_edge_shapes(shape):
    """Case 25: empty inputs give empty results."""
    model = stack()
    result = model(torch.randn(shape).to(torch.bfloat16))
    assert result.shape == (*shape[:-1], 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(
        compiled(torch.zeros(shape, dtype=torch.bfloat16)),
        model(torch.zeros(shape, dtype=torch.bfloat16)),
    )


def test_export_with_a_dynamic_batch_equals_eager():
    model = stack()
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (draw(8, 128),), dynamic_shapes=shapes)
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("fp4aot.fp4_quantize.default") == 3
    assert targets.count("fp4aot.mm_fp4.default") == 3
    for rows in SIZES:
        assert torch.equal(program.module()(draw(rows, 128)), model(draw(rows, 128)))


def test_an_aotinductor_package_equals_eager(tmp_path):
    model = stack()
    shapes = ({0: torch.export.Dim("batch", min=2, max=4096)},)
    program = torch.export.export(model, (draw(8, 128),), dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "stack.pt2")
    )
    loaded = torch._inductor.aoti_load_package(path)
    for rows in SIZES:
        assert torch.equal(loaded(draw(rows, 128)), model(draw(rows, 128)))


def test_a_modelopt_state_dict():
    """Scalars of shape [] or [1], scales as float8 or bytes; the weight that they stand for."""
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(1, 127, (160, 6), generator=generator).byte()
    tensors = {
        "weight": torch.randint(0, 256, (160, 48), generator=generator).byte(),
        "weight_scale": codes.view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(3.1e-4),
        "input_scale": torch.tensor(4 / (448 * 6.0)),
        "bias": torch.randn(160, generator=generator).bfloat16(),
    }
    layer = NVFP4Linear(96, 160)
    layer.load_state_dict(tensors)
    assert list(layer.state_dict()) == list(tensors)

    swizzled = fp4aot.block_scale_interleave(codes)
    weight = fp4aot.e2m1_and_ufp8sf_scale_to_float(
        tensors["weight"], swizzled, tensors["weight_scale_2"]
    )
    x = draw(130, 96).clamp(-4, 4)
    values, scales = fp4aot.nvfp4_quantize(x, 1 / tensors["input_scale"])
    rounded = fp4aot.e2m1_and_ufp8sf_scale_to_float(values, scales, tensors["input_scale"])
    expected = (rounded @ weight.T).bfloat16() + tensors["bias"]
    torch.testing.assert_close(layer(x), expected)

    other = NVFP4Linear(96, 160)
    other.load_state_dict(
        {
            **tensors,
            "weight_scale": codes,
            "weight_scale_2": tensors["weight_scale_2"].reshape(1),
            "input_scale": tensors["input_scale"].reshape(1),
        }
    )
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("overload", ["default", "out"])
def test_opcheck_of_a_real_product(overload):
    a, b = draw(130, 96), draw(160, 96)
    scale = torch.tensor([500.0])
    (a_values, a_scales), (b_values, b_scales) = (fp4aot.nvfp4_quantize(x, scale) for x in (a, b))
    arguments = (a_values, b_values.T, a_scales, b_scales.T, 1 / (scale * scale))
    if overload == "default":
        arguments += (torch.float16,)
        keywords = {}
    else:
        keywords = {"out": torch.empty(130, 160, dtype=torch.float16)}
    operator = getattr(torch.ops.fp4aot.mm_fp4, overload)
    torch.library.opcheck(operator, arguments, keywords)
