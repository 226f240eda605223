"""Every operator of the installed wheel: opcheck, formats, edge shapes, bad input (3, 5, 25)."""

from __future__ import annotations

import copy
import re
from contextlib import nullcontext

import pytest
import torch
from bad_inputs import ACCEPTED, EVERY_DEVICE, HOST
from torch._subclasses.fake_tensor import FakeTensorMode

import fp4aot
from fp4aot import _selftest
from fp4aot._selftest.checks import out_form
from fp4aot._selftest.inputs import cases

LAYOUTS = {"128x4": (True, False), "8x4": (True, True), "linear": (False, False)}
FORMATS = {"NVFP4": (16, False), "MXFP4": (32, True)}
CASES = cases()


def resolve(name: str):
    operator, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.fp4aot, operator), overload or "default")


def matrix(rank: str, column_major: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (34, 96) if rank == "2-D" else (2, 34, 96)
    if not column_major:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)
    swapped = (*shape[:-2], shape[-1], shape[-2])
    return torch.randn(*swapped, generator=generator).to(torch.bfloat16).transpose(-2, -1)


def scale_of(x: torch.Tensor) -> torch.Tensor:
    return (448 * 6 / x.float().abs().max()).reshape(1)


@pytest.mark.parametrize("column_major", [False, True], ids=["row", "column"])
@pytest.mark.parametrize("rank", ["2-D", "3-D"])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_of_quantize(layout, format_, rank, column_major):
    x = matrix(rank, column_major)
    if column_major:
        x = torch.nn.functional.pad(x.transpose(-2, -1), (0, 62)).transpose(-2, -1)
        assert x.stride(-2) == 1
    arguments = (x, scale_of(x), *FORMATS[format_], *LAYOUTS[layout])
    torch.library.opcheck(torch.ops.fp4aot.fp4_quantize.default, arguments)
    values, scales = torch.ops.fp4aot.fp4_quantize(*arguments)
    buffers = {
        "values": torch.empty_strided(values.shape, values.stride(), dtype=torch.uint8),
        "block_scales": torch.empty_strided(scales.shape, scales.stride(), dtype=torch.uint8),
    }
    torch.library.opcheck(torch.ops.fp4aot.fp4_quantize.out, arguments, buffers)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.operator != "fp4_quantize"],
    ids=lambda case: f"{case.operator}-{case.variant}",
)
def test_opcheck_of_the_others(case):
    packet = getattr(torch.ops.fp4aot, case.operator)
    if "out" not in packet.overloads():
        # It writes to its arguments, which other tests have too.
        checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(packet.default, copy.deepcopy(case.arguments), test_utils=checks)
        return
    result = packet.default(*case.arguments)
    results = result if isinstance(result, tuple) else (result,)
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    tensors = [a for a in (*case.arguments, *results) if isinstance(a, torch.Tensor)]
    if all(tensor.dtype != torch.float8_e4m3fn for tensor in tensors):
        # It compares tensors, which torch before 2.13 cannot do for float8.
        checks.append("test_schema")
    torch.library.opcheck(packet.default, case.arguments, test_utils=checks)
    inputs, names = out_form(packet, case.arguments)
    buffers = {n: torch.zeros_like(t) for n, t in zip(names, results, strict=True)}
    torch.library.opcheck(packet.out, inputs, buffers, test_utils=checks)


