// Kernels of fp4aot::nvfp4_kv_quantize; the schemas are in operators.cpp.
#pragma once

#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<NewTensor, NewTensor> nvfp4_kv_quantize(const Tensor& input, const Tensor& global_scale);
void nvfp4_kv_quantize_out(const Tensor& input, const Tensor& global_scale,
                           const Tensor& fp4_output, const Tensor& block_scales);

}  // namespace fp4aot
