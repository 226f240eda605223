"""FlashInfer's FP4 kernels for NVIDIA Blackwell, compiled ahead of time, as PyTorch operators.

Importing this package registers ``torch.ops.fp4aot.*`` with one library load. From then on a call
is a launch: no compiler, no subprocess, no file, no import; `torch.compile(fullgraph=True)`,
`torch.export` and CUDA graph capture work from the first call.

``python -m fp4aot doctor`` says what this wheel holds and whether it fits this machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fp4aot import _library, _manifest
from fp4aot._tactics import at_import

_MANIFEST = _library.load()

from fp4aot._recipes import (  # noqa: E402
    NVFP44Over6Config,
    NVFP44Over6ErrMode,
    nvfp4_4over6_code,
    nvfp4_4over6_from_code,
    nvfp4_e4m3_max,
)
from fp4aot.batched_quantization import (  # noqa: E402
    nvfp4_batched_quantize,
    scaled_fp4_grouped_quantize,
    silu_and_mul_scaled_nvfp4_experts_quantize,
)
from fp4aot.fused_moe import (  # noqa: E402
    ActivationType,
    cutlass_fused_moe,
    cutlass_fused_moe_workspace_size,
)
from fp4aot.gemm import fp4_linear, mm_fp4  # noqa: E402
from fp4aot.group_gemm import (  # noqa: E402
    group_gemm_mxfp4_nt_groupwise,
    group_gemm_mxfp8_mxfp4_nt_groupwise,
    group_gemm_nvfp4_nt_groupwise,
)
from fp4aot.kv_cache import (  # noqa: E402
    nvfp4_kv_dequantize,
    nvfp4_kv_dequantize_paged,
    nvfp4_kv_quantize,
    nvfp4_quantize_append_paged_kv_cache,
)
from fp4aot.quantization import (  # noqa: E402
    SfLayout,
    block_scale_interleave,
    block_scale_interleave_reverse,
    e2m1_and_ufp8sf_scale_to_float,
    fp4_quantize,
    mxfp4_dequantize,
    mxfp4_dequantize_host,
    mxfp4_quantize,
    nvfp4_block_scale_interleave,
    nvfp4_quantize,
)
from fp4aot.shuffle import shuffle_matrix_a, shuffle_matrix_sf_a  # noqa: E402

if TYPE_CHECKING:
    from fp4aot import nn, tactics

__version__ = _MANIFEST.version

if at_import.is_asked_for(_manifest.PACKAGE):
    from fp4aot import tactics

    tactics._load_at_import(_MANIFEST)


def __getattr__(name: str) -> Any:
    # Each takes a fifth of what this import takes, and a server needs neither.
    if name in ("nn", "tactics"):
        return importlib.import_module(f"fp4aot.{name}")
    raise AttributeError(f"module 'fp4aot' has no attribute {name!r}")


__all__ = [
    "ActivationType",
    "NVFP44Over6Config",
    "NVFP44Over6ErrMode",
    "SfLayout",
    "__version__",
    "block_scale_interleave",
    "block_scale_interleave_reverse",
    "cutlass_fused_moe",
    "cutlass_fused_moe_workspace_size",
    "e2m1_and_ufp8sf_scale_to_float",
    "fp4_linear",
    "fp4_quantize",
    "group_gemm_mxfp4_nt_groupwise",
    "group_gemm_mxfp8_mxfp4_nt_groupwise",
    "group_gemm_nvfp4_nt_groupwise",
    "mm_fp4",
    "mxfp4_dequantize",
    "mxfp4_dequantize_host",
    "mxfp4_quantize",
    "nn",
    "nvfp4_4over6_code",
    "nvfp4_4over6_from_code",
    "nvfp4_batched_quantize",
    "nvfp4_block_scale_interleave",
    "nvfp4_e4m3_max",
    "nvfp4_kv_dequantize",
    "nvfp4_kv_dequantize_paged",
    "nvfp4_kv_quantize",
    "nvfp4_quantize",
    "nvfp4_quantize_append_paged_kv_cache",
    "scaled_fp4_grouped_quantize",
    "shuffle_matrix_a",
    "shuffle_matrix_sf_a",
    "silu_and_mul_scaled_nvfp4_experts_quantize",
    "tactics",
]
