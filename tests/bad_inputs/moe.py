"""`cutlass_fused_moe`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bad_inputs.arguments import (
    HALF,
    Arguments,
    BadInput,
    call,
    column_major,
    elsewhere,
    every_other,
    scale,
    uint8,
    viewed,
)

MOE = "cutlass_fused_moe"
OUT = f"{MOE}.out"


def vector(
    size: int, dtype: torch.dtype = torch.float32, stretch: int = 1
) -> Callable[[str], torch.Tensor]:
    return uint8(size, dtype=dtype, stretch=stretch)


def bias(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Callable[[str], torch.Tensor]:
    return uint8(*shape, dtype=dtype)


def _arguments(experts: int = 3) -> dict[str, Any]:
    """Make what both forms take: T = 4, k = 2, H = 64, I = 32, and a gated activation."""
    return {
        "input": uint8(4, 64, dtype=torch.bfloat16),
        "token_selected_experts": uint8(4, 2, dtype=torch.int32),
        "token_final_scales": uint8(4, 2, dtype=torch.float32),
        "fc1_expert_weights": uint8(experts, 64, 32),
        "fc2_expert_weights": uint8(experts, 64, 16),
        "fc1_act_global_scale": scale,
        "fc1_weight_block_scales": uint8(experts, 128, 4),
        "fc1_alpha": vector(experts),
        "fc2_act_global_scale": scale,
        "fc2_weight_block_scales": uint8(experts, 128, 4),
        "fc2_alpha": vector(experts),
    }


PLAIN = {"fc1_expert_weights": uint8(3, 32, 32), "activation_type": 6}
"""Replaces a gated activation by the square of ReLU."""
QUANTIZED = {"input": uint8(4, 32), "input_sf": uint8(128, 4)}
"""Replaces an input by a quantized one."""
BIASES = {"fc1_expert_biases": bias(3, 64), "fc2_expert_biases": bias(3, 64)}
PARAMETERS = {
    "swiglu_alpha": vector(3),
    "swiglu_beta": vector(3),
    "swiglu_limit": vector(3),
}
# FlashInfer's callers view packed values eight bytes at a time and scales four.
VIEWED = {
    "fc1_expert_weights": viewed(torch.int64, 3, 64, 32),
    "fc2_expert_weights": viewed(torch.int64, 3, 64, 16),
    "fc1_weight_block_scales": viewed(torch.int32, 3, 128, 4),
    "fc2_weight_block_scales": viewed(torch.int32, 3, 128, 4),
}


def mix(**changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of cutlass_fused_moe with arguments replaced."""
    return call(**{**_arguments(), "output_dtype": torch.bfloat16, **changes})


def mix_into(**changes: Any) -> Callable[[str], Arguments]:
    """Build a valid call of cutlass_fused_moe.out with arguments replaced."""
    return call(**{**_arguments(), "out": uint8(4, 64, dtype=torch.bfloat16), **changes})


