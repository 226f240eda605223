// The host kernel of fp4aot::mxfp4_dequantize_host; the schema is in operators.cpp.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace fp4aot {

NewTensor mxfp4_dequantize_host(const Tensor& weight, const Tensor& scale, int64_t group_size);
void mxfp4_dequantize_host_out(const Tensor& weight, const Tensor& scale, int64_t group_size,
                               const Tensor& out);

}  // namespace fp4aot
