"""How calls of FlashInfer's mixture of experts and of its groups are routed, without FlashInfer."""

from __future__ import annotations

import enum
import functools
import inspect
import types

import pytest
import torch

from fp4aot.integrations._flashinfer import inspection, moe, table
from fp4aot.integrations._flashinfer.call import Context, replace


class Newest(enum.IntEnum):
    """As in FlashInfer 0.7.2, with one that the wheel does not have."""

    Swiglu = 3
    SwigluStep = 7
    Identity = 9
    Situ = 10


class Oldest(enum.IntEnum):
    """As in FlashInfer 0.6.12."""

    Swiglu = 3
    Identity = 7
    InvalidType = 8


@pytest.mark.parametrize(
    ("enumeration", "expected"),
    [(Newest, {3: 3, 7: 7, 9: 9}), (Oldest, {3: 3, 7: 9})],
)
def test_activations_are_compared_by_name(enumeration, expected):
    def theirs(input, activation_type=enumeration.Swiglu):
        pass

    assert moe.activation_numbers(theirs) == expected


# The parameters that each version has, in its order.
EXPERTS = (
    "input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights, "
    "output_dtype, quant_scales, fc1_expert_biases=None, fc2_expert_biases=None, input_sf=None, "
    "swiglu_alpha=None, swiglu_beta=None, swiglu_limit=None, tp_size=1, tp_rank=0, ep_size=1, "
    "ep_rank=0, cluster_size=1, cluster_rank=0, output=None, enable_alltoall=False, "
    "use_deepseek_fp8_block_scale=False, use_w4_group_scaling=False, use_mxfp8_act_scaling=False, "
    "min_latency_mode=False, use_packed_weights=False, "
)
AFTER = "tune_max_num_tokens=8192, enable_pdl=None, activation_type=3, swizzled_input_sf=True"
LAST = "use_fused_finalize=True, profile_ids=None, workspace_buffer=None"
ADDED = "clamped_relu2_limit=None, situ_beta=None, situ_linear_beta=None, backend='cutlass'"
GROUPS = "a, b, a_scale, b_scale, m_indptr, alpha=None, tile_m=128, tile_n=128, tile_k=128, "
MX_GROUPS = "a, b, a_scale, b_scale, m_indptr, mma_sm=1, tile_m=128, tile_n=128, tile_k=128, "
VERSIONS = {
    "experts 0.6.8": ("cutlass_fused_moe", EXPERTS + AFTER),
    "experts 0.6.18": (
        "cutlass_fused_moe",
        f"{EXPERTS}use_wfp4afp8_humming=False, {AFTER}, {LAST}",
    ),
    "experts 0.7.2": (
        "cutlass_fused_moe",
        f"{EXPERTS}use_wfp4afp8_humming=False, {AFTER}, {LAST}, *, {ADDED}",
    ),
    "groups 0.6.8": ("group_gemm_nvfp4_nt_groupwise", GROUPS + "out=None, out_dtype=None"),
    "groups 0.6.12": (
        "group_gemm_nvfp4_nt_groupwise",
        GROUPS + "swap_ab=True, out=None, out_dtype=None",
    ),
    "groups of MXFP8": (
        "group_gemm_mxfp8_mxfp4_nt_groupwise",
        MX_GROUPS + "swap_ab=True, out=None, out_dtype=None",
    ),
}


@pytest.fixture(params=VERSIONS.values(), ids=VERSIONS)
def version(request):
    """FlashInfer's function, which returns its arguments, and our route for it."""
    name, parameters = request.param
    parameters += ", something=None" if "*" in parameters else ", *, something=None"
    namespace: dict = {}
    exec(f"def f({parameters}): return dict(locals())", namespace)
    (row,) = (row for row in table.PUBLIC_FUNCTIONS if row.name == name)
    route = row.make(namespace["f"], Context(("auto",), None, None, moves_to_gpu=False))
    assert inspection.difference(namespace["f"], route) == ""
    return namespace["f"], route


def arguments_of(original, passed):
    """The same by position as far as that goes."""
    described = inspect.signature(original).parameters
    positional = [n for n, p in described.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {name: value for name, value in passed.items() if name not in positional}
    return [passed[name] for name in positional], keywords


def test_arguments_go_on_as_they_came_in_each_versions_order(version):
    """All of them by position, each with a value of its own."""
    original, route = version
    passed: dict = {name: object() for name in inspect.signature(original).parameters}
    # Not NVFP4, and with a keyword that asks for something.
    passed |= {"something": 1}
    if "activation_type" in passed:
        passed |= {
            "activation_type": 5,
            "fc1_expert_weights": types.SimpleNamespace(dtype=torch.uint8),
        }
    positional, keywords = arguments_of(original, passed)
    assert replace(original, route)(*positional, **keywords) == passed


def test_arguments_reach_the_operator_in_each_versions_order(version):
    original, route = version
    described = inspect.signature(original).parameters
    taken = {name: object() for name in described if name in route.defaults()}
    passed = {name: one.default for name, one in described.items()} | taken
    answers: list = []

    @functools.wraps(route.answer)
    def answer(*arguments, **named):
        bound = inspect.signature(route.answer).bind(*arguments, **named).arguments
        answers.append(bound["values"] if route.function else bound)

    positional, keywords = arguments_of(original, passed)
    replace(original, route._replace(answer=answer))(*positional, **keywords)
    assert answers == [taken]
