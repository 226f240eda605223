"""`NVFP4Linear`: checkpoints, quantizing plain layers, devices and dtypes, tracing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from fp4aot import gemm, nn
from fp4aot._layouts import SfLayout, swizzled_offset

NAMES = ["weight", "weight_scale", "weight_scale_2", "input_scale", "bias"]
SIZES = (2, 3, 16, 129, 500)


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def checkpoint(n: int = 160, k: int = 96, seed: int = 1) -> dict[str, torch.Tensor]:
    """Make the tensors of a layer as ModelOpt exports them, each block scale another."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randint(1, 127, (n, k // 16), generator=generator).byte()
    return {
        "weight": torch.randint(0, 256, (n, k // 2), generator=generator).byte(),
        "weight_scale": scales.view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(3.1e-4 * seed),
        "input_scale": torch.tensor(4 / (448 * 6.0)),
        "bias": torch.randn(n, generator=generator).bfloat16(),
    }


def loaded(tensors: dict[str, torch.Tensor], **options) -> nn.NVFP4Linear:
    n, half_k = tensors["weight"].shape
    layer = nn.NVFP4Linear(half_k * 2, n, **options)
    layer.load_state_dict(tensors)
    return layer


def dequantized(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat((table, -table))
    packed = tensors["weight"]
    values = table[torch.stack((packed % 16, packed // 16), -1).flatten(1).long()]
    scales = tensors["weight_scale"].float().repeat_interleave(16, dim=1)
    return values * scales * tensors["weight_scale_2"]


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.float() - exact).norm().detach() / exact.norm().detach())


def test_a_new_layer():
    layer = nn.NVFP4Linear(96, 160)
    assert list(layer.state_dict()) == NAMES
    assert list(nn.NVFP4Linear(96, 160, bias=False).state_dict()) == NAMES[:-1]
    assert not list(layer.parameters())
    assert torch.equal(layer(draw(3, 96).bfloat16()), torch.zeros(3, 160).bfloat16())
    assert "in_features=96, out_features=160, bias=True, dtype=torch.bfloat16" in repr(layer)


def test_a_checkpoint_round_trips():
    tensors = checkpoint()
    state = loaded(tensors).state_dict()
    assert list(state) == NAMES
    torch.testing.assert_close(dict(state), tensors, rtol=0, atol=0)


def test_a_loaded_layer_computes_with_the_checkpoints_weight():
    tensors = checkpoint()
    layer, x = loaded(tensors), draw(130, 96).clamp(-4, 4).bfloat16()
    exact = x.float() @ dequantized(tensors).T + tensors["bias"].float()
    # Only the input is quantized here.
    assert relative_error(layer(x), exact) < 0.11
    # An input that is E2M1 already, under block scales of 448, loses nothing.
    tensors["input_scale"] = torch.tensor(1 / 448)
    x = torch.tensor([4.0, -2, 1.5, 0, 3, -3, 6, -0.5]).repeat(3, 12).bfloat16()
    exact = x.float() @ dequantized(tensors).T + tensors["bias"].float()
    assert relative_error(loaded(tensors)(x), exact) < 0.005


def test_what_prepare_makes():
    tensors = checkpoint()
    layer = loaded(tensors)
    codes = tensors["weight_scale"].view(torch.uint8)
    flat = layer.swizzled_weight_scale.flatten()
    assert layer.swizzled_weight_scale.shape == (256, 8)
    for row in range(160):
        for column in range(6):
            offset = swizzled_offset(row, column, 8, SfLayout.layout_128x4)
            assert flat[offset] == codes[row, column]
    assert flat.count_nonzero() == 160 * 6
    torch.testing.assert_close(layer.input_global_scale, torch.tensor([448 * 6 / 4.0]))
    torch.testing.assert_close(layer.alpha, torch.tensor([3.1e-4 * 4 / (448 * 6)]))


@pytest.mark.parametrize("assign", [False, True])
def test_other_forms_of_the_same_checkpoint(assign):
    tensors = checkpoint()
    x = draw(3, 96).bfloat16()
    expected = loaded(tensors)(x)
    variants = [
        {name: tensors[name].reshape(1) for name in ("weight_scale_2", "input_scale")},
        {"weight_scale": tensors["weight_scale"].view(torch.uint8)},
        {"weight": tensors["weight"].view(torch.float4_e2m1fn_x2)},
        {"bias": tensors["bias"].float()},
    ]
    for variant in variants:
        state = {**tensors, **variant}
        layer = nn.NVFP4Linear(96, 160)
        layer.load_state_dict(state, assign=assign)
        assert torch.equal(layer(x), expected)
        assert {name: t.dtype for name, t in layer.state_dict().items()} == {
            name: t.dtype for name, t in tensors.items()
        }
        # What the caller passed is as it was.
        assert all(state[name] is tensor for name, tensor in {**tensors, **variant}.items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight": torch.zeros(160, 96)}, r"layer\.weight: got dtype torch\.float32.*NVFP4 in"),
        ({"weight_scale": torch.zeros(160, 6).bfloat16()}, r"weight_scale: got dtype .*bfloat16"),
        ({"weight_scale_2": torch.zeros(3)}, r"weight_scale_2: got shape \[3\].*one element"),
        ({"input_scale": torch.tensor(1.0).double()}, r"input_scale: got dtype .*float64"),
        ({"weight_scale": torch.zeros(256, 8).byte()}, "size mismatch for layer.weight_scale"),
        ({"pre_quant_scale": torch.zeros(96)}, "Unexpected key"),
    ],
)
def test_a_checkpoint_that_does_not_fit(changes, words):
    model = torch.nn.Sequential()
    model.layer = nn.NVFP4Linear(96, 160)
    state = {f"layer.{name}": tensor for name, tensor in {**checkpoint(), **changes}.items()}
    with pytest.raises(RuntimeError, match=words):
        model.load_state_dict(state)


def test_a_missing_tensor_is_named():
    tensors = checkpoint()
    del tensors["input_scale"]
    with pytest.raises(RuntimeError, match=r"Missing key.*input_scale"):
        nn.NVFP4Linear(96, 160).load_state_dict(tensors)


def test_a_layer_made_on_meta_loads_in_any_order():
    tensors, x = checkpoint(), draw(3, 96).bfloat16()
    expected = loaded(tensors)(x)
    layer = nn.NVFP4Linear(96, 160, device="meta")
    assert layer(x.to("meta")).shape == (3, 160)
    for name in reversed(NAMES):
        layer.load_state_dict({name: tensors[name]}, strict=False, assign=True)
    assert torch.equal(layer(x), expected)
    layer = nn.NVFP4Linear(96, 160, device="meta").to_empty(device="cpu")
    layer.load_state_dict(tensors)
    assert torch.equal(layer(x), expected)


def test_loading_again_writes_into_the_same_memory():
    """A captured CUDA graph reads from the addresses that it was captured with."""
    first, second, x = checkpoint(), checkpoint(seed=2), draw(3, 96).bfloat16()
    layer = loaded(first)
    before = {name: tensor.data_ptr() for name, tensor in layer.named_buffers()}
    layer.load_state_dict(second)
    assert {name: tensor.data_ptr() for name, tensor in layer.named_buffers()} == before
    assert torch.equal(layer(x), loaded(second)(x))
    assert not torch.equal(layer(x), loaded(first)(x))


def test_prepare_after_writing_to_a_tensor():
    layer, x = loaded(checkpoint()), draw(3, 96).bfloat16()
    doubled = checkpoint()
    doubled["weight_scale_2"] *= 2
    layer.weight_scale_2.mul_(2)
    layer.prepare()
    assert torch.equal(layer(x), loaded(doubled)(x))


@pytest.mark.parametrize(
    "convert",
    [
        lambda layer: layer.half(),
        lambda layer: layer.to(torch.float32),
        lambda layer: layer.double().to("cpu", torch.bfloat16),
        copy.deepcopy,
        lambda layer: torch.nn.Sequential(layer).half()[0],
    ],
)
def test_conversions_leave_the_numbers_alone(convert):
    layer, x = loaded(checkpoint()), draw(3, 96).bfloat16()
    expected = layer(x)
    dtypes = {name: tensor.dtype for name, tensor in layer.named_buffers()}
    converted = convert(layer)
    assert {name: tensor.dtype for name, tensor in converted.named_buffers()} == dtypes
    assert torch.equal(converted(x), expected)


def test_moving_to_another_device_moves_everything():
    layer = loaded(checkpoint()).half().to("meta", torch.float16)
    assert {tensor.device.type for tensor in layer.buffers()} == {"meta"}
    assert layer(torch.empty(3, 96, dtype=torch.half, device="meta")).shape == (3, 160)


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float16}, {"bias": False}])
def test_output_dtype(options):
    layer = nn.NVFP4Linear(96, 160, **options)
    expected = options.get("dtype", torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float16):
        assert layer(draw(3, 96).to(dtype)).dtype == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((48, 96), "in_features=48 is not a positive multiple of 32; pad"),
        ((96, 40), "out_features=40 is not a positive multiple of 32; pad"),
        ((0, 32), "in_features=0"),
        ((96, 32, True, None, torch.float32), "dtype=torch.float32; pass torch.bfloat16"),
    ],
)
def test_a_layer_that_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        nn.NVFP4Linear(*arguments)


