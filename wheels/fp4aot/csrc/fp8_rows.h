// How many rows of fp8 values one call of FlashInfer's quantizer takes.
//
// FlashInfer 0.7.2 gives fp8 input of kFp8RowLimit rows, and of columns divisible by 512, to a
// kernel whose tensor map the driver refuses (it asks for a float fill value of an integer type;
// fixed in 0.7.4). Fewer rows take its other kernel: such an input is quantized in parts.
#pragma once

#include <cstdint>

namespace fp4aot {

constexpr int64_t kFp8RowLimit = 1024;
// Whole scale tiles of 128 rows.
constexpr int64_t kFp8RowsOfPart = 896;

}  // namespace fp4aot
