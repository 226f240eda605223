"""Refused calls: the CPU kernels and the fakes say the same, and say what to do."""

from __future__ import annotations

import importlib
import re

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST, BadInput
from torch._subclasses.fake_tensor import FakeTensorMode

from fp4aot import _fakes, kv_cache, quantization

REFERENCES = [
    importlib.import_module(f"fp4aot._reference.{module}")
    for module in ("quantize", "interleave", "dequantize", "kv_cache")
]
FORM = re.compile(
    r"^fp4aot::[a-z0-9_]+: argument '[a-z0-9_]+': got .+, expected .+; .+$", re.DOTALL
)


def case_id(bad: BadInput) -> str:
    return f"{bad.operator}-{bad.case}".replace(" ", "_")


def reference_of(operator: str):
    name = operator.replace(".", "_")
    return next(getattr(module, name) for module in REFERENCES if hasattr(module, name))


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
    assert_refused(bad, reference_of(bad.operator), "cpu")


@pytest.mark.parametrize("bad", EVERY_DEVICE + HOST, ids=case_id)
def test_fake_refuses_on_the_cpu(bad):
    with FakeTensorMode():
        assert_refused(bad, getattr(_fakes, bad.operator.replace(".", "_")), "cpu")


@pytest.mark.parametrize("bad", EVERY_DEVICE, ids=case_id)
def test_fake_refuses_on_a_gpu(bad):
    with FakeTensorMode():
        assert_refused(bad, getattr(_fakes, bad.operator.replace(".", "_")), "cuda:1")


@pytest.mark.parametrize(("operator", "build"), ACCEPTED)
def test_valid_calls_are_accepted(operator, build):
    args, kwargs = build("cpu")
    reference_of(operator)(*args, **kwargs)
    with FakeTensorMode():
        for device in ("cpu", "cuda:1"):
            args, kwargs = build(device)
            getattr(_fakes, operator.replace(".", "_"))(*args, **kwargs)


def test_two_gpus_are_two_devices():
    with FakeTensorMode():
        scale = torch.ones(1, device="cuda:0")
        tensor = torch.empty(4, 64, dtype=torch.bfloat16, device="cuda:1")
        with pytest.raises(RuntimeError, match=r"got device cuda:0, expected cuda:1"):
            _fakes.fp4_quantize(tensor, scale)


def test_host_function_refuses_a_gpu():
    with FakeTensorMode():
        weight = torch.empty(4, 32, dtype=torch.uint8, device="cuda:0")
        scale = torch.empty(4, 2, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(RuntimeError, match=r"device cuda:0, expected cpu.*mxfp4_dequantize"):
            _fakes.mxfp4_dequantize_host(weight, scale)


def test_every_case_has_its_own_name():
    names = [case_id(bad) for bad in EVERY_DEVICE + HOST]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"backend": "cute-dsl"}, ValueError, "backend='cute-dsl'"),
        ({"nvfp4_4over6": object()}, NotImplementedError, "nvfp4_4over6"),
        ({"per_token_activation": True}, NotImplementedError, "per_token_activation"),
        ({"do_shuffle": True}, NotImplementedError, "do_shuffle.*layout_linear"),
        ({"out_scale": torch.ones(1)}, ValueError, "out_scale"),
        ({"expanded_idx_to_permuted_idx": torch.ones(1)}, ValueError, "expanded_idx"),
    ],
)
def test_nvfp4_quantize_names_what_is_missing(keywords, error, words):
    with pytest.raises(error, match=words):
        quantization.nvfp4_quantize(torch.zeros(4, 64), torch.ones(1), **keywords)


def test_fp4_and_mxfp4_quantize_name_what_is_missing():
    with pytest.raises(ValueError, match=r"backend='cute-dsl'.*flashinfer\.fp4_quantize"):
        quantization.fp4_quantize(torch.zeros(4, 64), backend="cute-dsl")
    with pytest.raises(NotImplementedError, match=r"nvfp4_4over6.*flashinfer\.fp4_quantize"):
        quantization.fp4_quantize(torch.zeros(4, 64), nvfp4_4over6=object())
    with pytest.raises(ValueError, match=r"backend='cute-dsl'.*flashinfer\.mxfp4_quantize"):
        quantization.mxfp4_quantize(torch.zeros(4, 64), "cute-dsl")


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