def test_the_wrong_input_is_refused():
    layer = nn.NVFP4Linear(96, 160)
    with pytest.raises(RuntimeError, match=r"fp4_linear: argument 'x': got dtype torch\.float32"):
        layer(draw(3, 96))
    with pytest.raises(RuntimeError, match=r"argument 'weight'.*expected 64 values a row"):
        layer(draw(3, 64).bfloat16())


# Quantizing a plain layer


def plain(n: int = 160, k: int = 256, **options) -> torch.nn.Linear:
    linear = torch.nn.Linear(k, n, **options)
    with torch.no_grad():
        linear.weight.copy_(draw(n, k))
        if linear.bias is not None:
            linear.bias.copy_(draw(n))
    return linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_from_linear(bias, dtype):
    linear, x = plain(bias=bias).to(dtype), draw(130, 256).to(dtype)
    layer = nn.NVFP4Linear.from_linear(linear, activations=x)
    assert layer.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    assert list(layer.state_dict()) == NAMES[: 4 + bias]
    exact = linear.float()(x.float()).detach()
    x = x if dtype == torch.float16 else x.bfloat16()
    assert 0.1 < relative_error(layer(x), exact) < 0.15
    weight = dequantized(layer.state_dict())
    assert 0.08 < relative_error(weight, linear.weight.detach()) < 0.11
    # The largest weight has the largest code, under the largest scale.
    assert layer.weight_scale.float().max() == 448
    torch.testing.assert_close(layer.input_scale, x.float().abs().max() / (448 * 6))


