"""FlashInfer's FP4 kernels for NVIDIA Blackwell, compiled ahead of time, as PyTorch operators.

Importing this package registers ``torch.ops.fp4aot.*`` with one library load. From then on a call
is a launch: no compiler, no subprocess, no file, no import; `torch.compile(fullgraph=True)`,
`torch.export` and CUDA graph capture work from the first call.

``python -m fp4aot doctor`` says what this wheel holds and whether it fits this machine.
"""

from __future__ import annotations

from fp4aot import _library

_MANIFEST = _library.load()

from fp4aot.kv_cache import (  # noqa: E402 (the operators must exist first)
    nvfp4_kv_dequantize,
    nvfp4_kv_dequantize_paged,
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

__version__ = _MANIFEST.version

__all__ = [
    "SfLayout",
    "__version__",
    "block_scale_interleave",
    "block_scale_interleave_reverse",
    "e2m1_and_ufp8sf_scale_to_float",
    "fp4_quantize",
    "mxfp4_dequantize",
    "mxfp4_dequantize_host",
    "mxfp4_quantize",
    "nvfp4_block_scale_interleave",
    "nvfp4_kv_dequantize",
    "nvfp4_kv_dequantize_paged",
    "nvfp4_quantize",
]
