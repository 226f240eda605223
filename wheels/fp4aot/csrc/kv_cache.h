// Kernels of fp4aot::nvfp4_kv_dequantize and nvfp4_kv_dequantize_paged; the schemas are in
// operators.cpp.
#pragma once

#include <cstdint>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

Tensor nvfp4_kv_dequantize(Tensor fp4_data, Tensor block_scales, Tensor global_scale,
                           ScalarType output_dtype);
void nvfp4_kv_dequantize_out(Tensor fp4_data, Tensor block_scales, Tensor global_scale, Tensor out);

std::tuple<Tensor, Tensor> nvfp4_kv_dequantize_paged(Tensor paged_k_cache, Tensor paged_v_cache,
                                                     Tensor k_block_scales, Tensor v_block_scales,
                                                     Tensor block_tables, Tensor seq_lens,
                                                     Tensor k_scale, Tensor v_scale,
                                                     int64_t max_seq_len, ScalarType output_dtype,
                                                     int64_t kv_layout);
void nvfp4_kv_dequantize_paged_out(Tensor paged_k_cache, Tensor paged_v_cache,
                                   Tensor k_block_scales, Tensor v_block_scales,
                                   Tensor block_tables, Tensor seq_lens, Tensor k_scale,
                                   Tensor v_scale, int64_t kv_layout, Tensor output_k,
                                   Tensor output_v);

}  // namespace fp4aot