def test_the_selftest_passes():
    report = _selftest.run()
    assert report.ok, _selftest.render(report)
    assert {outcome.operator for outcome in report.outcomes} == {
        name.removeprefix("fp4aot::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("fp4aot::") and not name.startswith("fp4aot::_")
    }


@pytest.mark.parametrize("case", EVERY_DEVICE + HOST, ids=lambda c: f"{c.operator}-{c.case}")
@pytest.mark.parametrize("kind", ["cpu", "fake", "fake cuda"])
def test_bad_input_is_refused_alike(case, kind):
    if kind == "fake cuda" and case in HOST:
        kind = "fake"  # an operator of the CPU
    device = "cuda:0" if kind == "fake cuda" else "cpu"
    with nullcontext() if kind == "cpu" else FakeTensorMode(allow_non_fake_inputs=True):
        arguments, keywords = case.build(device)
        with pytest.raises(RuntimeError) as caught:
            resolve(case.operator)(*arguments, **keywords)
    for fragment in (f"fp4aot::{case.operator.split('.')[0]}", *case.fragments):
        assert re.search(fragment, str(caught.value)), f"{fragment!r} not in {caught.value}"


@pytest.mark.parametrize(("operator", "build"), ACCEPTED, ids=[name for name, _ in ACCEPTED])
def test_the_valid_neighbours_of_bad_input_are_accepted(operator, build):
    arguments, keywords = build("cpu")
    resolve(operator)(*arguments, **keywords)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_a_global_scale_of_another_dtype_is_never_read_as_bytes(dtype):
    """Case 5."""
    x = matrix("2-D", column_major=False)
    scale = scale_of(x)
    with pytest.raises(RuntimeError, match=re.escape(str(dtype))):
        fp4aot.fp4_quantize(x, scale.to(dtype))
    good = fp4aot.fp4_quantize(x, scale)
    for same in (scale.reshape(()), scale.reshape(1, 1)):
        for left, right in zip(fp4aot.fp4_quantize(x, same), good, strict=True):
            assert torch.equal(left, right)
    restored = fp4aot.e2m1_and_ufp8sf_scale_to_float(*good, 1 / scale)
    assert torch.cosine_similarity(restored.flatten(), x.float().flatten(), 0) > 0.99


@pytest.mark.parametrize("rows", [0, 1, 7, 130])
def test_gpt_oss_columns(rows):
    """Case 25: K = 2880 with blocks of 32 pads 90 scales to 92, in the fake as well."""
    x = torch.randn(rows, 2880).to(torch.bfloat16)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        faked = {name: fp4aot.mxfp4_quantize(fake, sfLayout=n) for n, name in enumerate(LAYOUTS)}
    for number, (name, columns) in enumerate((("128x4", 92), ("8x4", 92), ("linear", 90))):
        values, scales = fp4aot.mxfp4_quantize(x, sfLayout=fp4aot.SfLayout(number))
        assert values.shape == (rows, 1440)
        tile = {"128x4": 128, "8x4": 8, "linear": 1}[name]
        assert scales.shape == (-(-rows // tile) * tile, columns)
        assert [t.shape for t in faked[name]] == [values.shape, scales.shape]


@pytest.mark.parametrize("rows", [1, 7, 31, 33, 129])
def test_padding_is_zero_and_rows_do_not_depend_on_it(rows):
    """Case 11, with K/16 = 5 columns of scales padded to 8."""
    x = torch.randn(rows, 80).to(torch.bfloat16)
    scale = scale_of(x)
    values = torch.full((rows, 40), 0x7F, dtype=torch.uint8)
    padded = -(-rows // 128) * 128
    scales = torch.full((padded, 8), 0x7F, dtype=torch.uint8)
    torch.ops.fp4aot.fp4_quantize.out(x, scale, values=values, block_scales=scales)
    linear = fp4aot.block_scale_interleave_reverse(scales)
    assert torch.equal(
        linear[:rows, :5], fp4aot.fp4_quantize(x, scale, is_sf_swizzled_layout=False)[1]
    )
    assert not linear[rows:].any()
    assert not linear[:, 5:].any()


def test_flashinfers_host_code_equals_the_reference_on_every_code_and_exponent():
    """The compiled module, reached through the same bridge as the kernels, on this CPU."""
    weight = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8).reshape(256, 1).repeat(1, 16)
    got = fp4aot.mxfp4_dequantize_host(weight, scale, 32)
    from fp4aot.operators.dequantize import mxfp4_dequantize_host

    torch.testing.assert_close(
        got, mxfp4_dequantize_host(weight, scale, 32), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("rows", [1, 7, 31, 33, 129])
@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_padding_of_per_token_scales_is_zero(rows, layout):
    """Case 11, in buffers full of NaN."""
    x = torch.randn(rows, 80).to(torch.bfloat16)
    tile = {"128x4": 128, "8x4": 8}[layout]
    number = list(LAYOUTS).index(layout)
    padded = -(-rows // tile) * tile
    scales = torch.full((padded, 8), 0x7F, dtype=torch.uint8)
    torch.ops.fp4aot.nvfp4_quantize_per_token.out(
        x,
        1 / 2688,
        None,
        number,
        values=torch.empty(rows, 40, dtype=torch.uint8),
        block_scales=scales,
        per_token_scale=torch.empty(rows),
    )
    linear = torch.ops.fp4aot.nvfp4_quantize_per_token(x, 1 / 2688, None, 2)[1]
    assert int(scales.sum()) == int(linear.sum())
    assert torch.equal(scales.flatten().sort()[0][-rows * 5 :], linear.flatten().sort()[0])


@pytest.mark.parametrize("rows", [1, 33, 129])
def test_scales_of_padding_columns_are_zero_for_experts(rows):
    """Case 11: NaN there would meet zero values in a grouped GEMM, and spoil real rows."""
    x = torch.randn(2, rows, 80).to(torch.bfloat16)
    mask = torch.full((2,), rows, dtype=torch.int32)
    values, scales = fp4aot.scaled_fp4_grouped_quantize(x, mask, torch.ones(2))
    buffers = {
        "values": torch.empty_strided(values.shape, values.stride(), dtype=torch.uint8),
        "block_scales": torch.empty_strided(
            scales.shape, scales.stride(), dtype=scales.dtype
        ).fill_(float("nan")),
    }
    torch.ops.fp4aot.scaled_fp4_grouped_quantize.out(x, mask, torch.ones(2), **buffers)
    # [32, 4, row tiles, 4, column tiles, matrices]: columns 5 to 7 are padding.
    padding = buffers["block_scales"].view(torch.uint8)[:, :, :, 1:, 1, :]
    assert not padding.any()
