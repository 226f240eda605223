"""`cutlass_fused_moe`."""

from __future__ import annotations

from functools import partial

import torch

from bad_inputs.arguments import HALF, column_major, elsewhere, every_other, scale, uint8, viewed
from bad_inputs.calls import call, refused, wrong_results

MOE = "cutlass_fused_moe"
OUT = f"{MOE}.out"

vector = partial(uint8, dtype=torch.float32)
bias = partial(uint8, dtype=torch.bfloat16)
# What both forms take: T = 4, k = 2, H = 64, I = 32, and a gated activation.
_ARGUMENTS = {
    "input": uint8(4, 64, dtype=torch.bfloat16),
    "token_selected_experts": uint8(4, 2, dtype=torch.int32),
    "token_final_scales": uint8(4, 2, dtype=torch.float32),
    "fc1_expert_weights": uint8(3, 64, 32),
    "fc2_expert_weights": uint8(3, 64, 16),
    "fc1_act_global_scale": scale(),
    "fc1_weight_block_scales": uint8(3, 128, 4),
    "fc1_alpha": vector(3),
    "fc2_act_global_scale": scale(),
    "fc2_weight_block_scales": uint8(3, 128, 4),
    "fc2_alpha": vector(3),
}
QUANTIZED = {"input": uint8(4, 32), "input_sf": uint8(128, 4)}
"""Replaces an input by a quantized one."""
BIASES = {"fc1_expert_biases": bias(3, 64), "fc2_expert_biases": bias(3, 64)}
PARAMETERS = {f"swiglu_{name}": vector(3) for name in ("alpha", "beta", "limit")}
# FlashInfer's callers view packed values eight bytes at a time and scales four.
VIEWED = {
    "fc1_expert_weights": viewed(torch.int64, 3, 64, 32),
    "fc2_expert_weights": viewed(torch.int64, 3, 64, 16),
    "fc1_weight_block_scales": viewed(torch.int32, 3, 128, 4),
    "fc2_weight_block_scales": viewed(torch.int32, 3, 128, 4),
}

mix = partial(call, **_ARGUMENTS, output_dtype=torch.bfloat16)
"""Builds a valid call of cutlass_fused_moe with arguments replaced."""
plain = partial(mix, fc1_expert_weights=uint8(3, 32, 32), activation_type=6)
"""Builds one with the square of ReLU in place of a gated activation."""
quantized, biased = partial(mix, **QUANTIZED), partial(mix, **BIASES)
mix_into = partial(call, **_ARGUMENTS, out=uint8(4, 64, dtype=torch.bfloat16))
"""Builds a valid call of cutlass_fused_moe.out with arguments replaced."""

