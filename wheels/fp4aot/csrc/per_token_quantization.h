// Kernels of fp4aot::nvfp4_quantize_per_token; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<NewTensor, NewTensor, NewTensor> nvfp4_quantize_per_token(
    const Tensor& input, double scale_inv,
    const std::optional<Tensor>& expanded_idx_to_permuted_idx, int64_t sf_layout,
    int64_t nvfp4_4over6);
void nvfp4_quantize_per_token_out(const Tensor& input, double scale_inv,
                                  const std::optional<Tensor>& expanded_idx_to_permuted_idx,
                                  int64_t sf_layout, int64_t nvfp4_4over6, const Tensor& values,
                                  const Tensor& block_scales, const Tensor& per_token_scale);

}  // namespace fp4aot
