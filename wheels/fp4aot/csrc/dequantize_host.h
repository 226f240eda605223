// The host kernel of fp4aot::mxfp4_dequantize_host; the schema is in operators.cpp.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace fp4aot {

Tensor mxfp4_dequantize_host(Tensor weight, Tensor scale, int64_t group_size);
void mxfp4_dequantize_host_out(Tensor weight, Tensor scale, int64_t group_size, Tensor out);

}  // namespace fp4aot
