// Grouped GEMMs with block scales: group_gemm_nvfp4_nt_groupwise and
// group_gemm_mxfp8_mxfp4_nt_groupwise; the schemas are in operators.cpp.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor.h"

namespace fp4aot {

NewTensor group_gemm_nvfp4_nt_groupwise(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                                        const Tensor& b_scale, const Tensor& m_indptr,
                                        const std::optional<Tensor>& alpha, ScalarType out_dtype,
                                        int64_t tile_m, int64_t tile_n, int64_t tile_k,
                                        bool swap_ab);
void group_gemm_nvfp4_nt_groupwise_out(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                                       const Tensor& b_scale, const Tensor& m_indptr,
                                       const std::optional<Tensor>& alpha, int64_t tile_m,
                                       int64_t tile_n, int64_t tile_k, bool swap_ab,
                                       const Tensor& out);

NewTensor group_gemm_mxfp8_mxfp4_nt_groupwise(const Tensor& a, const Tensor& b,
                                              const Tensor& a_scale, const Tensor& b_scale,
                                              const Tensor& m_indptr, ScalarType out_dtype,
                                              int64_t mma_sm, int64_t tile_m, int64_t tile_n,
                                              int64_t tile_k, bool swap_ab);
void group_gemm_mxfp8_mxfp4_nt_groupwise_out(const Tensor& a, const Tensor& b,
                                             const Tensor& a_scale, const Tensor& b_scale,
                                             const Tensor& m_indptr, int64_t mma_sm, int64_t tile_m,
                                             int64_t tile_n, int64_t tile_k, bool swap_ab,
                                             const Tensor& out);

}  // namespace fp4aot
