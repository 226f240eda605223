// mm_fp4: FP4 matrix multiplication with block scales.
#pragma once

#include <optional>

#include "tensor.h"

namespace fp4aot {

Tensor mm_fp4(Tensor a, Tensor b, Tensor a_descale, Tensor b_descale, std::optional<Tensor> alpha,
              ScalarType out_dtype, int64_t tactic);
void mm_fp4_out(Tensor a, Tensor b, Tensor a_descale, Tensor b_descale, std::optional<Tensor> alpha,
                int64_t tactic, Tensor out);

}  // namespace fp4aot
