// Kernels of fp4aot::nvfp4_kv_dequantize and nvfp4_kv_dequantize_paged; the schemas are in
// operators.cpp.
#pragma once

#include <cstdint>
#include <tuple>

#include "tensor.h"

namespace fp4aot {

NewTensor nvfp4_kv_dequantize(const Tensor& fp4_data, const Tensor& block_scales,
                              const Tensor& global_scale, ScalarType output_dtype);
void nvfp4_kv_dequantize_out(const Tensor& fp4_data, const Tensor& block_scales,
                             const Tensor& global_scale, const Tensor& out);

std::tuple<NewTensor, NewTensor> nvfp4_kv_dequantize_paged(
    const Tensor& paged_k_cache, const Tensor& paged_v_cache, const Tensor& k_block_scales,
    const Tensor& v_block_scales, const Tensor& block_tables, const Tensor& seq_lens,
    const Tensor& k_scale, const Tensor& v_scale, int64_t max_seq_len, ScalarType output_dtype,
    int64_t kv_layout);
void nvfp4_kv_dequantize_paged_out(const Tensor& paged_k_cache, const Tensor& paged_v_cache,
                                   const Tensor& k_block_scales, const Tensor& v_block_scales,
                                   const Tensor& block_tables, const Tensor& seq_lens,
                                   const Tensor& k_scale, const Tensor& v_scale, int64_t kv_layout,
                                   const Tensor& output_k, const Tensor& output_v);

}  // namespace fp4aot
