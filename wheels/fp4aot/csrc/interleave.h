// Kernels of fp4aot::block_scale_interleave and its reverse; the schemas are in operators.cpp.
#pragma once

#include "tensor.h"

namespace fp4aot {

Tensor block_scale_interleave(Tensor unswizzled_sf);
void block_scale_interleave_out(Tensor unswizzled_sf, Tensor out);
Tensor block_scale_interleave_reverse(Tensor interleaved_sf);
void block_scale_interleave_reverse_out(Tensor interleaved_sf, Tensor out);

}  // namespace fp4aot