def test_from_linear_is_a_checkpoint():
    layer = nn.NVFP4Linear.from_linear(plain(), input_amax=4.0)
    x = draw(3, 256).bfloat16()
    assert torch.equal(loaded(layer.state_dict())(x), layer(x))


def test_a_range_by_number_tensor_and_activations_are_alike():
    linear, x = plain(), draw(130, 256)
    amax = x.abs().max()
    layers = [
        nn.NVFP4Linear.from_linear(linear, float(amax)),
        nn.NVFP4Linear.from_linear(linear, amax.reshape(1).requires_grad_()),
        nn.NVFP4Linear.from_linear(linear, activations=x.view(13, 10, 256)),
    ]
    results = [layer(x.bfloat16()) for layer in layers]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not any(result.requires_grad for result in results)


@pytest.mark.parametrize("keywords", [{}, {"input_amax": 1.0, "activations": torch.zeros(1)}])
def test_from_linear_needs_one_range(keywords):
    with pytest.raises(ValueError, match="either input_amax or activations"):
        nn.NVFP4Linear.from_linear(plain(), **keywords)


def test_from_linear_refuses_sizes():
    with pytest.raises(ValueError, match="out_features=40"):
        nn.NVFP4Linear.from_linear(torch.nn.Linear(64, 40), 1.0)


@pytest.mark.parametrize("tiny", [0.0, 1e-40])
def test_zeros_stay_zeros(tiny):
    """Neither a weight nor a calibration of nothing but zeros makes a NaN or an infinity."""
    linear, x = plain(), draw(3, 256).bfloat16()
    expected = linear(x.float())
    layer = nn.NVFP4Linear.from_linear(linear, activations=torch.full((1, 256), tiny))
    assert layer.input_scale == 1
    assert relative_error(layer(x), expected) < 0.16
    with torch.no_grad():
        linear.weight.fill_(tiny)
    layer = nn.NVFP4Linear.from_linear(linear, 4.0)
    assert torch.equal(layer(x), linear.bias.bfloat16().expand(3, -1))


