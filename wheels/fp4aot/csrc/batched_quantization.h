// Kernels of fp4aot::nvfp4_batched_quantize, scaled_fp4_grouped_quantize and
// silu_and_mul_scaled_nvfp4_experts_quantize; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<Tensor, Tensor> nvfp4_batched_quantize(Tensor a, Tensor a_global_sf, int64_t sf_vec_size,
                                                  int64_t nvfp4_4over6);
void nvfp4_batched_quantize_out(Tensor a, Tensor a_global_sf, int64_t sf_vec_size,
                                int64_t nvfp4_4over6, Tensor values, Tensor block_scales);

std::tuple<Tensor, Tensor> scaled_fp4_grouped_quantize(Tensor a, Tensor mask, Tensor a_global_sf,
                                                       int64_t nvfp4_4over6);
void scaled_fp4_grouped_quantize_out(Tensor a, Tensor mask, Tensor a_global_sf,
                                     int64_t nvfp4_4over6, Tensor values, Tensor block_scales);

std::tuple<Tensor, Tensor> silu_and_mul_scaled_nvfp4_experts_quantize(Tensor a, Tensor mask,
                                                                      Tensor a_global_sf,
                                                                      int64_t nvfp4_4over6);
void silu_and_mul_scaled_nvfp4_experts_quantize_out(Tensor a, Tensor mask, Tensor a_global_sf,
                                                    int64_t nvfp4_4over6, Tensor values,
                                                    Tensor block_scales);

}  // namespace fp4aot
