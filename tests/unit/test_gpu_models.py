"""What the GPU suite holds mixtures of experts and grouped products against, itself held against.

On the CPU: the package's reference must lie within the model's bound, and what is wrong must not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from gpusuite import grouped, mixture, records, rounding

from fp4aot._activations import ActivationType

PARAMETERS = {
    ActivationType.SwigluBias: ("swiglu_alpha", "swiglu_beta", "swiglu_limit"),
    ActivationType.SwigluStep: ("swiglu_limit",),
}


def draw(tokens=5, hidden=128, inter=96, experts=4, top_k=2, **options) -> mixture.Mixture:
    return mixture.draw(tokens, hidden, inter, experts, top_k, device="cpu", **options)


@pytest.mark.parametrize("activation", [*mixture.PLAIN, *mixture.GATED], ids=lambda a: a.name)
def test_the_reference_is_within_the_bound_and_the_bound_is_tight(activation):
    call = draw(
        activation=activation,
        parameters=PARAMETERS.get(activation, ()),
        biases=True,
        per_expert=True,
    )
    model, result = mixture.Model(call), call.run()
    for fused in (False, True):
        model.check(records.Details(), result, fused)
    expected, bound = model.expected(False)
    assert 0.3 < float(expected.std()) < 3.0
    # Most of it is rounding: ties move few elements.
    tight = (bound <= 2 * rounding.half_unit(expected.abs() + 1.0, call.dtype)).float().mean()
    # The GPU's approximate tanh is as coarse as a rounding, and may move many codes.
    least = 0.03 if activation is ActivationType.GegluTanh else 0.5
    assert tight > least, f"{float(tight):.2f} of the bound is a rounding or two"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("source", mixture.INPUTS)
def test_inputs_and_routings(source, dtype):
    for routing in mixture.ROUTINGS:
        call = draw(5, source=source, routing=routing, dtype=dtype)
        mixture.Model(call).check(records.Details(), call.run(), False)
        for rank in (0, 1):
            shard = call.shard(2, rank)
            mixture.Model(shard).check(records.Details(), shard.run(), False)
    assert mixture.Model(draw(0)).expected(True)[0].shape == (0, 128)


def test_what_is_wrong_is_noticed():
    call = draw(33, source=mixture.SWIZZLED, biases=True)
    model = mixture.Model(call)
    model.check(records.Details(), call.run(), False)
    selected = call.token_selected_experts.clone()
    selected[5, 1] = -1
    code = call.input.clone()
    code[0, 0] ^= 0x07
    for changes in (
        {"fc1_alpha": call.fc1_alpha.flip(0)},
        {"input": code},
        {"token_selected_experts": selected},
        {"swizzled_input_sf": False, "input_sf": call.options["input_sf"].flatten()[: 33 * 8]},
        {"tp_size": 2, "tp_rank": 1},
    ):
        with pytest.raises(AssertionError, match="off by more than the bound"):
            model.check(records.Details(), call.changed(**changes).run(), False)


def test_padding_of_scales_is_as_bad_as_it_may_be():
    call = draw(33, 160, 96, source=mixture.SWIZZLED)
    scales = call.options["input_sf"].view(torch.float8_e4m3fn).float()
    assert int(scales.isnan().sum()) == (128 - 33) * 12


@pytest.mark.parametrize("operator", grouped.OPERATORS)
def test_grouped_products(operator):
    for rows in ((0,), (4, 0, 132, 8)):
        call = grouped.draw(operator, rows, 40, 256, device="cpu")
        call.check(records.Details(), call.run())
        out = torch.full((sum(rows), 40), float("nan"), dtype=call.dtype)
        call.check(records.Details(), call.run_into(out, swap_ab=False))
    wrong = call.changed(b=call.b.flip(0).contiguous()).run()
    with pytest.raises(AssertionError, match="off by more than the bound"):
        call.check(records.Details(), wrong)


def test_half_a_unit_is_what_rounding_costs():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(10_000, generator=generator).double()
    for dtype in rounding.SIGNIFICANT_BITS:
        error = (values.to(dtype).double() - values).abs()
        half = rounding.half_unit(values.abs(), dtype)
        assert bool((error <= half * (1 + 2**-12)).all())
        assert float((error / half).max()) > 0.99
