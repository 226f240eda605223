// When FlashInfer's quantizer takes its kernel with bulk copies, and what it gets wrong then
// (invokeFP4Quantization in quantization.cu, quantize_with_block_size_tma in quantization.cuh).
// Such an input is quantized in parts.
//
// - It works on tiles of kBulkCopyTile rows. Where the layout of the block scales pads to fewer
//   rows, it also writes zeros for the rows that complete the last tile: behind the end of the
//   buffer. The rows of that tile are left to the other kernel.
// - FlashInfer 0.7.2 asks for a tensor map of fp8 values that the driver refuses (with a float fill
//   value for an integer type; fixed in 0.7.4). The other kernel gets all of them.
#pragma once

#include <cstdint>

namespace fp4aot {

// It is taken for blocks of 16, from this many rows on, if the columns are a multiple of those.
constexpr int64_t kBulkCopyRows = 1024;
constexpr int64_t kBulkCopyColumns = 512;
constexpr int64_t kBulkCopyTile = 16;
// Fewer than kBulkCopyRows, and whole scale tiles of 128 rows.
constexpr int64_t kFp8RowsOfPart = 896;

}  // namespace fp4aot
