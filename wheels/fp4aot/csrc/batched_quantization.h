// Kernels of fp4aot::nvfp4_batched_quantize, scaled_fp4_grouped_quantize and
// silu_and_mul_scaled_nvfp4_experts_quantize; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<NewTensor, NewTensor> nvfp4_batched_quantize(const Tensor& a, const Tensor& a_global_sf,
                                                        int64_t sf_vec_size, int64_t nvfp4_4over6);
void nvfp4_batched_quantize_out(const Tensor& a, const Tensor& a_global_sf, int64_t sf_vec_size,
                                int64_t nvfp4_4over6, const Tensor& values,
                                const Tensor& block_scales);

std::tuple<NewTensor, NewTensor> scaled_fp4_grouped_quantize(const Tensor& a, const Tensor& mask,
                                                             const Tensor& a_global_sf,
                                                             int64_t nvfp4_4over6);
void scaled_fp4_grouped_quantize_out(const Tensor& a, const Tensor& mask, const Tensor& a_global_sf,
                                     int64_t nvfp4_4over6, const Tensor& values,
                                     const Tensor& block_scales);

std::tuple<NewTensor, NewTensor> silu_and_mul_scaled_nvfp4_experts_quantize(
    const Tensor& a, const Tensor& mask, const Tensor& a_global_sf, int64_t nvfp4_4over6);
void silu_and_mul_scaled_nvfp4_experts_quantize_out(const Tensor& a, const Tensor& mask,
                                                    const Tensor& a_global_sf, int64_t nvfp4_4over6,
                                                    const Tensor& values,
                                                    const Tensor& block_scales);

}  // namespace fp4aot
