"""The device is that of the tensors, whichever is current."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw
from gpusuite.compare import as_tuple, assert_equal, packet_of
from gpusuite.models import Stack
from gpusuite.wheel import ON_EVERY_DEVICE, OPERATORS, did_not_run

import fp4aot

pytestmark = pytest.mark.subject("two GPUs")


@pytest.fixture(autouse=True)
def _two_gpus():
    if torch.cuda.device_count() < 2:
        did_not_run("needs two GPUs: tensors on cuda:1 while cuda:0 is current")
    if torch.cuda.get_device_capability(0) != torch.cuda.get_device_capability(1):
        did_not_run("needs two GPUs of one compute capability")


@pytest.mark.needs
@pytest.mark.parametrize("operator", OPERATORS + ON_EVERY_DEVICE)
def test_tensors_on_another_device_than_the_current_one(details, operator):
    packet = packet_of(operator)
    expected = None
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in ("cuda:0", "cuda:1", "cuda:0"):
                results = as_tuple(packet.default(*draw.arguments(operator, device=device)))
                assert all(str(result.device) == device for result in results)
                assert torch.cuda.current_device() == current
                on_cpu = tuple(result.cpu() for result in results)
                expected = expected or on_cpu
                assert_equal(details, "bytes, cuda:0", on_cpu, expected)


@pytest.mark.needs("fp4_quantize", "mm_fp4")
def test_quantize_and_multiply_on_a_side_stream_of_the_other_device(details):
    model = Stack(device="cuda:1")
    x = Stack().inputs(129).to("cuda:1")
    expected = model(x)
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        # The current device is cuda:0, and cuda:1's current stream is its default one.
        assert_equal(details, "results, cuda:1 current", model(x), expected)
    with torch.cuda.stream(stream):
        assert_equal(details, "results, cuda:1 current", model(x), expected)


@pytest.mark.needs("fp4_quantize", "mm_fp4")
def test_a_graph_of_the_other_device(details):
    model = Stack(device="cuda:1")
    inputs = [Stack().inputs(33, seed).to("cuda:1") for seed in range(4)]
    x = inputs[0].clone()
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        # torch's own capture stream is one of the device on which it was first needed.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            output = model(x)
    for fresh in inputs[1:]:
        x.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize(1)
        assert_equal(details, "results of a replay, eager", output.clone(), model(fresh))


@pytest.mark.needs("nvfp4_kv_dequantize")
def test_tensors_on_different_devices_are_refused():
    packed, scales, scale, dtype = draw.arguments("nvfp4_kv_dequantize", device="cuda:0")
    with pytest.raises(RuntimeError, match="argument 'global_scale': got device cuda:1"):
        fp4aot.nvfp4_kv_dequantize(packed, scales, scale.to("cuda:1"), dtype)
