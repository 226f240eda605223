// Kernels of fp4aot::nvfp4_kv_quantize; the schemas are in operators.cpp.
#pragma once

#include <tuple>

#include "tensor.h"

namespace fp4aot {

std::tuple<Tensor, Tensor> nvfp4_kv_quantize(Tensor input, Tensor global_scale);
void nvfp4_kv_quantize_out(Tensor input, Tensor global_scale, Tensor fp4_output,
                           Tensor block_scales);

}  // namespace fp4aot
