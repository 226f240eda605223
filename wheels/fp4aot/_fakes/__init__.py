"""Fake implementations: what each operator returns, without computing it.

torch runs these while it traces. Shapes, dtypes, strides and devices are those of the real kernels,
as a function of the arguments' shapes, dtypes and flags alone; the arguments are validated by the
kernels' own checks. Derived from the kernels: FlashInfer's fakes disagree with its operators.

Functions carry their operator's name; `<name>_out` is the overload that writes to buffers.
"""

from fp4aot._fakes.batched import (
    nvfp4_batched_quantize,
    nvfp4_batched_quantize_out,
    scaled_fp4_grouped_quantize,
    scaled_fp4_grouped_quantize_out,
    silu_and_mul_scaled_nvfp4_experts_quantize,
    silu_and_mul_scaled_nvfp4_experts_quantize_out,
)
from fp4aot._fakes.dequantize import (
    e2m1_and_ufp8sf_scale_to_float,
    e2m1_and_ufp8sf_scale_to_float_out,
    mxfp4_dequantize,
    mxfp4_dequantize_host,
    mxfp4_dequantize_host_out,
    mxfp4_dequantize_out,
)
from fp4aot._fakes.gemm import (
    mm_fp4,
    mm_fp4_out,
)
from fp4aot._fakes.group_gemm import (
    group_gemm_mxfp8_mxfp4_nt_groupwise,
    group_gemm_mxfp8_mxfp4_nt_groupwise_out,
    group_gemm_nvfp4_nt_groupwise,
    group_gemm_nvfp4_nt_groupwise_out,
)
from fp4aot._fakes.interleave import (
    block_scale_interleave,
    block_scale_interleave_out,
    block_scale_interleave_reverse,
    block_scale_interleave_reverse_out,
)
from fp4aot._fakes.kv_cache import (
    nvfp4_kv_dequantize,
    nvfp4_kv_dequantize_out,
    nvfp4_kv_dequantize_paged,
    nvfp4_kv_dequantize_paged_out,
    nvfp4_kv_quantize,
    nvfp4_kv_quantize_out,
)
from fp4aot._fakes.moe import (
    cutlass_fused_moe,
    cutlass_fused_moe_out,
)
from fp4aot._fakes.per_token import (
    nvfp4_quantize_per_token,
    nvfp4_quantize_per_token_out,
)
from fp4aot._fakes.quantize import (
    fp4_quantize,
    fp4_quantize_out,
)

__all__ = [
    "block_scale_interleave",
    "block_scale_interleave_out",
    "block_scale_interleave_reverse",
    "block_scale_interleave_reverse_out",
    "cutlass_fused_moe",
    "cutlass_fused_moe_out",
    "e2m1_and_ufp8sf_scale_to_float",
    "e2m1_and_ufp8sf_scale_to_float_out",
    "fp4_quantize",
    "fp4_quantize_out",
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    "group_gemm_mxfp8_mxfp4_nt_groupwise_out",
    "group_gemm_nvfp4_nt_groupwise",
    "group_gemm_nvfp4_nt_groupwise_out",
    "mm_fp4",
    "mm_fp4_out",
    "mxfp4_dequantize",
    "mxfp4_dequantize_host",
    "mxfp4_dequantize_host_out",
    "mxfp4_dequantize_out",
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
    "scaled_fp4_grouped_quantize",
    "scaled_fp4_grouped_quantize_out",
    "silu_and_mul_scaled_nvfp4_experts_quantize",
    "silu_and_mul_scaled_nvfp4_experts_quantize_out",
]