ACCEPTED = (
    (MOE, mix()),
    (MOE, mix(token_final_scales=None, enable_pdl=True, use_fused_finalize=False)),
    (MOE, mix(input=uint8(4, 64, dtype=HALF), output_dtype=HALF, enable_alltoall=True)),
    (MOE, mix(**PLAIN)),
    (MOE, mix(**BIASES, tp_size=2, tp_rank=1, ep_size=3, ep_rank=2)),
    (MOE, mix(**PARAMETERS)),
    (MOE, mix(activation_type=7, swiglu_limit=vector(3))),
    (MOE, mix(**QUANTIZED, output_dtype=HALF)),
    (MOE, mix(input=uint8(4, 32), input_sf=uint8(16), swizzled_input_sf=False)),
    (
        MOE,
        mix(
            **VIEWED,
            input=viewed(torch.int64, 4, 32),
            input_sf=viewed(torch.float8_e4m3fn, 512),
        ),
    ),
    (
        MOE,
        mix(
            input=viewed(torch.float4_e2m1fn_x2, 4, 32),
            input_sf=uint8(4, 128),
            fc1_expert_weights=viewed(torch.float4_e2m1fn_x2, 3, 64, 32),
            fc2_expert_weights=viewed(torch.float4_e2m1fn_x2, 3, 64, 16),
            fc1_weight_block_scales=viewed(torch.float8_e4m3fn, 3, 128, 4),
            fc2_weight_block_scales=viewed(torch.float8_e4m3fn, 3, 128, 4),
        ),
    ),
    (
        MOE,
        mix(
            fc1_act_global_scale=lambda device: torch.ones((), device=device),
            fc2_act_global_scale=vector(3),
            gemm1_tactic=-1,
            gemm2_tactic=-1,
        ),
    ),
    (
        MOE,
        mix(
            input=uint8(0, 64, dtype=torch.bfloat16),
            token_selected_experts=uint8(0, 2, dtype=torch.int32),
            token_final_scales=None,
        ),
    ),
    # What is small is copied.
    (
        MOE,
        mix(
            input=column_major(4, 64, dtype=torch.bfloat16),
            token_selected_experts=column_major(4, 2, dtype=torch.int32),
            token_final_scales=column_major(4, 2, dtype=torch.float32),
            fc1_alpha=vector(1, stretch=3),
            fc2_act_global_scale=vector(1, stretch=3),
        ),
    ),
    (OUT, mix_into()),
    (OUT, mix_into(out=uint8(4, 64, dtype=HALF), **QUANTIZED)),
    (OUT, mix_into(workspace_buffer=uint8(1 << 26))),
    (OUT, mix_into(workspace_buffer=uint8(1 << 26, dtype=torch.int8))),
)


def _case(case: str, changes: dict[str, Any], *fragments: str) -> BadInput:
    return BadInput(case, MOE, mix(**changes), fragments)


def _out_case(case: str, changes: dict[str, Any], *fragments: str) -> BadInput:
    return BadInput(case, OUT, mix_into(**changes), fragments)


def _elsewhere() -> tuple[BadInput, ...]:
    """Make a case of each tensor beside the input on another device."""
    arguments = {**_arguments(), **BIASES, **PARAMETERS}
    return tuple(
        _case(
            f"{name} elsewhere",
            {**(BIASES if "bias" in name else {}), name: elsewhere(make)},
            f"'{name}': got device (cpu|meta)",
            "the device of 'input'",
        )
        for name, make in arguments.items()
        if name != "input"
    )


def _one_for_each_expert() -> tuple[BadInput, ...]:
    """Make cases of each vector with a value for each expert."""
    names = ("fc1_alpha", "fc2_alpha", *PARAMETERS)
    return tuple(
        bad
        for name in names
        for bad in (
            _case(
                f"dtype of {name}",
                {name: vector(3, dtype=HALF)},
                f"'{name}': got dtype .*float16",
                "float32",
            ),
            _case(f"one {name} for all", {name: scale}, rf"'{name}': got shape \[1\]", r"\[3\]"),
            _case(
                f"{name} as a column", {name: uint8(3, 1, dtype=torch.float32)}, name, r"\[3, 1\]"
            ),
        )
    )


