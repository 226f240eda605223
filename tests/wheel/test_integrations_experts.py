"""FlashInfer's mixture of experts and grouped matrix multiplications go to the wheel."""

from __future__ import annotations

EXPERTS = """
import flashinfer as fi
from flashinfer.fused_moe.core import ActivationType
from flashinfer.gemm import gemm_base

E, H, I, T, K = 4, 256, 128, 9, 2

def quantized(rows, columns, experts=E):
    scale = torch.full((1,), 600.0)
    made = [fp4aot.fp4_quantize(random(rows, columns), scale) for _ in range(experts)]
    values, block_scales = zip(*made)
    return torch.stack(values), torch.stack(block_scales)

tokens = random(T, H)
input_scale = torch.tensor([600.0])
alphas = torch.full((E,), 1 / 600.0 ** 2)
selected = torch.randint(0, E, (T, K), generator=generator).int()
weights = torch.rand(T, K, generator=generator)

def experts(rows=2 * I):
    fc1, fc1_scales = quantized(rows, H)
    fc2, fc2_scales = quantized(H, I)
    return (fc1, fc2), [input_scale, fc1_scales, alphas, input_scale, fc2_scales, alphas]

def as_flashinfer(packed, scales):
    "Eight bytes of values and four scales in one number, as FlashInfer's callers pass them."
    return ([one.view(torch.int64) for one in packed],
            [one.view(torch.int32) if one.dtype == torch.uint8 else one for one in scales])

packed, scales = experts()
(long1, long2), scales_32 = as_flashinfer(packed, scales)
def theirs(**changes):
    names = dict(input=tokens, token_selected_experts=selected, token_final_scales=weights,
                 fc1_expert_weights=long1, fc2_expert_weights=long2, output_dtype=torch.bfloat16,
                 quant_scales=scales_32) | changes
    return fi.cutlass_fused_moe(**names)
def ours(x=tokens, packed=packed, scales=scales, dtype=torch.bfloat16, **options):
    return fp4aot.cutlass_fused_moe(x, selected, weights, *packed, dtype, scales, **options)
"""


def test_the_mixture_of_experts_in_flashinfers_form(with_flashinfer):
    with_flashinfer(
        EXPERTS
        + """
import flashinfer.fused_moe
first = fi.cutlass_fused_moe
assert integration.enable().active
assert fi.cutlass_fused_moe is fi.fused_moe.cutlass_fused_moe is fi.fused_moe.core.cutlass_fused_moe
assert first is fi.cutlass_fused_moe, "this module's own name was not replaced"

expected = ours()
assert expected.abs().amax() > 0
# A list, as FlashInfer returns one; its callers take the first.
assert same(theirs(), [expected])
assert same(fi.cutlass_fused_moe(tokens, selected, weights, long1, long2, torch.bfloat16,
                                 scales_32), [expected])
assert same(theirs(activation_type=ActivationType.Swiglu, use_fused_finalize=False,
                   tune_max_num_tokens=64, profile_ids=[-1, -1], enable_pdl=True), [expected])

out = torch.full_like(expected, float("nan"))
(result,) = theirs(output=out)
assert result is out and same(out, expected)
workspace = torch.empty(fi.fused_moe.cutlass_fused_moe_workspace_size(
    T, H, I, E, K, x_dtype=torch.bfloat16, weight_dtype=torch.int64), dtype=torch.uint8)
assert same(theirs(workspace_buffer=workspace), [expected])

values, block_scales = fp4aot.fp4_quantize(tokens, input_scale)
assert same(theirs(input=values, input_sf=block_scales),
            [ours(values, input_sf=block_scales)])
assert same(theirs(input=values.view(torch.int64), input_sf=block_scales),
            [ours(values, input_sf=block_scales)])
linear = fp4aot.fp4_quantize(tokens, input_scale, is_sf_swizzled_layout=False)
assert same(theirs(input=linear[0], input_sf=linear[1], swizzled_input_sf=False),
            [ours(linear[0], input_sf=linear[1], swizzled_input_sf=False)])
half = tokens.half()
assert same(theirs(input=half, output_dtype=torch.float16), [ours(half, dtype=torch.float16)])

clamped = {name: torch.full((E,), value) for name, value in
           (("swiglu_alpha", 1.7), ("swiglu_beta", 1.0), ("swiglu_limit", 2.0))}
assert same(theirs(**clamped), [ours(**clamped)]) and not same(theirs(**clamped), [expected])
assert same(theirs(ep_size=2, ep_rank=1), [ours(ep_size=2, ep_rank=1)])
biases = {"fc1_expert_biases": random(E, 2 * I), "fc2_expert_biases": random(E, H)}
assert same(theirs(**biases), [ours(**biases)])

# Every activation by FlashInfer's own name for it.
for name in ("Swiglu", "Geglu", "SwigluBias", "SwigluStep", "GegluTanh"):
    wanted = [ours(activation_type=fp4aot.ActivationType[name])]
    assert same(theirs(activation_type=ActivationType[name]), wanted), name
plain, plain_scales = experts(I)
(plain1, plain2), plain_32 = as_flashinfer(plain, plain_scales)
for name in ("Gelu", "Relu", "Silu", "Relu2", "Identity"):
    wanted = [ours(packed=plain, scales=plain_scales, activation_type=fp4aot.ActivationType[name])]
    assert same(theirs(fc1_expert_weights=plain1, fc2_expert_weights=plain2,
                       quant_scales=plain_32, activation_type=ActivationType[name]), wanted), name

# FlashInfer cannot tune on the CPU: a call is a call.
with fi.autotune():
    assert same(theirs(), [expected])
"""
    )