def test_a_checkpoint_with_scales_of_zero():
    layer = loaded({**checkpoint(), "input_scale": torch.tensor(0.0)})
    assert layer(draw(3, 96).bfloat16()).isfinite().all()
    layer = loaded({**checkpoint(), "weight_scale_2": torch.tensor([0.0])})
    x = draw(3, 96).bfloat16()
    assert torch.equal(layer(x), layer.bias.expand(3, -1))


# Replacing the layers of a model


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(plain(256, 256), torch.nn.ReLU())
        self.again = self.first[0]  # shared
        self.second = plain(160, 256)
        self.odd = plain(40, 160)
        self.unused = plain(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(self.second(input=self.again(self.first(x))))


def test_three_lines_quantize_a_model():
    model, x = Model().bfloat16(), draw(130, 256).bfloat16()
    exact = model(x).float()
    second_input = model.again(model.first(x)).abs().max().float()

    with nn.record_input_amax(model) as amax:
        model(x)
        model(x / 2)
    nn.replace_linears(model, amax)

    assert set(amax) == {"first.0", "second"}
    assert amax["second"] == second_input
    assert isinstance(model.second, nn.NVFP4Linear)
    assert model.again is model.first[0]
    assert isinstance(model.again, nn.NVFP4Linear)
    assert type(model.odd) is type(model.unused) is torch.nn.Linear
    assert 0.1 < relative_error(model(x), exact) < 0.3
    torch.testing.assert_close(model.second.input_scale, second_input / (448 * 6))


def test_recording_ends_with_the_block():
    model, x = Model(), draw(3, 256)
    with pytest.raises(RuntimeError), nn.record_input_amax(model) as amax:
        model(torch.cat((x, x), dim=1))
    assert amax["first.0"] == x.abs().max()
    model(2 * x)
    assert amax["first.0"] == x.abs().max()


def test_recording_an_empty_input():
    model = Model()
    with nn.record_input_amax(model) as amax:
        model(torch.zeros(0, 256))
    assert amax == {"first.0": 0, "second": 0}


@pytest.mark.parametrize("name", ["third", "first", "first.1", ""])
def test_a_name_that_is_no_linear_layer(name):
    model = Model()
    with pytest.raises(
        ValueError, match=rf"not a torch\.nn\.Linear inside the model: \['{name}'\]"
    ):
        nn.replace_linears(model, {"second": 1.0, name: 1.0})
    assert type(model.second) is torch.nn.Linear


def test_a_shared_layer_by_its_other_name():
    model = Model()
    nn.replace_linears(model, {"again": 4.0})
    assert model.first[0] is model.again
    assert isinstance(model.again, nn.NVFP4Linear)


# Tracing


def stack() -> torch.nn.Sequential:
    layers = [plain(n, k) for k, n in ((96, 256), (256, 64), (64, 160))]
    quantized = [nn.NVFP4Linear.from_linear(layer, 4.0 * 16**i) for i, layer in enumerate(layers)]
    return torch.nn.Sequential(*quantized)


def test_a_stack_compiles_once_for_five_sizes():
    model = stack()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for rows in SIZES:
        x = draw(rows, 96).bfloat16()
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1
    model.load_state_dict({name: t.clone() for name, t in stack().state_dict().items()})
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1


def test_an_exported_stack_equals_eager():
    model = stack()
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (draw(8, 96).bfloat16(),), dynamic_shapes=shapes)
    for rows in SIZES:
        x = draw(rows, 96).bfloat16()
        assert torch.equal(program.module()(x), model(x))


def test_a_batch_of_sequences_exports():
    model = stack()
    shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)
    program = torch.export.export(model, (draw(2, 7, 96).bfloat16(),), dynamic_shapes=shapes)
    x = draw(3, 50, 96).bfloat16()
    assert torch.equal(program.module()(x), model(x))


def test_the_layer_is_fp4_linear():
    layer, x = loaded(checkpoint()), draw(3, 96).bfloat16()
    arguments = (layer.weight, layer.swizzled_weight_scale, layer.alpha, layer.input_global_scale)
    assert torch.equal(layer(x), gemm.fp4_linear(x, *arguments, bias=layer.bias))