ACCEPTED = (
    (MOE, mix()),
    (MOE, mix(token_final_scales=None, enable_pdl=True, use_fused_finalize=False)),
    (MOE, mix(input=uint8(4, 64, dtype=HALF), output_dtype=HALF, enable_alltoall=True)),
    (MOE, plain()),
    (MOE, biased(tp_size=2, tp_rank=1, ep_size=3, ep_rank=2)),
    (MOE, mix(**PARAMETERS)),
    (MOE, mix(activation_type=7, swiglu_limit=vector(3))),
    (MOE, quantized(output_dtype=HALF)),
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


REFUSED = refused(
    MOE,
    (
        "output dtype",
        mix(output_dtype=torch.float32),
        ("'output_dtype': got .*float32", "bfloat16 or .*float16"),
    ),
    (
        "Situ",
        mix(activation_type=10),
        (
            r"'activation_type': got 10 \(Situ\)",
            r"one of 0 \(Gelu\), 1 \(Relu\), .*, 9 \(Identity\)",
            r"flashinfer\.cutlass_fused_moe",
        ),
    ),
    ("ClampedRelu2", mix(activation_type=12), (r"got 12 \(ClampedRelu2\)",)),
    ("unknown activation", mix(activation_type=13), ("'activation_type': got 13, expected",)),
    ("negative activation", mix(activation_type=-1), ("'activation_type': got -1, expected",)),
    *(
        row
        for kind in ("tp", "ep")
        for row in (
            (
                f"{kind} size",
                mix(**{f"{kind}_size": 0}),
                (f"'{kind}_size': got 0, expected 1 or more", "number of ranks"),
            ),
            (
                f"{kind} rank",
                mix(**{f"{kind}_size": 2, f"{kind}_rank": 2}),
                (f"'{kind}_rank': got 2, expected 0 to 1, below {kind}_size",),
            ),
            (
                f"negative {kind} rank",
                mix(**{f"{kind}_rank": -1}),
                (f"'{kind}_rank': got -1, expected 0 to 0",),
            ),
        )
    ),
    *(
        (
            f"negative {name}",
            mix(**{name: -2}),
            (f"'{name}': got -2, expected the number of a tactic", "pass -1"),
        )
        for name in ("gemm1_tactic", "gemm2_tactic")
    ),
    (
        "dtype of input",
        mix(input=uint8(4, 64, dtype=torch.float32)),
        (
            "'input': got dtype .*float32",
            "bfloat16 or .*float16 or .*uint8 or .*float4_e2m1fn_x2 or .*int64",
        ),
    ),
    (
        "rank of input",
        mix(input=uint8(1, 4, 64, dtype=torch.bfloat16)),
        (r"'input': got shape \[1, 4, 64\]", "2 dimensions"),
    ),
    (
        "input of another dtype than the output",
        mix(output_dtype=HALF),
        ("'input': got dtype .*bfloat16", "float16, the dtype of the output"),
    ),
    (
        "hidden size",
        mix(input=uint8(4, 48, dtype=torch.bfloat16)),
        (
            r"'input': got shape \[4, 48\] \(48 values a row\)",
            "positive multiple of 32 values a row",
        ),
    ),
    ("hidden size of 0", mix(input=uint8(4, 0)), (r"\[4, 0\] \(0 values a row\)", "multiple")),
    (
        "packed hidden size",
        mix(input=viewed(torch.int64, 4, 24)),
        (r"'input': got shape \[4, 3\] \(48 values a row\)",),
    ),
    *(
        row
        for name, rows, columns in (("fc1_expert_weights", 64, 32), ("fc2_expert_weights", 64, 16))
        for row in (
            (
                f"dtype of {name}",
                mix(**{name: uint8(3, rows, columns, dtype=torch.int8)}),
                (f"'{name}': got dtype .*int8", "uint8 or .*float4_e2m1fn_x2 or .*int64"),
            ),
            (
                f"rank of {name}",
                mix(**{name: uint8(rows, columns)}),
                (f"'{name}': got", "3 dimensions"),
            ),
            (
                f"strides of {name}",
                mix(**{name: column_major(3, rows, columns)}),
                (
                    f"'{name}': got shape",
                    rf"strides \[{rows * columns}, 1, {rows}\]",
                    "a contiguous tensor; make it contiguous once",
                ),
            ),
        )
    ),
    ("no experts", mix(fc1_expert_weights=uint8(0, 64, 32)), (r"\(0 experts\)", "or more")),
    (
        "fc1 weights of another hidden size",
        mix(fc1_expert_weights=uint8(3, 64, 48)),
        (
            r"'fc1_expert_weights': got shape \[3, 64, 48\] \(96 values a row\)",
            r"64 values a row, for input of shape \[4, 64\]",
        ),
    ),
    (
        "intermediate size",
        mix(fc1_expert_weights=uint8(3, 96, 32)),
        (
            r"'fc1_expert_weights': got shape \[3, 96, 32\] \(96 rows an expert\)",
            "positive multiple of 64 rows an expert",
        ),
    ),
    (
        "intermediate size of a plain activation",
        plain(fc1_expert_weights=uint8(3, 48, 32)),
        (r"\(48 rows an expert\)", "positive multiple of 32 rows an expert"),
    ),
    ("intermediate size of 0", mix(fc1_expert_weights=uint8(3, 0, 32)), (r"\(0 rows", "64")),
    (
        "another number of experts",
        mix(fc2_expert_weights=uint8(2, 64, 16)),
        (
            r"'fc2_expert_weights': got shape \[2, 64, 16\]",
            r"\[3, 64, 16\], for fc1_expert_weights with 64 up and gate rows an expert",
        ),
    ),
    (
        "fc2 weights of another hidden size",
        mix(fc2_expert_weights=uint8(3, 96, 16)),
        (r"\[3, 96, 16\]", r"expected \[3, 64, 16\]"),
    ),
    (
        "weights of a plain activation for a gated one",
        mix(fc2_expert_weights=uint8(3, 64, 32)),
        (
            r"\[3, 64, 32\]",
            r"expected \[3, 64, 16\]",
            r"\[experts, hidden size, intermediate size / 2\]",
        ),
    ),
    (
        "weights of a gated activation for a plain one",
        mix(activation_type=2),
        (
            r"'fc2_expert_weights': got shape \[3, 64, 16\]",
            r"\[3, 64, 32\], for fc1_expert_weights with 64 rows an expert",
        ),
    ),
    (
        "viewed weights of another intermediate size",
        mix(fc2_expert_weights=viewed(torch.int64, 3, 64, 32)),
        (r"\[3, 64, 4\], expected \[3, 64, 2\]",),
    ),
    (
        "dtype of selected experts",
        mix(token_selected_experts=uint8(4, 2, dtype=torch.int64)),
        ("'token_selected_experts': got dtype .*int64", "int32"),
    ),
    (
        "rank of selected experts",
        mix(token_selected_experts=vector(4, dtype=torch.int32)),
        ("'token_selected_experts'", "2 dimensions"),
    ),
    (
        "selected experts of another number of tokens",
        mix(token_selected_experts=uint8(5, 2, dtype=torch.int32)),
        (
            r"'token_selected_experts': got shape \[5, 2\]",
            "4 rows, as input has, of one expert or more",
        ),
    ),
    (
        "no selected expert",
        mix(token_selected_experts=uint8(4, 0, dtype=torch.int32), token_final_scales=None),
        (r"'token_selected_experts': got shape \[4, 0\]", "one expert or more"),
    ),
    (
        "dtype of final scales",
        mix(token_final_scales=bias(4, 2)),
        ("'token_final_scales': got dtype .*bfloat16", "float32"),
    ),
    (
        "shape of final scales",
        mix(token_final_scales=uint8(4, 3, dtype=torch.float32)),
        (
            r"'token_final_scales': got shape \[4, 3\]",
            r"\[4, 2\], the shape of token_selected_experts",
        ),
    ),
    (
        "too many tokens times experts",
        mix(
            input=uint8(1, 64, dtype=torch.bfloat16, stretch=2**29),
            token_selected_experts=uint8(1, 2, dtype=torch.int32, stretch=2**29),
            token_final_scales=None,
            ep_size=2,
        ),
        ("'input': got a number of tokens times experts of all ranks of 3221225472", r"2\*\*31"),
    ),
    (
        "too many selections",
        mix(
            input=uint8(1, 64, dtype=torch.bfloat16, stretch=2**29),
            token_selected_experts=uint8(1, 4, dtype=torch.int32, stretch=2**29),
            token_final_scales=None,
        ),
        ("'token_selected_experts': got a number of tokens times selected experts of 2147483648",),
    ),
    (
        "too many selected experts times experts",
        mix(
            ep_size=2**29,
            input=uint8(1, 64, dtype=torch.bfloat16),
            token_selected_experts=uint8(1, 2, dtype=torch.int32),
            token_final_scales=None,
        ),
        (
            "'token_selected_experts': got a number of selected experts times experts of all ranks "
            "of 3221225472"
        ),
    ),
    (
        "scales of an unquantized input",
        mix(input_sf=uint8(128, 4)),
        ("'input_sf': got a tensor with an input of .*bfloat16, expected None",),
    ),
    ("no scales of the input", quantized(input_sf=None), ("'input_sf': got None",)),
    (
        "dtype of the scales of the input",
        quantized(input_sf=viewed(torch.int32, 128, 4)),
        ("'input_sf': got dtype .*int32", "uint8 or .*float8_e4m3fn"),
    ),
    (
        "scales of the input elsewhere",
        quantized(input_sf=elsewhere(uint8(128, 4))),
        ("'input_sf': got device (cpu|meta)",),
    ),
    (
        "strides of the scales of the input",
        quantized(input_sf=column_major(128, 4)),
        ("'input_sf': got shape", r"strides \[1, 128\]", "contiguous"),
    ),
    (
        "linear scales of the input",
        quantized(input_sf=uint8(4, 4)),
        (
            "'input_sf': got 16 scales, as many as layout_linear has",
            r"512 \(layout_128x4 for 4 rows of 64 values\)",
            "swizzled_input_sf",
        ),
    ),
    (
        "swizzled scales of the input",
        quantized(swizzled_input_sf=False),
        (
            "'input_sf': got 512 scales, as many as layout_128x4 has",
            r"16 \(layout_linear for 4 rows of 64 values\)",
        ),
    ),
    (
        "linear scales of rows that are no groups of four blocks",
        mix(
            input=uint8(4, 48),
            input_sf=uint8(4, 6),
            swizzled_input_sf=False,
            fc1_expert_weights=uint8(3, 64, 48),
            fc2_expert_weights=uint8(3, 96, 16),
        ),
        (
            "'swizzled_input_sf': got False with 96 values a row",
            "True, or a multiple of 64 values a row",
            "128x4",
        ),
    ),
    (
        "scales of another input",
        quantized(input_sf=uint8(256, 4)),
        ("'input_sf': got 1024 scales, expected 512",),
    ),
    *(
        row
        for name in ("fc1_act_global_scale", "fc2_act_global_scale")
        for row in (
            (
                f"dtype of {name}",
                mix(**{name: vector(1, dtype=HALF)}),
                (f"'{name}': got dtype", "float32"),
            ),
            (
                f"shape of {name}",
                mix(**{name: vector(2)}),
                (
                    rf"'{name}': got shape \[2\]",
                    r"\[\] or \[1\] or \[3\]",
                    "the experts of this rank",
                ),
            ),
            (
                f"rank of {name}",
                mix(**{name: uint8(1, 1, dtype=torch.float32)}),
                (name, r"\[1, 1\]"),
            ),
        )
    ),
    *(
        row
        for name in ("fc1_weight_block_scales", "fc2_weight_block_scales")
        for row in (
            (
                f"dtype of {name}",
                mix(**{name: uint8(3, 128, 4, dtype=torch.int8)}),
                (f"'{name}': got dtype .*int8", "uint8 or .*float8_e4m3fn or .*int32"),
            ),
            (
                f"flat {name}",
                mix(**{name: uint8(3, 512)}),
                (
                    rf"'{name}': got shape \[3, 512\]",
                    r"\[3, 128, 4\] \(layout_128x4 for each of 3 experts with 64 rows of "
                    r"\d+ values\)",
                    "block_scale_interleave",
                ),
            ),
            (
                f"unpadded {name}",
                mix(**{name: uint8(3, 64, 4)}),
                (rf"'{name}': got shape \[3, 64, 4\]",),
            ),
            (
                f"{name} viewed twice",
                mix(**{name: viewed(torch.int32, 3, 128, 16)}),
                (rf"'{name}': got shape \[3, 128, 4\], expected \[3, 128, 1\]",),
            ),
            (
                f"strides of {name}",
                mix(**{name: column_major(3, 128, 4)}),
                (f"'{name}': got shape", r"strides \[512, 1, 128\]", "contiguous"),
            ),
        )
    ),
    *(
        row
        for name in ("fc1_alpha", "fc2_alpha", *PARAMETERS)
        for row in (
            (
                f"dtype of {name}",
                mix(**{name: vector(3, dtype=HALF)}),
                (f"'{name}': got dtype .*float16", "float32"),
            ),
            (
                f"one {name} for all",
                mix(**{name: scale()}),
                (rf"'{name}': got shape \[1\]", r"\[3\]"),
            ),
            (
                f"{name} as a column",
                mix(**{name: uint8(3, 1, dtype=torch.float32)}),
                (name, r"\[3, 1\]"),
            ),
        )
    ),
    (
        "bias of the first product alone",
        biased(fc2_expert_biases=None),
        ("'fc2_expert_biases': got None", "as fc1_expert_biases is one", "both biases or neither"),
    ),
    (
        "bias of the second product alone",
        biased(fc1_expert_biases=None),
        ("'fc1_expert_biases': got None", "as fc2_expert_biases is one"),
    ),
    *(
        row
        for name in BIASES
        for row in (
            (
                f"dtype of {name}",
                biased(**{name: bias(3, 64, dtype=torch.float32)}),
                (f"'{name}': got dtype .*float32", "bfloat16"),
            ),
            (
                f"shape of {name}",
                biased(**{name: bias(3, 32)}),
                (rf"'{name}': got shape \[3, 32\]", r"\[3, 64\]"),
            ),
        )
    ),
    (
        "alpha of another activation",
        mix(activation_type=4, swiglu_alpha=vector(3)),
        (
            r"'swiglu_alpha': got a tensor with activation_type=4 \(Geglu\), expected None",
            "only with Swiglu or SwigluBias$",
        ),
    ),
    (
        "beta of another activation",
        mix(activation_type=7, swiglu_beta=vector(3)),
        (r"'swiglu_beta': got a tensor with activation_type=7 \(SwigluStep\)",),
    ),
    (
        "limit of another activation",
        plain(fc2_expert_weights=uint8(3, 64, 16), swiglu_limit=vector(3)),
        (
            r"'swiglu_limit': got a tensor with activation_type=6 \(Relu2\)",
            "only with Swiglu or SwigluBias or SwigluStep$",
        ),
    ),
    *(
        (
            f"{name} elsewhere",
            (biased if name in BIASES else mix)(**{name: elsewhere(make)}),
            (f"'{name}': got device (cpu|meta)", "the device of 'input'"),
        )
        for name, make in {**_ARGUMENTS, **BIASES, **PARAMETERS}.items()
        if name != "input"
    ),
)

REFUSED += refused(
    OUT,
    (
        "out of the wrong dtype",
        mix_into(out=uint8(4, 64, dtype=torch.float32)),
        ("'out': got dtype .*float32", "bfloat16 or .*float16"),
    ),
    (
        "out of another dtype than the input",
        mix_into(out=uint8(4, 64, dtype=HALF)),
        ("'input': got dtype .*bfloat16", "float16, the dtype of the output"),
    ),
    (
        "dtype of the workspace",
        mix_into(workspace_buffer=bias(1024)),
        ("'workspace_buffer': got dtype .*bfloat16", "uint8 or .*int8"),
    ),
    (
        "rank of the workspace",
        mix_into(workspace_buffer=uint8(1024, 1)),
        ("'workspace_buffer': got shape", "1 dimensions"),
    ),
    (
        "workspace elsewhere",
        mix_into(workspace_buffer=elsewhere(uint8(1024))),
        ("'workspace_buffer': got device (cpu|meta)", "the device of 'input'"),
    ),
    (
        "strides of the workspace",
        mix_into(workspace_buffer=every_other(1024)),
        (
            r"'workspace_buffer': got strides \[2\]",
            "a contiguous tensor; pass it as it was allocated",
        ),
    ),
    ("experts for out", mix_into(fc2_alpha=vector(2)), (r"'fc2_alpha': got shape \[2\]",)),
    *wrong_results(mix_into, 4, 64, "input"),
)
