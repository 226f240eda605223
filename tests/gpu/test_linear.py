"""`fp4_linear`, `NVFP4Linear` and a model made of them."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import TRUE, assert_equal, check_product
from gpusuite.draw import BF16, FP16
from gpusuite.models import layer, model

import fp4aot
from fp4aot.operators import matmul

pytestmark = pytest.mark.needs("fp4_quantize", "mm_fp4")
SIZES = (((1,), 32, 32), ((33,), 96, 352), ((2, 3, 17), 384, 1536), ((), 64, 96))
EVERY_DTYPE = pytest.mark.parametrize("dtype", [BF16, FP16], ids=draw.name_of)


def weight_of(n, k, dtype):
    weight = draw.values(n, k, dtype=dtype, seed=n)
    scale = draw.global_scale(weight)
    return *fp4aot.nvfp4_quantize(weight, scale), scale


@pytest.mark.subject("fp4_linear")
class TestLinear:
    @EVERY_DTYPE
    @pytest.mark.parametrize("bias", [False, True])
    def test_it_is_its_two_operators_and_the_bias(self, details, bias, dtype):
        for leading, n, k in SIZES:
            with details.case(f"{leading} x {n} x {k}"):
                x = draw.values(*leading, k, dtype=dtype) / 4
                values, scales, weight_scale = weight_of(n, k, dtype)
                input_scale = draw.global_scale(x)
                alpha = 1 / (input_scale * weight_scale)
                added = draw.values(n, dtype=dtype) if bias else None
                got = fp4aot.fp4_linear(x, values, scales, alpha, input_scale, added)
                x_values, x_scales = fp4aot.nvfp4_quantize(x.reshape(-1, k), input_scale)
                factors = (x_values, values.t(), x_scales, scales, alpha)
                product = fp4aot.mm_fp4(*factors, out_dtype=dtype)
                check_product(details, product, factors)
                expected = product if added is None else product + added
                assert_equal(details, "results, two operators", got, expected.reshape(*leading, n))

    def test_empty_strided_and_column_major_input(self, details):
        values, scales, weight_scale = weight_of(96, 352, BF16)
        x = draw.values(66, 352)
        input_scale = draw.global_scale(x)
        arguments = (values, scales, 1 / (input_scale * weight_scale), input_scale)
        whole = fp4aot.fp4_linear(x, *arguments)
        column_major = x.t().contiguous().t()
        for source, expected in (
            (x[::2], whole[::2]),
            (column_major, whole),
            (x.view(2, 33, 352).transpose(0, 1), whole.view(2, 33, 96).transpose(0, 1)),
        ):
            got = fp4aot.fp4_linear(source, *arguments)
            assert_equal(details, "results, contiguous", got, expected.contiguous())
        for shape in ((0, 352), (3, 0, 352)):
            empty = torch.empty(shape, dtype=BF16, device="cuda")
            assert fp4aot.fp4_linear(empty, *arguments).shape == (*shape[:-1], 96)


@pytest.mark.subject("NVFP4Linear")
class TestLayer:
    @EVERY_DTYPE
    def test_a_layer_quantized_here_is_the_one_quantized_on_the_cpu(self, details, dtype):
        linear = torch.nn.Linear(2080, 1056).to(dtype)
        on_cpu = fp4aot.nn.NVFP4Linear.from_linear(linear, 3.7)
        here = fp4aot.nn.NVFP4Linear.from_linear(linear.cuda(), 3.7)
        for name, buffer in on_cpu.named_buffers():
            got = here.get_buffer(name).cpu()
            assert got.shape == buffer.shape, name
            if buffer.dtype in (torch.uint8, torch.float8_e4m3fn):
                differing = int((got.view(torch.uint8) != buffer.view(torch.uint8)).sum())
                details.compared(TRUE, buffer.numel(), differing)
                assert differing <= 16 + 2e-3 * buffer.numel(), name
            else:
                torch.testing.assert_close(got, buffer, rtol=1e-6, atol=0)

    @EVERY_DTYPE
    def test_a_layer_moved_here_computes_what_it_computes_on_the_cpu(self, details, dtype):
        on_cpu = layer(352, 96, dtype, "cpu")
        here = layer(352, 96, dtype, "cpu").cuda()
        x = draw.values(2, 33, 352, dtype=dtype)
        got, expected = here(x).cpu().float(), on_cpu(x.cpu()).float()
        error = float((got - expected).norm() / expected.norm())
        details.error("layer, Frobenius norm relative to the CPU's", error)
        assert error < 5e-3

    def test_a_layer_is_as_good_as_nvfp4_allows(self, details):
        torch.manual_seed(0)
        linear = torch.nn.Linear(4096, 2048, bias=False).cuda()
        x = torch.randn(512, 4096, device="cuda").bfloat16()
        quantized = fp4aot.nn.NVFP4Linear.from_linear(linear, activations=x)
        exact = x.double() @ linear.weight.double().t()
        error = float((quantized(x).double() - exact).norm() / exact.norm())
        details.error("layer on Gaussian values, Frobenius norm relative to float64", error)
        # Two factors with relative errors of 0.09 to 0.1 each.
        assert 0.11 < error < 0.15

    def test_a_state_dict_goes_through_the_gpu(self, details):
        first, second = layer(352, 96, BF16, "cuda"), layer(352, 96, BF16, "cuda", seed=1)
        x = draw.values(33, 352)
        address = second.swizzled_weight_scale.data_ptr()
        second.load_state_dict(first.state_dict())
        assert second.swizzled_weight_scale.data_ptr() == address
        assert_equal(details, "results, the layer that was saved", second(x), first(x))

    def test_a_model_in_nvfp4_is_near_the_model(self, details):
        original = model(width=512, layers=3).cuda()
        x = torch.randn(4, 33, 512, device="cuda").bfloat16()
        expected = original(x).float()
        with fp4aot.nn.record_input_amax(original) as amax:
            original(x)
        fp4aot.nn.replace_linears(original, amax)
        assert len(amax) == 6
        cosine = torch.cosine_similarity(original(x).float().flatten(), expected.flatten(), 0)
        details.error("model, one minus cosine", float(1 - cosine))
        assert cosine > 0.98


@pytest.mark.subject("instruments")
def test_the_reference_multiplies_exactly():
    """float64 holds every product of two dequantized factors."""
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(128, 1)
    scales = torch.full((128, 32), 0x77, dtype=torch.uint8, device="cuda")
    assert matmul._dequantize(codes, scales).abs().max() == 6 * 240
