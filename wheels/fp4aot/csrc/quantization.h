// Kernels of fp4aot::fp4_quantize; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<NewTensor, NewTensor> fp4_quantize(const Tensor& input,
                                              const std::optional<Tensor>& global_scale,
                                              int64_t sf_vec_size, bool sf_use_ue8m0,
                                              bool is_sf_swizzled_layout, bool is_sf_8x4_layout,
                                              bool is_global_scale_inversed,
                                              std::optional<bool> enable_pdl, int64_t nvfp4_4over6);

void fp4_quantize_out(const Tensor& input, const std::optional<Tensor>& global_scale,
                      int64_t sf_vec_size, bool sf_use_ue8m0, bool is_sf_swizzled_layout,
                      bool is_sf_8x4_layout, bool is_global_scale_inversed,
                      std::optional<bool> enable_pdl, int64_t nvfp4_4over6, const Tensor& values,
                      const Tensor& block_scales);

}  // namespace fp4aot