_OPTIONS = (
    _case(
        "output dtype",
        {"output_dtype": torch.float32},
        "'output_dtype': got .*float32",
        "bfloat16 or .*float16",
    ),
    _case(
        "Situ",
        {"activation_type": 10},
        r"'activation_type': got 10 \(Situ\)",
        r"one of 0 \(Gelu\), 1 \(Relu\), .*, 9 \(Identity\)",
        r"flashinfer\.cutlass_fused_moe",
    ),
    _case("ClampedRelu2", {"activation_type": 12}, r"got 12 \(ClampedRelu2\)"),
    _case("unknown activation", {"activation_type": 13}, "'activation_type': got 13, expected"),
    _case("negative activation", {"activation_type": -1}, "'activation_type': got -1, expected"),
    *(
        _case(case, changes, *fragments)
        for kind in ("tp", "ep")
        for case, changes, *fragments in (
            (
                f"{kind} size",
                {f"{kind}_size": 0},
                f"'{kind}_size': got 0, expected 1 or more",
                "number of ranks",
            ),
            (
                f"{kind} rank",
                {f"{kind}_size": 2, f"{kind}_rank": 2},
                f"'{kind}_rank': got 2, expected 0 to 1, below {kind}_size",
            ),
            (
                f"negative {kind} rank",
                {f"{kind}_rank": -1},
                f"'{kind}_rank': got -1, expected 0 to 0",
            ),
        )
    ),
    *(
        _case(
            f"negative {name}",
            {name: -2},
            f"'{name}': got -2, expected the number of a tactic",
            "pass -1",
        )
        for name in ("gemm1_tactic", "gemm2_tactic")
    ),
)

_INPUT = (
    _case(
        "dtype of input",
        {"input": uint8(4, 64, dtype=torch.float32)},
        "'input': got dtype .*float32",
        "bfloat16 or .*float16 or .*uint8 or .*float4_e2m1fn_x2 or .*int64",
    ),
    _case(
        "rank of input",
        {"input": uint8(1, 4, 64, dtype=torch.bfloat16)},
        r"'input': got shape \[1, 4, 64\]",
        "2 dimensions",
    ),
    _case(
        "input of another dtype than the output",
        {"output_dtype": HALF},
        "'input': got dtype .*bfloat16",
        "float16, the dtype of the output",
    ),
    _case(
        "hidden size",
        {"input": uint8(4, 48, dtype=torch.bfloat16)},
        r"'input': got shape \[4, 48\] \(48 values a row\)",
        "positive multiple of 32 values a row",
    ),
    _case("hidden size of 0", {"input": uint8(4, 0)}, r"\[4, 0\] \(0 values a row\)", "multiple"),
    _case(
        "packed hidden size",
        {"input": viewed(torch.int64, 4, 24)},
        r"'input': got shape \[4, 3\] \(48 values a row\)",
    ),
)

_WEIGHTS = (
    *(
        _case(case, changes, *fragments)
        for name, rows, columns in (("fc1_expert_weights", 64, 32), ("fc2_expert_weights", 64, 16))
        for case, changes, *fragments in (
            (
                f"dtype of {name}",
                {name: uint8(3, rows, columns, dtype=torch.int8)},
                f"'{name}': got dtype .*int8",
                "uint8 or .*float4_e2m1fn_x2 or .*int64",
            ),
            (f"rank of {name}", {name: uint8(rows, columns)}, f"'{name}': got", "3 dimensions"),
            (
                f"strides of {name}",
                {name: column_major(3, rows, columns)},
                f"'{name}': got shape",
                rf"strides \[{rows * columns}, 1, {rows}\]",
                "a contiguous tensor; make it contiguous once",
            ),
        )
    ),
    _case("no experts", {"fc1_expert_weights": uint8(0, 64, 32)}, r"\(0 experts\)", "or more"),
    _case(
        "fc1 weights of another hidden size",
        {"fc1_expert_weights": uint8(3, 64, 48)},
        r"'fc1_expert_weights': got shape \[3, 64, 48\] \(96 values a row\)",
        r"64 values a row, for input of shape \[4, 64\]",
    ),
    _case(
        "intermediate size",
        {"fc1_expert_weights": uint8(3, 96, 32)},
        r"'fc1_expert_weights': got shape \[3, 96, 32\] \(96 rows an expert\)",
        "positive multiple of 64 rows an expert",
    ),
    _case(
        "intermediate size of a plain activation",
        {**PLAIN, "fc1_expert_weights": uint8(3, 48, 32)},
        r"\(48 rows an expert\)",
        "positive multiple of 32 rows an expert",
    ),
    _case("intermediate size of 0", {"fc1_expert_weights": uint8(3, 0, 32)}, r"\(0 rows", "64"),
    _case(
        "another number of experts",
        {"fc2_expert_weights": uint8(2, 64, 16)},
        r"'fc2_expert_weights': got shape \[2, 64, 16\]",
        r"\[3, 64, 16\], for fc1_expert_weights with 64 up and gate rows an expert",
    ),
    _case(
        "fc2 weights of another hidden size",
        {"fc2_expert_weights": uint8(3, 96, 16)},
        r"\[3, 96, 16\]",
        r"expected \[3, 64, 16\]",
    ),
    _case(
        "weights of a plain activation for a gated one",
        {"fc2_expert_weights": uint8(3, 64, 32)},
        r"\[3, 64, 32\]",
        r"expected \[3, 64, 16\]",
        r"\[experts, hidden size, intermediate size / 2\]",
    ),
    _case(
        "weights of a gated activation for a plain one",
        {"activation_type": 2},
        r"'fc2_expert_weights': got shape \[3, 64, 16\]",
        r"\[3, 64, 32\], for fc1_expert_weights with 64 rows an expert",
    ),
    _case(
        "viewed weights of another intermediate size",
        {"fc2_expert_weights": viewed(torch.int64, 3, 64, 32)},
        r"\[3, 64, 4\], expected \[3, 64, 2\]",
    ),
)

