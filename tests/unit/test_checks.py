"""Refused calls: the CPU kernels and the fakes say the same, and say what to do."""

from __future__ import annotations

import re

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST, BadInput
from operator_namespace import form
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import batched_quantization, kv_cache, quantization
from fp4aot._layouts import SfLayout
from fp4aot._recipes import NVFP44Over6Config
from fp4aot.operators.dequantize import mxfp4_dequantize_host
from fp4aot.operators.quantize import fp4_quantize

FORM = re.compile(
    r"^fp4aot::[a-z0-9_]+: argument '[a-z0-9_]+': got .+, expected .+; .+$", re.DOTALL
)


def case_id(bad: BadInput) -> str:
    return f"{bad.operator}-{bad.case}".replace(" ", "_")


def assert_refused(bad: BadInput, function, device: str) -> None:
    args, kwargs = bad.build(device)
    with pytest.raises(RuntimeError) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert FORM.match(text), text
    assert text.startswith(f"fp4aot::{bad.operator.removesuffix('.out')}: ")
    for fragment in bad.fragments:
        assert re.search(fragment, text), f"{fragment!r} is not in: {text}"


@pytest.mark.parametrize("bad", EVERY_DEVICE + HOST, ids=case_id)
def test_cpu_kernel_refuses(bad):
    assert_refused(bad, form(bad.operator), "cpu")


@pytest.mark.parametrize("bad", EVERY_DEVICE + HOST, ids=case_id)
def test_fake_refuses_on_the_cpu(bad):
    with FakeTensorMode():
        assert_refused(bad, form(bad.operator).fake, "cpu")


@pytest.mark.parametrize("bad", EVERY_DEVICE, ids=case_id)
def test_fake_refuses_on_a_gpu(bad):
    with FakeTensorMode():
        assert_refused(bad, form(bad.operator).fake, "cuda:1")


@pytest.mark.parametrize(("operator", "build"), ACCEPTED)
def test_valid_calls_are_accepted(operator, build):
    args, kwargs = build("cpu")
    form(operator)(*args, **kwargs)
    with FakeTensorMode():
        for device in ("cpu", "cuda:1"):
            args, kwargs = build(device)
            form(operator).fake(*args, **kwargs)


def test_two_gpus_are_two_devices():
    with FakeTensorMode():
        scale = torch.ones(1, device="cuda:0")
        tensor = torch.empty(4, 64, dtype=torch.bfloat16, device="cuda:1")
        with pytest.raises(RuntimeError, match=r"got device cuda:0, expected cuda:1"):
            fp4_quantize.default.fake(tensor, scale)