def test_what_the_mixture_does_not_have_goes_to_flashinfer(with_flashinfer):
    with_flashinfer(
        EXPERTS
        + """
assert integration.enable().active
assert not is_flashinfers(theirs)
# Its sign of NVFP4 is int64: uint8 is 4-bit weights with 16-bit activations.
assert is_flashinfers(theirs, fc1_expert_weights=packed[0], fc2_expert_weights=packed[1])
assert is_flashinfers(theirs, input=tokens.to(torch.float8_e4m3fn))
assert is_flashinfers(theirs, input=tokens.float(), output_dtype=torch.float32)
for flag in ("use_deepseek_fp8_block_scale", "use_w4_group_scaling", "use_mxfp8_act_scaling",
             "min_latency_mode", "use_packed_weights", "use_wfp4afp8_humming"):
    assert is_flashinfers(theirs, **{flag: True}), flag
one = torch.ones(E)
assert is_flashinfers(theirs, activation_type=ActivationType.Situ)
assert is_flashinfers(theirs, activation_type=ActivationType.Situ, situ_beta=one)
assert is_flashinfers(theirs, activation_type=ActivationType.ClampedRelu2,
                      clamped_relu2_limit=one[:1])
assert is_flashinfers(theirs, quant_scales=scales_32[:4])
assert is_flashinfers(theirs, backend="cake")
assert is_flashinfers(theirs, cluster_size=2)
# Intermediate size 112.
assert is_flashinfers(theirs, fc2_expert_weights=long2[:, :, :7].contiguous())

# What is wrong with NVFP4 experts is said here.
try:
    theirs(token_selected_experts=selected.long())
except RuntimeError as error:
    assert "fp4aot::cutlass_fused_moe: argument 'token_selected_experts'" in str(error), error
else:
    raise AssertionError

size = fi.fused_moe.cutlass_fused_moe_workspace_size
sizes, dtypes = (T, H, I, E, K), {"x_dtype": torch.bfloat16, "weight_dtype": torch.int64}
assert isinstance(size(*sizes, **dtypes), int)
for change in ({"weight_dtype": torch.uint8}, {"x_dtype": torch.float8_e4m3fn},
               {"use_mxfp8_act_scaling": True}, {"activation_type": ActivationType.Situ}):
    try:
        size(*sizes, **(dtypes | change))
    except (AssertionError, RuntimeError) as error:
        # FlashInfer asks for the current CUDA device.
        assert "CUDA" in str(error), error
    else:
        raise AssertionError(change)
"""
    )


