// Kernels of fp4aot::nvfp4_quantize_per_token; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<Tensor, Tensor, Tensor> nvfp4_quantize_per_token(
    Tensor input, double scale_inv, std::optional<Tensor> expanded_idx_to_permuted_idx,
    int64_t sf_layout, int64_t nvfp4_4over6);
void nvfp4_quantize_per_token_out(Tensor input, double scale_inv,
                                  std::optional<Tensor> expanded_idx_to_permuted_idx,
                                  int64_t sf_layout, int64_t nvfp4_4over6, Tensor values,
                                  Tensor block_scales, Tensor per_token_scale);

}  // namespace fp4aot