_ROUTING = (
    _case(
        "dtype of selected experts",
        {"token_selected_experts": uint8(4, 2, dtype=torch.int64)},
        "'token_selected_experts': got dtype .*int64",
        "int32",
    ),
    _case(
        "rank of selected experts",
        {"token_selected_experts": vector(4, dtype=torch.int32)},
        "'token_selected_experts'",
        "2 dimensions",
    ),
    _case(
        "selected experts of another number of tokens",
        {"token_selected_experts": uint8(5, 2, dtype=torch.int32)},
        r"'token_selected_experts': got shape \[5, 2\]",
        "4 rows, as input has, of one expert or more",
    ),
    _case(
        "no selected expert",
        {"token_selected_experts": uint8(4, 0, dtype=torch.int32), "token_final_scales": None},
        r"'token_selected_experts': got shape \[4, 0\]",
        "one expert or more",
    ),
    _case(
        "dtype of final scales",
        {"token_final_scales": bias(4, 2)},
        "'token_final_scales': got dtype .*bfloat16",
        "float32",
    ),
    _case(
        "shape of final scales",
        {"token_final_scales": uint8(4, 3, dtype=torch.float32)},
        r"'token_final_scales': got shape \[4, 3\]",
        r"\[4, 2\], the shape of token_selected_experts",
    ),
    _case(
        "too many tokens times experts",
        {
            "input": uint8(1, 64, dtype=torch.bfloat16, stretch=2**29),
            "token_selected_experts": uint8(1, 2, dtype=torch.int32, stretch=2**29),
            "token_final_scales": None,
            "ep_size": 2,
        },
        "'input': got a number of tokens times experts of all ranks of 3221225472",
        r"2\*\*31",
    ),
    _case(
        "too many selections",
        {
            "input": uint8(1, 64, dtype=torch.bfloat16, stretch=2**29),
            "token_selected_experts": uint8(1, 4, dtype=torch.int32, stretch=2**29),
            "token_final_scales": None,
        },
        "'token_selected_experts': got a number of tokens times selected experts of 2147483648",
    ),
    _case(
        "too many selected experts times experts",
        {
            "ep_size": 2**29,
            "input": uint8(1, 64, dtype=torch.bfloat16),
            "token_selected_experts": uint8(1, 2, dtype=torch.int32),
            "token_final_scales": None,
        },
        "'token_selected_experts': got a number of selected experts times experts of all ranks of "
        "3221225472",
    ),
)

