"""Argument validation, shared by the CPU kernels and the fakes.

The C++ kernels make the same checks in the same words (`csrc/checks.cpp` and the operators), so a
wrong call reads alike on the CPU, on a GPU and while tracing:

    fp4aot::<operator>: argument '<name>': got <what>, expected <what>; <what to do>

An error is a RuntimeError, the only kind that the C++ kernels can raise. Nothing here reads a
tensor's data. Sizes may be symbolic: a check that would only bound a size (the kernels' 32-bit
indices) is left to run time then, because a bound would become a condition on the exported program.
"""

from fp4aot._checks.batched import (
    EXPERT_SCALES_ORDER,
    EXPERT_VALUES_ORDER,
    batched_shapes,
    expert_shapes,
    nvfp4_batched_quantize,
    nvfp4_batched_quantize_out,
    quantize_experts,
    quantize_experts_out,
)
from fp4aot._checks.common import check_scalar_scale, fail
from fp4aot._checks.dequantize import (
    dequantized_out,
    e2m1_and_ufp8sf_scale_to_float,
    mxfp4_dequantize,
    mxfp4_dequantize_host,
    mxfp4_dequantize_host_out,
)
from fp4aot._checks.gemm import (
    fp4_linear,
    mm_fp4,
    mm_fp4_out,
)
from fp4aot._checks.group_gemm import (
    group_gemm_mxfp8_mxfp4_nt_groupwise,
    group_gemm_mxfp8_mxfp4_nt_groupwise_out,
    group_gemm_nvfp4_nt_groupwise,
    group_gemm_nvfp4_nt_groupwise_out,
)
from fp4aot._checks.interleave import (
    block_scale_interleave,
    block_scale_interleave_out,
    block_scale_interleave_reverse,
    block_scale_interleave_reverse_out,
    interleaved_numel,
)
from fp4aot._checks.kv_cache import (
    kv_quantized_shapes,
    nvfp4_kv_dequantize,
    nvfp4_kv_dequantize_out,
    nvfp4_kv_dequantize_paged,
    nvfp4_kv_dequantize_paged_out,
    nvfp4_kv_quantize,
    nvfp4_kv_quantize_out,
    paged_output_shapes,
)
from fp4aot._checks.moe import (
    cutlass_fused_moe,
    cutlass_fused_moe_out,
)
from fp4aot._checks.moe_arguments import PACKED as PACKED_DTYPES
from fp4aot._checks.moe_arguments import MoeArguments, functional_arguments
from fp4aot._checks.per_token import (
    nvfp4_quantize_per_token,
    nvfp4_quantize_per_token_out,
    per_token_shapes,
)
from fp4aot._checks.quantize import (
    fp4_quantize,
    fp4_quantize_out,
)

__all__ = [
    "EXPERT_SCALES_ORDER",
    "EXPERT_VALUES_ORDER",
    "PACKED_DTYPES",
    "MoeArguments",
    "batched_shapes",
    "block_scale_interleave",
    "block_scale_interleave_out",
    "block_scale_interleave_reverse",
    "block_scale_interleave_reverse_out",
    "check_scalar_scale",
    "cutlass_fused_moe",
    "cutlass_fused_moe_out",
    "dequantized_out",
    "e2m1_and_ufp8sf_scale_to_float",
    "expert_shapes",
    "fail",
    "fp4_linear",
    "fp4_quantize",
    "fp4_quantize_out",
    "functional_arguments",
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    "group_gemm_mxfp8_mxfp4_nt_groupwise_out",
    "group_gemm_nvfp4_nt_groupwise",
    "group_gemm_nvfp4_nt_groupwise_out",
    "interleaved_numel",
    "kv_quantized_shapes",
    "mm_fp4",
    "mm_fp4_out",
    "mxfp4_dequantize",
    "mxfp4_dequantize_host",
    "mxfp4_dequantize_host_out",
    "nvfp4_batched_quantize",
    "nvfp4_batched_quantize_out",
    "nvfp4_kv_dequantize",
    "nvfp4_kv_dequantize_out",
    "nvfp4_kv_dequantize_paged",
    "nvfp4_kv_dequantize_paged_out",
    "nvfp4_kv_quantize",
    "nvfp4_kv_quantize_out",
    "nvfp4_quantize_per_token",
    "nvfp4_quantize_per_token_out",
    "paged_output_shapes",
    "per_token_shapes",
    "quantize_experts",
    "quantize_experts_out",
]
