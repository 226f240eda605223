// Which tactic `mm_fp4` runs.
#pragma once

#include "flashinfer/tactic_table.h"
#include "torch/tensor.h"

namespace fp4aot {

// How many tactics the GEMM for a device has; 0 where this library has no GEMM for it.
int64_t mm_fp4_tactic_count(int64_t major, int64_t minor);

// For tensors on cuda:`device`: the tactic of the largest bucket that is not above M, else of the
// smallest bucket, else the default.
int64_t find_tactic(const char* operator_name, int device, ScalarType out_dtype, int64_t m,
                    int64_t n, int64_t k);

}  // namespace fp4aot
