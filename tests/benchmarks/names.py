"""Names of groups and contenders: what measures them and what compares them must agree."""

from __future__ import annotations

from typing import Final

QUANTIZE_SMALL: Final = "fp4_quantize [1, 256] bfloat16"
QUANTIZE_WIDE: Final = "fp4_quantize [4, 7168] bfloat16"
GEMM_SIZES: Final = ((1, 256), (16, 256), (1, 4096), (16, 4096))
STACK_LAYERS: Final = 16
MOE_TOKENS: Final = (1, 16)
MOE_SIZE: Final = 512
MOE_EXPERTS: Final = 8
MOE_TOP_K: Final = 2
LAYER: Final = ("weight", "weight_scale", "alpha", "input_global_scale")
STACK: Final = f"a model of {STACK_LAYERS} fp4_linear layers, m=1 n=k=256, time of one layer"
REPLAY_SMALL: Final = "graph replay: fp4_quantize [1, 256], GPU time a call"
REPLAY_LARGE: Final = "graph replay: fp4_quantize [4096, 7168], GPU time a call"
IMPORT: Final = "import after torch"
FIRST_CALL: Final = "first fp4_quantize after import"

ONE_KERNEL: Final = "torch.add(out=): a one-kernel torch operator"
TWO_EMPTY: Final = "two torch.empty"

OURS: Final = "fp4aot.{}"
OURS_OVERLOAD: Final = "torch.ops.fp4aot.{}.default"
OURS_OUT: Final = "torch.ops.fp4aot.{}.out"
OURS_BUFFERS: Final = "fp4aot.{}(output=, workspace_buffer=)"
OURS_COMPILED: Final = "torch.compile: 1 call"
OURS_COMPILED_CHAIN: Final = "torch.compile: 16 calls, time of one"
STACK_EAGER: Final = "fp4aot.fp4_linear, eager"
STACK_OUT: Final = "fp4aot's .out operators, eager, own buffers"
STACK_COMPILED: Final = "fp4aot.fp4_linear, torch.compile"
STACK_REDUCED: Final = "fp4aot.fp4_linear, reduce-overhead"
STACK_REPLAY: Final = "fp4aot.fp4_linear, CUDA graph replay"
STACK_THEIRS: Final = "FlashInfer's fp4_quantize + mm_fp4, eager"
OURS_REDUCED: Final = "reduce-overhead: 1 call"
OURS_REDUCED_CHAIN: Final = "reduce-overhead: 16 calls, time of one"
OURS_REPLAY: Final = "CUDA graph replay: 1 call"
OURS_REPLAY_CHAIN: Final = "CUDA graph replay: 16 calls, time of one"

THEIRS: Final = "flashinfer.{}"
THEIRS_LAYER: Final = "fp4_quantize + mm_fp4"
THEIRS_INNER: Final = "FlashInfer's inner function"
THEIRS_OP: Final = "torch.ops.flashinfer.{}"
THEIRS_LIBRARY: Final = "flashinfer.{} behind define + impl"
THEIRS_CUSTOM: Final = "flashinfer.{} behind custom_op"
THEIRS_OUT: Final = "flashinfer.{}(out=)"
THEIRS_BUFFERS: Final = "flashinfer.{}(output=, workspace_buffer=)"
THEIRS_AUTO: Final = "flashinfer.{}(backend='auto')"
THEIRS_COMPILED: Final = "torch.compile(flashinfer.{}, fullgraph=True)"

REPLAYED: Final = "replayed, fp4aot"
OWN_TIME: Final = "the kernels' own time, fp4aot"
REPLAYED_THEIRS: Final = "replayed, FlashInfer"
OWN_TIME_THEIRS: Final = "the kernels' own time, FlashInfer"


def gemm_group(m: int, size: int) -> str:
    """Name of the group of one matrix multiplication."""
    return f"mm_fp4 m={m} n=k={size}"


def linear_group(m: int, size: int) -> str:
    """Name of the group of one linear layer."""
    return f"fp4_linear m={m} n=k={size}"


def moe_group(tokens: int) -> str:
    """Name of the group of one mixture of experts."""
    return f"cutlass_fused_moe T={tokens} H=I={MOE_SIZE} E={MOE_EXPERTS} top_k={MOE_TOP_K}"
