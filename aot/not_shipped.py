"""What FlashInfer has in FP4 and a wheel does not replace, and why.

Data, no logic. A test compares it with FlashInfer's public functions: a new one has to be shipped,
or to get a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_RUN_TIME_ONLY: Final = "kernels that FlashInfer compiles at run time only"
_SVDQUANT: Final = "the module nvfp4_svdquant; later"
_LORA: Final = "the LoRA kernels of FlashInfer 0.7.4; later"

NOT_SHIPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # flashinfer.quantization
        "make_nvfp4_global_scale": "plain PyTorch, and reads the largest value on the host",
        "nvfp4_quantize_paged_kv_cache": "returns Python floats, for which it waits for the "
        "device; made of fp4_quantize",
        "silu_and_mul_nvfp4_quantize": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "nvfp4_quantize_cute_dsl": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "nvfp4_quantize_per_token_cute_dsl": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "mxfp4_quantize_cute_dsl": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "get_fp4_quantization_module": "returns the JIT module that this package replaces",
        "resolve_nvfp4_4over6": "reads the recipe from environment variables; here it is an "
        "argument",
        # flashinfer.gemm
        "grouped_gemm_nt_masked": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "mm_bf16_fp4": "bfloat16 activations: another set of kernels; later",
        "prepare_bf16_fp4_weights": "the weights of mm_bf16_fp4",
        "mm_nvfp4_svdquant": _SVDQUANT,
        "nvfp4_quantize_smooth": _SVDQUANT,
        "fp4_linear_swiglu": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "fp4_qkv_qknorm_rope": f"{_RUN_TIME_ONLY} (CuTe DSL)",
        "mm_nvfp4_lora": _LORA,
        "prepare_nvfp4_lora_adapter": _LORA,
        "PreparedNvFp4LoraAdapter": _LORA,
    }
)
"""FlashInfer's public FP4 functions that a wheel does not replace, and why."""
