// The NVFP4 runners of FlashInfer's CUTLASS mixture of experts, in place of
// cutlass_fused_moe_instantiation.cu, which instantiates a runner for every dtype.
//
// e2m1 weights and products; activations are e2m1, or bfloat16 or float16 that the runner
// quantizes.
#include "fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"
#include "moe_kernels.h"

namespace tensorrt_llm::kernels::cutlass_kernels {

// <activations of the products, weights, output, input>
template class CutlassMoeFCRunner<Fp4Type, Fp4Type, half>;
template class CutlassMoeFCRunner<Fp4Type, Fp4Type, half, half>;
template class CutlassMoeFCRunner<Fp4Type, Fp4Type, __nv_bfloat16>;
template class CutlassMoeFCRunner<Fp4Type, Fp4Type, __nv_bfloat16, __nv_bfloat16>;

}  // namespace tensorrt_llm::kernels::cutlass_kernels
