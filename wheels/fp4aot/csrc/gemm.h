// mm_fp4: FP4 matrix multiplication with block scales.
#pragma once

#include <optional>

#include "tensor.h"

namespace fp4aot {

NewTensor mm_fp4(const Tensor& a, const Tensor& b, const Tensor& a_descale, const Tensor& b_descale,
                 const std::optional<Tensor>& alpha, ScalarType out_dtype, int64_t tactic);
void mm_fp4_out(const Tensor& a, const Tensor& b, const Tensor& a_descale, const Tensor& b_descale,
                const std::optional<Tensor>& alpha, int64_t tactic, const Tensor& out);

}  // namespace fp4aot