_SCALES = (
    _case(
        "scales of an unquantized input",
        {"input_sf": uint8(128, 4)},
        "'input_sf': got a tensor with an input of .*bfloat16, expected None",
    ),
    _case("no scales of the input", {**QUANTIZED, "input_sf": None}, "'input_sf': got None"),
    _case(
        "dtype of the scales of the input",
        {**QUANTIZED, "input_sf": viewed(torch.int32, 128, 4)},
        "'input_sf': got dtype .*int32",
        "uint8 or .*float8_e4m3fn",
    ),
    _case(
        "scales of the input elsewhere",
        {**QUANTIZED, "input_sf": elsewhere(uint8(128, 4))},
        "'input_sf': got device (cpu|meta)",
    ),
    _case(
        "strides of the scales of the input",
        {**QUANTIZED, "input_sf": column_major(128, 4)},
        "'input_sf': got shape",
        r"strides \[1, 128\]",
        "contiguous",
    ),
    _case(
        "linear scales of the input",
        {**QUANTIZED, "input_sf": uint8(4, 4)},
        "'input_sf': got 16 scales, as many as layout_linear has",
        r"512 \(layout_128x4 for 4 rows of 64 values\)",
        "swizzled_input_sf",
    ),
    _case(
        "swizzled scales of the input",
        {**QUANTIZED, "swizzled_input_sf": False},
        "'input_sf': got 512 scales, as many as layout_128x4 has",
        r"16 \(layout_linear for 4 rows of 64 values\)",
    ),
    _case(
        "linear scales of rows that are no groups of four blocks",
        {
            "input": uint8(4, 48),
            "input_sf": uint8(4, 6),
            "swizzled_input_sf": False,
            "fc1_expert_weights": uint8(3, 64, 48),
            "fc2_expert_weights": uint8(3, 96, 16),
        },
        "'swizzled_input_sf': got False with 96 values a row",
        "True, or a multiple of 64 values a row",
        "128x4",
    ),
    _case(
        "scales of another input",
        {**QUANTIZED, "input_sf": uint8(256, 4)},
        "'input_sf': got 1024 scales, expected 512",
    ),
    *(
        _case(case, changes, *fragments)
        for product in ("fc1", "fc2")
        for name in (f"{product}_act_global_scale",)
        for case, changes, *fragments in (
            (f"dtype of {name}", {name: vector(1, dtype=HALF)}, f"'{name}': got dtype", "float32"),
            (
                f"shape of {name}",
                {name: vector(2)},
                rf"'{name}': got shape \[2\]",
                r"\[\] or \[1\] or \[3\]",
                "the experts of this rank",
            ),
            (f"rank of {name}", {name: uint8(1, 1, dtype=torch.float32)}, name, r"\[1, 1\]"),
        )
    ),
    *(
        _case(case, changes, *fragments)
        for name in ("fc1_weight_block_scales", "fc2_weight_block_scales")
        for case, changes, *fragments in (
            (
                f"dtype of {name}",
                {name: uint8(3, 128, 4, dtype=torch.int8)},
                f"'{name}': got dtype .*int8",
                "uint8 or .*float8_e4m3fn or .*int32",
            ),
            (
                f"flat {name}",
                {name: uint8(3, 512)},
                rf"'{name}': got shape \[3, 512\]",
                r"\[3, 128, 4\] \(layout_128x4 for each of 3 experts with 64 rows of \d+ values\)",
                "block_scale_interleave",
            ),
            (f"unpadded {name}", {name: uint8(3, 64, 4)}, rf"'{name}': got shape \[3, 64, 4\]"),
            (
                f"{name} viewed twice",
                {name: viewed(torch.int32, 3, 128, 16)},
                rf"'{name}': got shape \[3, 128, 4\], expected \[3, 128, 1\]",
            ),
            (
                f"strides of {name}",
                {name: column_major(3, 128, 4)},
                f"'{name}': got shape",
                r"strides \[512, 1, 128\]",
                "contiguous",
            ),
        )
    ),
)

