"""Streams, threads, and calls that wait for nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from gpusuite import draw, factors
from gpusuite.compare import as_tuple, assert_equal, out_form, packet_of
from gpusuite.concurrency import LONG, after_running_work, check_threads
from gpusuite.memory import poisoned_like, raw
from gpusuite.wheel import ON_EVERY_DEVICE, OPERATORS, covers, not_applicable

import fp4aot

EVERY_OPERATOR = pytest.mark.parametrize("operator", OPERATORS + ON_EVERY_DEVICE)


def flat(tensor):
    """View the memory of a tensor without gaps, whatever the order of its dimensions."""
    return tensor.as_strided((tensor.numel(),), (1,))


@pytest.mark.needs
@EVERY_OPERATOR
@pytest.mark.parametrize("form", ["functional", "out"])
def test_the_launch_is_on_torchs_current_stream_and_waits_for_nothing(details, operator, form):
    """Work that is still running on a side stream is seen; the call returns before it is done."""
    packet = packet_of(operator)
    arguments, fresh = draw.arguments(operator), draw.calls(operator, 1)[0].arguments
    copies = [
        (flat(target), flat(source).pin_memory())
        for target, source in zip(arguments, fresh, strict=True)
        if isinstance(target, torch.Tensor)
    ]

    def run(arguments):
        if form == "functional":
            return as_tuple(packet.default(*arguments))
        inputs, _ = out_form(packet, arguments)
        packet.out(*inputs, **buffers)
        return tuple(buffers.values())

    results = as_tuple(packet.default(*arguments))
    _, names = out_form(packet, arguments)
    buffers = {name: poisoned_like(r) for name, r in zip(names, results, strict=True)}
    expected = tuple(result.clone() for result in run(draw.moved(fresh)))
    run(arguments)
    results = after_running_work(copies, lambda: run(arguments))
    assert_equal(details, "bytes, the default stream", results, expected)


@pytest.mark.subject("two threads")
@pytest.mark.needs("fp4_quantize", "mm_fp4", "nvfp4_kv_dequantize")
def test_threads_with_different_operators_have_their_own_streams(details):
    """The stream is thread-local state of the private TVM-FFI runtime, which all modules share."""
    x = draw.values(512, 2048)
    scale = draw.global_scale(x)
    product, cache = factors.draw(256, 384, 1056), draw.arguments("nvfp4_kv_dequantize")
    work = {
        "quantize": lambda: fp4aot.fp4_quantize(x, scale),
        "multiply": lambda: torch.ops.fp4aot.mm_fp4(*product, torch.bfloat16),
        "dequantize": lambda: torch.ops.fp4aot.nvfp4_kv_dequantize(*cache),
        "MXFP4": lambda: fp4aot.mxfp4_quantize(x),
    }
    check_threads(details, work, runs=200)


@pytest.mark.subject("two threads")
@pytest.mark.needs
@EVERY_OPERATOR
def test_the_operator_in_four_threads(details, operator):
    call = partial(packet_of(operator).default, *draw.arguments(operator))
    check_threads(details, {f"thread {index}": call for index in range(4)}, runs=50)


@pytest.mark.subject("instruments")
def test_a_call_that_waits_is_noticed():
    """The negative control of the first test here."""
    stream = torch.cuda.Stream()
    value = torch.ones(4, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        doubled = value * 2
        assert not stream.query()
        doubled.cpu()
        assert stream.query()


@pytest.mark.subject("back to back")
@pytest.mark.needs("fp4_quantize", "mm_fp4")
@pytest.mark.parametrize("buffers", ["allocated", "reused"])
@pytest.mark.parametrize("pdl", [True, False], ids=["PDL", "no PDL"])
def test_four_hundred_quantizations_and_products(details, pdl, buffers):
    """A kernel that starts before the last one's stores are visible would show here."""
    runs, m, n, k = 400, 4096, 384, 1024
    weight, weight_scale = fp4aot.nvfp4_quantize(draw.values(n, k), torch.ones(1, device="cuda"))
    scale = draw.global_scale(draw.values(m, k))
    alpha = torch.full((1,), 1e-3, device="cuda")
    inputs = [draw.values(m, k, seed=seed) for seed in range(runs)]

    values = torch.empty(m, k // 2, dtype=torch.uint8, device="cuda")
    scales = torch.empty(m, k // 16, dtype=torch.uint8, device="cuda")

    def run(x, into=None):
        if buffers == "reused":
            torch.ops.fp4aot.fp4_quantize.out(
                x, scale, enable_pdl=pdl, values=values, block_scales=scales
            )
            product = (
                into if into is not None else torch.empty(m, n, dtype=draw.BF16, device="cuda")
            )
            torch.ops.fp4aot.mm_fp4.out(
                values, weight.t(), scales, weight_scale, alpha, out=product
            )
            return product
        quantized = fp4aot.fp4_quantize(x, scale, enable_pdl=pdl)
        return fp4aot.mm_fp4(quantized[0], weight.t(), quantized[1], weight_scale, alpha)

    expected = []
    for x in inputs:
        expected.append(run(x))
        torch.cuda.synchronize()
    results = [torch.full_like(product, float("nan")) for product in expected]
    torch.cuda.synchronize()
    for index, x in enumerate(inputs):
        if buffers == "reused":
            run(x, results[index])
        else:
            results[index] = run(x)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    nan = torch.zeros((), dtype=torch.int64, device="cuda")
    for got, want in zip(results, expected, strict=True):
        differing += (raw(got) != raw(want)).any()
        nan += got.isnan().any()
    details.compared("products of a run, with synchronisation between", runs, int(differing))
    assert int(nan) == 0, f"{int(nan)} of {runs} runs gave NaN"
    assert int(differing) == 0, f"{int(differing)} of {runs} runs differ"


@pytest.mark.subject("two threads")
def test_what_the_wheel_covers_is_what_the_tests_cover():
    """Every operator that the library runs on this device takes part in the tests above."""
    if not any(covers(operator) for operator in OPERATORS):
        not_applicable("this wheel holds no image for this device")
    assert set(OPERATORS) <= {case.operator for case in draw._cases(0)}
