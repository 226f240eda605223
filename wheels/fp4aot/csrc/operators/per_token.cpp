// NVFP4 quantization with a scale of its own for each row.
#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "operators/recipe.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "nvfp4_quantize_per_token";
constexpr int64_t kBlock = 16;  // values that share one block scale
// The kernel loads sixteen 2-byte values at once.
constexpr std::uintptr_t kInputAlignment = 32;

// FlashInfer's SfLayout.
constexpr int64_t kSwizzled128x4 = 0;
constexpr int64_t kSwizzled8x4 = 1;
constexpr int64_t kLinear = 2;

KernelFunction<flashinfer::nvfp4_quant_and_per_token_scale> kernel{kOperator};

struct Problem : Description<3> {
  Kernel<flashinfer::nvfp4_quant_and_per_token_scale> quantize;
  double scale_inv;
  const std::optional<Tensor>& rows_to_quantize;
  int64_t sf_layout;
  int64_t recipe;
};

Dims scale_sizes(int64_t rows, int64_t columns, int64_t sf_layout) {
  if (sf_layout == kLinear) return {rows, columns};
  return {round_up(rows, sf_layout == kSwizzled8x4 ? 8 : 128), round_up(columns, 4)};
}

Problem describe(const Tensor& input, double scale_inv,
                 const std::optional<Tensor>& rows_to_quantize, int64_t sf_layout, int64_t recipe) {
  constexpr const char* kRows = "expanded_idx_to_permuted_idx";
  check_dtype(kOperator, "input", input, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(kOperator, "input", input, {2});
  if (sf_layout < kSwizzled128x4 || sf_layout > kLinear) {
    argument_error(kOperator, "sf_layout", text(sf_layout), "0 (128x4), 1 (8x4) or 2 (linear)",
                   "pass an SfLayout");
  }
  check_recipe(kOperator, recipe, "input", input);
  check_blocks(kOperator, "input", input);
  const int64_t rows = input.size(0);
  const int64_t blocks = input.size(1) / kBlock;
  check_int32(kOperator, "input", rows, "a number of rows of");
  check_int32(kOperator, "input", input.size(1), "a number of columns of");
  check_int32(kOperator, "input", rows * blocks, "a number of blocks of");
  if (rows_to_quantize.has_value()) {
    check_dtype(kOperator, kRows, *rows_to_quantize, {ScalarType::Int});
    check_rank(kOperator, kRows, *rows_to_quantize, {1});
    if (rows_to_quantize->size(0) < rows) {
      argument_error(kOperator, kRows, text("shape ", shape_text(*rows_to_quantize)),
                     text(rows, " elements or more, the rows of 'input'"),
                     "pass one row number, or a negative one, for each row");
    }
    check_same_device(kOperator, kRows, *rows_to_quantize, "input", input);
  }
  check_cuda(kOperator, "input", input);
  const Dims scales = scale_sizes(rows, blocks, sf_layout);
  const bool padded = scales[0] != rows || scales[1] != blocks;
  // The kernel writes the rows that an index names and no padding. Under an index, rows that it
  // leaves out keep what a caller's buffers hold, so then the padding does too.
  const bool some_rows = rows_to_quantize.has_value();
  const Clear clear = some_rows ? Clear::kNewBuffers : Clear::kNothing;
  const Clear clear_scales = !some_rows && padded ? Clear::kEveryBuffer : clear;
  return {{kOperator,
           "input",
           input,
           {Output{"values", contiguous({rows, input.size(1) / 2}), ScalarType::Byte, 8, clear},
            Output{"block_scales", contiguous(scales), ScalarType::Byte, 8, clear_scales},
            Output{"per_token_scale", contiguous({rows}), ScalarType::Float, 8, clear}}},
          kernel.for_device(input.get_device_index()),
          scale_inv,
          rows_to_quantize,
          sf_layout,
          recipe};
}

void launch(const Problem& problem, const Tensor& values, const Tensor& block_scales,
            const Tensor& per_token_scale) {
  if (problem.input.numel() == 0) {
    // Rows without values have the scale 0, which no kernel is there to write.
    if (!problem.rows_to_quantize.has_value()) fill_with_zeros(per_token_scale);
    return;
  }
  problem.quantize(dense(problem.input, kInputAlignment), problem.scale_inv, values, block_scales,
                   per_token_scale, dense(problem.rows_to_quantize), problem.sf_layout,
                   problem.recipe);
}

}  // namespace

FP4AOT_OPERATOR(nvfp4_quantize_per_token, describe, launch,
                "Tensor input, float scale_inv, Tensor? expanded_idx_to_permuted_idx=None, "
                "int sf_layout=0, int nvfp4_4over6=0",
                "Tensor(a!) values, Tensor(b!) block_scales, Tensor(c!) per_token_scale");

}  // namespace fp4aot