def test_host_function_refuses_a_gpu():
    with FakeTensorMode():
        weight = torch.empty(4, 32, dtype=torch.uint8, device="cuda:0")
        scale = torch.empty(4, 2, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(RuntimeError, match=r"device cuda:0, expected cpu.*mxfp4_dequantize"):
            mxfp4_dequantize_host.default.fake(weight, scale)


def test_every_case_has_its_own_name():
    names = [case_id(bad) for bad in EVERY_DEVICE + HOST]
    assert len(names) == len(set(names))


MATRIX = torch.zeros(128, 64, dtype=torch.bfloat16)
INDEX = torch.zeros(128, dtype=torch.int32)
PER_TOKEN = {"per_token_activation": True}
WIDE = NVFP44Over6Config()
NARROW = NVFP44Over6Config(e4m3_max=256)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"backend": "cute-dsl"}, ValueError, "backend='cute-dsl'"),
        ({"nvfp4_4over6": object()}, TypeError, "nvfp4_4over6 is of type object"),
        ({"nvfp4_4over6": "MAE"}, TypeError, "nvfp4_4over6 is of type str"),
        ({"out_scale": torch.ones(1)}, ValueError, "out_scale.*CuTe-DSL"),
        ({**PER_TOKEN, "out_scale": torch.ones(1)}, ValueError, "out_scale.*CuTe-DSL"),
        ({"expanded_idx_to_permuted_idx": INDEX}, ValueError, "expanded_idx.*per_token"),
        ({**PER_TOKEN, "sf_vec_size": 32}, ValueError, "sf_vec_size=32"),
        ({**PER_TOKEN, "expanded_idx_to_permuted_idx": INDEX}, ValueError, "expanded_idx.*number"),
        ({**PER_TOKEN, "nvfp4_4over6": WIDE}, ValueError, "nvfp4_4over6.*number"),
        ({**PER_TOKEN, "a_global_sf": 1 / 2688, "nvfp4_4over6": 1}, TypeError, "type int"),
        (
            {**PER_TOKEN, "a_global_sf": 1 / 2688, "nvfp4_4over6": NARROW},
            ValueError,
            r"a_global_sf=0\.000372.*e4m3_max=256.*0\.000651",
        ),
        (
            {**PER_TOKEN, "a_global_sf": 1.002 / 2688, "nvfp4_4over6": WIDE},
            ValueError,
            "a_global_sf=.*e4m3_max=448",
        ),
        ({"do_shuffle": True, "sfLayout": SfLayout.layout_8x4}, ValueError, "layout_128x4"),
        ({"do_shuffle": True, "a": MATRIX[:96]}, ValueError, r"\[96, 64\].*divisible by 128"),
        ({"do_shuffle": True, "a": MATRIX.unsqueeze(0)}, ValueError, r"\[1, 128, 64\]"),
        ({"do_shuffle": True, "a": torch.zeros(64, 128).t()}, ValueError, r"a\.contiguous\(\)"),
        (
            {**PER_TOKEN, "a": MATRIX.to(torch.float8_e4m3fn)},
            RuntimeError,
            "argument 'input': got dtype torch.float8_e4m3fn",
        ),
        ({**PER_TOKEN, "a": MATRIX.unsqueeze(0)}, RuntimeError, "expected 2 dimensions"),
        ({**PER_TOKEN, "a_global_sf": torch.ones(128)}, RuntimeError, "'a_global_sf'.*one element"),
        (
            {**PER_TOKEN, "a_global_sf": torch.ones(1).half()},
            RuntimeError,
            "'a_global_sf': got dtype torch.float16",
        ),
    ],
)
def test_nvfp4_quantize_refuses(keywords, error, words):
    arguments = {"a": MATRIX, "a_global_sf": torch.ones(1), **keywords}
    with pytest.raises(error, match=words):
        quantization.nvfp4_quantize(**arguments)


def test_fp4_and_mxfp4_quantize_refuse():
    with pytest.raises(ValueError, match=r"backend='cute-dsl'.*flashinfer\.fp4_quantize"):
        quantization.fp4_quantize(MATRIX, backend="cute-dsl")
    with pytest.raises(TypeError, match=r"fp4aot\.fp4_quantize: nvfp4_4over6 is of type object"):
        quantization.fp4_quantize(MATRIX, nvfp4_4over6=object())
    with pytest.raises(ValueError, match=r"backend='cute-dsl'.*flashinfer\.mxfp4_quantize"):
        quantization.mxfp4_quantize(MATRIX, "cute-dsl")


@pytest.mark.parametrize(
    "function",
    [
        batched_quantization.nvfp4_batched_quantize,
        batched_quantization.scaled_fp4_grouped_quantize,
        batched_quantization.silu_and_mul_scaled_nvfp4_experts_quantize,
    ],
)
def test_batched_functions_refuse_what_is_no_recipe(function):
    with pytest.raises(TypeError, match=rf"fp4aot\.{function.__name__}: nvfp4_4over6 is of type"):
        function(MATRIX.unsqueeze(0), INDEX[:1], torch.ones(1), nvfp4_4over6=object())


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"kv_layout": "HDN"}, "kv_layout='HDN'"),
        ({"output_k": torch.zeros(1)}, "output_k and output_v"),
        ({}, "max_seq_len is None"),
    ],
)
def test_paged_public_function_refuses(keywords, words):
    cache = torch.zeros(5, 2, 4, 2, 16, dtype=torch.uint8)
    scales = torch.zeros(5, 2, 4, 2, 2, dtype=torch.uint8)
    one = torch.ones(1)
    tables = torch.zeros(3, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=words):
        kv_cache.nvfp4_kv_dequantize_paged(
            cache, scales, tables, tables[:, 0], one, one, **keywords
        )


def test_paged_public_function_refuses_an_unstacked_tensor():
    cache = torch.zeros(5, 4, 2, 16, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"paged_kv_cache has shape \[5, 4, 2, 16\]"):
        kv_cache.nvfp4_kv_dequantize_paged(cache, cache, cache, cache, cache, cache, max_seq_len=4)
