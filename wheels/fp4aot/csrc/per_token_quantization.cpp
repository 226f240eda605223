// NVFP4 quantization with a scale of its own for each row.
#include "per_token_quantization.h"

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "kernel_table.h"
#include "recipe.h"
#include "tvm_ffi_call.h"

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

KernelFunction kernel{kOperator, "nvfp4_quant_and_per_token_scale"};

struct Results {
  Layout values;
  Layout scales;
  Layout rows;
  bool scales_are_padded;
};

Dims scale_sizes(int64_t rows, int64_t columns, int64_t sf_layout) {
  if (sf_layout == kLinear) return {rows, columns};
  return {round_up(rows, sf_layout == kSwizzled8x4 ? 8 : 128), round_up(columns, 4)};
}

Results describe(const Tensor& input, const std::optional<Tensor>& rows_to_quantize,
                 int64_t sf_layout, int64_t recipe) {
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
  return {contiguous({rows, input.size(1) / 2}), contiguous(scales), contiguous({rows}), padded};
}

void launch(const Tensor& input, double scale_inv, const std::optional<Tensor>& rows_to_quantize,
            int64_t sf_layout, int64_t recipe, const Tensor& values, const Tensor& block_scales,
            const Tensor& per_token_scale) {
  const int device = input.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (input.numel() == 0) {
    // Rows without values have the scale 0, which no kernel is there to write. Under an index, rows
    // that it leaves out keep theirs.
    if (input.size(0) > 0 && !rows_to_quantize.has_value()) fill_with_zeros(per_token_scale);
    return;
  }
  LaunchScope scope(kOperator, device);
  const Readable readable = dense(input, kInputAlignment);
  std::optional<Readable> rows;
  DLTensor rows_view{};
  if (rows_to_quantize.has_value()) {
    rows.emplace(dense(*rows_to_quantize));
    rows_view = dl_tensor(**rows);
  }
  call_flashinfer(function, kOperator, dl_tensor(*readable), scale_inv, dl_tensor(values),
                  dl_tensor(block_scales), dl_tensor(per_token_scale),
                  OptionalTensor{rows.has_value() ? &rows_view : nullptr}, sf_layout, recipe);
  scope.check_launch();
}

}  // namespace

std::tuple<NewTensor, NewTensor, NewTensor> nvfp4_quantize_per_token(
    const Tensor& input, double scale_inv,
    const std::optional<Tensor>& expanded_idx_to_permuted_idx, int64_t sf_layout,
    int64_t nvfp4_4over6) {
  const Results results = describe(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6);
  kernel.for_device(input.get_device_index());
  // The kernel writes the rows that the index names and no padding: everything else is zero here.
  const bool some_rows = expanded_idx_to_permuted_idx.has_value();
  const auto allocate = [&](const Layout& layout, ScalarType dtype, bool zero) {
    return zero ? zeros(layout, dtype, input) : empty(layout, dtype, input);
  };
  Tensor values = allocate(results.values, ScalarType::Byte, some_rows);
  Tensor block_scales =
      allocate(results.scales, ScalarType::Byte, some_rows || results.scales_are_padded);
  Tensor per_token_scale = allocate(results.rows, ScalarType::Float, some_rows);
  launch(input, scale_inv, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6, values,
         block_scales, per_token_scale);
  return {values.release(), block_scales.release(), per_token_scale.release()};
}

void nvfp4_quantize_per_token_out(const Tensor& input, double scale_inv,
                                  const std::optional<Tensor>& expanded_idx_to_permuted_idx,
                                  int64_t sf_layout, int64_t nvfp4_4over6, const Tensor& values,
                                  const Tensor& block_scales, const Tensor& per_token_scale) {
  const Results results = describe(input, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6);
  check_output(kOperator, "values", values, results.values, ScalarType::Byte, "input", input);
  check_output(kOperator, "block_scales", block_scales, results.scales, ScalarType::Byte, "input",
               input);
  check_output(kOperator, "per_token_scale", per_token_scale, results.rows, ScalarType::Float,
               "input", input);
  // Rows that an index leaves out keep what the buffers hold, so then the padding does too.
  if (results.scales_are_padded && !expanded_idx_to_permuted_idx.has_value()) {
    kernel.for_device(input.get_device_index());
    fill_with_zeros(block_scales);
  }
  launch(input, scale_inv, expanded_idx_to_permuted_idx, sf_layout, nvfp4_4over6, values,
         block_scales, per_token_scale);
}

}  // namespace fp4aot
