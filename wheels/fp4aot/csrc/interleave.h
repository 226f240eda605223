// Kernels of fp4aot::block_scale_interleave and its reverse; the schemas are in operators.cpp.
#pragma once

#include "tensor.h"

namespace fp4aot {

NewTensor block_scale_interleave(const Tensor& unswizzled_sf);
void block_scale_interleave_out(const Tensor& unswizzled_sf, const Tensor& out);
NewTensor block_scale_interleave_reverse(const Tensor& interleaved_sf);
void block_scale_interleave_reverse_out(const Tensor& interleaved_sf, const Tensor& out);

}  // namespace fp4aot