_BIASES = (
    _case(
        "bias of the first product alone",
        {**BIASES, "fc2_expert_biases": None},
        "'fc2_expert_biases': got None",
        "as fc1_expert_biases is one",
        "both biases or neither",
    ),
    _case(
        "bias of the second product alone",
        {**BIASES, "fc1_expert_biases": None},
        "'fc1_expert_biases': got None",
        "as fc2_expert_biases is one",
    ),
    *(
        _case(case, changes, *fragments)
        for name in BIASES
        for case, changes, *fragments in (
            (
                f"dtype of {name}",
                {**BIASES, name: bias(3, 64, dtype=torch.float32)},
                f"'{name}': got dtype .*float32",
                "bfloat16",
            ),
            (
                f"shape of {name}",
                {**BIASES, name: bias(3, 32)},
                rf"'{name}': got shape \[3, 32\]",
                r"\[3, 64\]",
            ),
        )
    ),
    _case(
        "alpha of another activation",
        {"activation_type": 4, "swiglu_alpha": vector(3)},
        r"'swiglu_alpha': got a tensor with activation_type=4 \(Geglu\), expected None",
        "only with Swiglu or SwigluBias$",
    ),
    _case(
        "beta of another activation",
        {"activation_type": 7, "swiglu_beta": vector(3)},
        r"'swiglu_beta': got a tensor with activation_type=7 \(SwigluStep\)",
    ),
    _case(
        "limit of another activation",
        {**PLAIN, "fc2_expert_weights": uint8(3, 64, 16), "swiglu_limit": vector(3)},
        r"'swiglu_limit': got a tensor with activation_type=6 \(Relu2\)",
        "only with Swiglu or SwigluBias or SwigluStep$",
    ),
)

_OUT = (
    _out_case(
        "out of the wrong dtype",
        {"out": uint8(4, 64, dtype=torch.float32)},
        "'out': got dtype .*float32",
        "bfloat16 or .*float16",
    ),
    _out_case(
        "out of another dtype than the input",
        {"out": uint8(4, 64, dtype=HALF)},
        "'input': got dtype .*bfloat16",
        "float16, the dtype of the output",
    ),
    _out_case(
        "out of the wrong shape",
        {"out": bias(64, 4)},
        r"'out': got shape \[64, 4\]",
        r"\[4, 64\]",
        "functional form",
    ),
    _out_case(
        "out of the wrong strides",
        {"out": column_major(4, 64, dtype=torch.bfloat16)},
        "'out': got shape",
        r"strides \[1, 4\]",
        r"strides \[64, 1\]",
    ),
    _out_case(
        "out elsewhere",
        {"out": elsewhere(bias(4, 64))},
        "'out': got device (cpu|meta)",
        "the device of 'input'",
    ),
    _out_case(
        "dtype of the workspace",
        {"workspace_buffer": bias(1024)},
        "'workspace_buffer': got dtype .*bfloat16",
        "uint8 or .*int8",
    ),
    _out_case(
        "rank of the workspace",
        {"workspace_buffer": uint8(1024, 1)},
        "'workspace_buffer': got shape",
        "1 dimensions",
    ),
    _out_case(
        "workspace elsewhere",
        {"workspace_buffer": elsewhere(uint8(1024))},
        "'workspace_buffer': got device (cpu|meta)",
        "the device of 'input'",
    ),
    _out_case(
        "strides of the workspace",
        {"workspace_buffer": every_other(1024)},
        r"'workspace_buffer': got strides \[2\]",
        "a contiguous tensor; pass it as it was allocated",
    ),
    _out_case("experts for out", {"fc2_alpha": vector(2)}, r"'fc2_alpha': got shape \[2\]"),
)

REFUSED = (
    _OPTIONS
    + _INPUT
    + _WEIGHTS
    + _ROUTING
    + _SCALES
    + _one_for_each_expert()
    + _BIASES
    + _elsewhere()
    + _OUT
)