def test_groups(with_flashinfer):
    with_flashinfer(
        EXPERTS
        + """
assert integration.enable().active
from flashinfer.gemm import group_gemm_mxfp4_nt_groupwise
starts = torch.tensor([0, 4, 4, 12], dtype=torch.int32)
groups, n = 3, 64
b, b_scale = quantized(n, H, groups)
# Rows of scales: each group begins at a multiple of 128, and in it they are swizzled.
rows = (12 + 127 * groups) // 128 * 128
scale = torch.tensor([600.0])
x = random(12, H)
a = fp4aot.fp4_quantize(x, scale)[0]
a_scale = torch.zeros(rows, H // 16, dtype=torch.uint8)
for i in range(groups):
    first, last = starts[i], starts[i + 1]
    if first < last:
        at = (int(first) + 127 * i) // 128 * 128
        a_scale[at:at + 128] = fp4aot.fp4_quantize(x[first:last], scale)[1].view(128, H // 16)
alpha = torch.rand(groups, generator=generator)
nvfp4 = (a, b, a_scale, b_scale, starts)
for options in ({}, {"alpha": alpha}, {"alpha": alpha[:0]}, {"tile_n": 64, "swap_ab": False},
                {"out_dtype": torch.float16}, {"skip_check": True}):
    wanted = {name: one for name, one in options.items() if name != "skip_check"}
    assert same(fi.gemm.group_gemm_nvfp4_nt_groupwise(*nvfp4, **options),
                fp4aot.group_gemm_nvfp4_nt_groupwise(*nvfp4, **wanted)), options
expected = fp4aot.group_gemm_nvfp4_nt_groupwise(*nvfp4)
out = torch.full_like(expected, float("nan"))
assert fi.gemm.group_gemm_nvfp4_nt_groupwise(*nvfp4, out=out) is out and same(out, expected)
assert expected.abs().amax() > 0
assert is_flashinfers(fi.gemm.group_gemm_nvfp4_nt_groupwise, *nvfp4, something=1)

mx_scales = torch.full((rows, H // 32), 127, dtype=torch.uint8)
b_exponents = torch.full((groups, 128, H // 32), 126, dtype=torch.uint8)
for eight in (torch.float8_e4m3fn, torch.float8_e5m2):
    mxfp4 = (x.to(eight), b, mx_scales, b_exponents, starts)
    expected = fp4aot.group_gemm_mxfp8_mxfp4_nt_groupwise(*mxfp4)
    assert expected.abs().amax() > 0
    assert same(fi.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise(*mxfp4), expected)
    assert same(group_gemm_mxfp4_nt_groupwise(*mxfp4, mma_sm=1, tile_k=128), expected)
    out = torch.full_like(expected, float("nan"))
    assert group_gemm_mxfp4_nt_groupwise(*mxfp4, out=out) is out and same(out, expected)
"""
    )


def test_the_mixture_is_traced_as_one_graph(with_flashinfer):
    """With FlashInfer's enumeration, and for any number of tokens."""
    with_flashinfer(
        EXPERTS
        + """
assert integration.enable().active
from flashinfer import cutlass_fused_moe

def layer(x, chosen, weight):
    y = cutlass_fused_moe(x, chosen, weight, long1, long2, torch.bfloat16, scales_32,
                          activation_type=ActivationType.Swiglu, use_fused_finalize=False)[0]
    out = torch.empty_like(x)
    fi.fused_moe.cutlass_fused_moe(x, chosen, weight, long1, long2, torch.bfloat16, scales_32,
                                   output=out)
    return y, out

graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward
compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
# Not first a number that another dimension has, or they are taken for the same.
for rows in (5, 3, 2, 7, 64):
    inputs = (random(rows, H), torch.randint(0, E, (rows, K), generator=generator).int(),
              torch.rand(rows, K, generator=generator))
    assert same(compiled(*inputs), layer(*inputs)), rows
assert len(graphs) == 1, len(graphs)
names = {node.target.name() for node in graphs[0].graph.nodes if hasattr(node.target, "name")}
assert {"fp4aot::cutlass_fused_moe", "fp4aot::cutlass_fused_moe.out"} <= names, names
"""
    )


def test_with_another_recipe_the_mixture_stays_flashinfers(with_flashinfer):
    """The operator has the standard one alone, and FlashInfer's reads the environment."""
    with_flashinfer(
        EXPERTS
        + """
report = integration.enable()
kept = {one.name: one.reason for one in report.kept}
assert set(kept) == {name for name in NAMES if "cutlass_fused_moe" in name}, kept
assert set(kept.values()) == {"not in this wheel with the recipe of the environment"}
assert is_flashinfers(theirs)
assert "group_gemm_nvfp4_nt_groupwise" in report.replaced
""",
        FLASHINFER_NVFP4_4OVER6="1",
    )
