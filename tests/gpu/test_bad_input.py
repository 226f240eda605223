"""Bad input is refused in the words of the CPU, before any launch; its neighbours are accepted."""

from __future__ import annotations

import re

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE
from gpusuite.wheel import covers, not_applicable

pytestmark = pytest.mark.subject("bad input")


def resolve(operator: str):
    name, _, overload = operator.partition(".")
    return name, getattr(getattr(torch.ops.fp4aot, name), overload or "default")


@pytest.mark.parametrize("case", EVERY_DEVICE, ids=[f"{c.operator}-{c.case}" for c in EVERY_DEVICE])
def test_bad_input_is_refused_in_the_words_of_the_cpu(case):
    name, function = resolve(case.operator)
    arguments, keywords = case.build("cuda:0")
    with pytest.raises(RuntimeError) as caught:
        function(*arguments, **keywords)
    # Arguments come before the device, and the device before the caller's buffers.
    is_device = "has no compiled kernel in this wheel" in str(caught.value)
    if is_device and case.operator.endswith(".out") and not covers(name):
        not_applicable(f"no image of {name} for this device: no buffer of it is looked at")
    for fragment in (f"fp4aot::{name}", *case.fragments):
        assert re.search(fragment, str(caught.value)), f"{fragment!r} not in: {caught.value}"
    torch.cuda.synchronize()


@pytest.mark.parametrize(("accepted", "build"), ACCEPTED, ids=[name for name, _ in ACCEPTED])
def test_valid_input_passes_every_check(accepted, build):
    """It runs; where the wheel holds no image, what is refused is the device and no argument."""
    name, function = resolve(accepted)
    if name == "mxfp4_dequantize_host":
        not_applicable("mxfp4_dequantize_host is an operator of the CPU")
    arguments, keywords = build("cuda:0")
    if covers(name):
        function(*arguments, **keywords)
    else:
        with pytest.raises(RuntimeError, match="has no compiled kernel in this wheel"):
            function(*arguments, **keywords)
    torch.cuda.synchronize()
