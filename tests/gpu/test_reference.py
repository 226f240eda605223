"""The instruments themselves: the reference on this device, the approximations, the poison."""

from __future__ import annotations

import pytest
import torch
from gpusuite import draw, gpu_arithmetic, memory
from gpusuite.compare import as_tuple, count_differing, out_form, packet_of, reference_into
from gpusuite.gpu_arithmetic import TrueDivision

from fp4aot.operators.arithmetic import blocks, scales

pytestmark = pytest.mark.subject("instruments")


def all_normal_mantissas() -> torch.Tensor:
    """Every mantissa of float32 under one exponent, and a random exponent and sign for each."""
    bits = torch.arange(1 << 23, device="cuda", dtype=torch.int32)
    generator = torch.Generator("cuda").manual_seed(0)
    exponents = torch.randint(1, 253, (1 << 23,), generator=generator, device="cuda")
    signs = torch.randint(0, 2, (1 << 23,), generator=generator, device="cuda")
    bits = bits | (exponents.to(torch.int32) << 23)
    return torch.where(signs == 1, -bits.view(torch.float32), bits.view(torch.float32))


def test_the_approximate_reciprocal_is_one_unit_from_the_true_one_and_not_the_same(details):
    values = all_normal_mantissas()
    got = gpu_arithmetic.reciprocal(values).view(torch.int32).long()
    true = scales.reciprocal(values).view(torch.int32).long()
    distance = (got - true).abs()
    details.compared("reciprocals, true one", values.numel(), int((distance != 0).sum()))
    assert int(distance.max()) == 1
    assert int((distance != 0).sum()) > 0


def test_special_values_of_the_approximate_reciprocal():
    special = [0.0, -0.0, float("inf"), float("-inf"), 1e-39, -1e-39, 2.0**127, -(2.0**127)]
    got = gpu_arithmetic.reciprocal(torch.tensor(special, device="cuda"))
    true = scales.reciprocal(torch.tensor(special))
    assert torch.equal(got.cpu(), true)
    assert gpu_arithmetic.reciprocal(torch.tensor([float("nan")], device="cuda")).isnan()
    six = gpu_arithmetic.reciprocal(torch.tensor([6.0], device="cuda"))
    assert float(six) == blocks._RECIPROCAL_OF_6, "the kernels' 1/6 is not the reference's"


@pytest.mark.parametrize("dtype", [draw.BF16, draw.FP16, draw.FP8], ids=draw.name_of)
def test_the_reference_gives_the_same_on_this_device_as_on_the_cpu(details, dtype):
    """So that it may run here: with true reciprocals, everything else is the same arithmetic."""
    values = draw.special(257, 1040, dtype)
    scale = draw.global_scale(draw.values(257, 1040, dtype=dtype))
    recipes = (0, 1, 3, 5, 7, 17, 23) if dtype != draw.FP8 else (0,)
    for recipe in recipes:
        with details.case(f"fp4_quantize, recipe {recipe}"):
            flags = (16, False, True, False, False, None, recipe)
            compare_devices(details, "fp4_quantize", (values, scale, *flags))
        if dtype != draw.FP8:
            with details.case(f"nvfp4_quantize_per_token, recipe {recipe}"):
                arguments = (values, 1 / 2688, None, 0, recipe)
                compare_devices(details, "nvfp4_quantize_per_token", arguments)


def compare_devices(details, operator, arguments):
    packet = packet_of(operator)
    inputs, names = out_form(packet, arguments)
    results = {}
    for device in ("cpu", "cuda"):
        shapes = as_tuple(packet.default(*draw.moved(arguments, "meta")))
        targets = {
            n: torch.empty_like(s, device=device) for n, s in zip(names, shapes, strict=True)
        }
        with TrueDivision():
            reference_into(operator)(*draw.moved(inputs, device), **targets)
        results[device] = targets
    for name in names:
        on_cpu = results["cpu"][name].cuda()
        differing = count_differing(results["cuda"][name], on_cpu)
        details.compared("bytes, the CPU's", on_cpu.numel(), differing)
        assert differing == 0, f"{name}: {differing} differ"


def test_poison_reaches_what_is_allocated_next():
    memory.poison()
    sizes = (16, 4096, 1 << 20, 30 << 20)
    fresh = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    for tensor in fresh:
        assert bool((tensor == memory.POISON).all()), tensor.numel()


def test_a_write_beside_a_buffer_is_noticed():
    buffer = memory.Guarded.like(torch.empty(3, 5, dtype=torch.bfloat16, device="cuda").t())
    assert bool(buffer.tensor.isnan().all())
    buffer.tensor.fill_(1.0)
    buffer.check()
    buffer.memory[memory._GUARD_BYTES + 30] = 0
    with pytest.raises(AssertionError, match="1 bytes beside the buffer"):
        buffer.check()
