// fp4_quantize: fp16, bf16 or fp8 values to packed e2m1 with block scales (NVFP4 and MXFP4).
#include <algorithm>
#include <utility>

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/bulk_copy_rows.h"
#include "operators/operator.h"
#include "operators/recipe.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "fp4_quantize";
// The kernels load sixteen 2-byte values at once.
constexpr std::uintptr_t kInputAlignment = 32;

KernelFunction<flashinfer::fp4_quantize> kernel{kOperator};

struct Format {
  int64_t sf_vec_size;
  bool sf_use_ue8m0;
  bool is_sf_swizzled_layout;
  bool is_sf_8x4_layout;
  bool is_global_scale_inversed;
  int64_t recipe;
};

void check_format(const Format& format) {
  const bool nvfp4 = format.sf_vec_size == 16 && !format.sf_use_ue8m0;
  const bool mxfp4 = format.sf_vec_size == 32 && format.sf_use_ue8m0;
  if (!nvfp4 && !mxfp4) {
    argument_error(
        kOperator, "sf_vec_size",
        text(format.sf_vec_size, " with sf_use_ue8m0=", format.sf_use_ue8m0 ? "True" : "False"),
        "16 with sf_use_ue8m0=False (NVFP4) or 32 with sf_use_ue8m0=True (MXFP4)",
        "choose one of the two formats");
  }
  if (format.is_sf_8x4_layout && !format.is_sf_swizzled_layout) {
    argument_error(kOperator, "is_sf_8x4_layout", "True with is_sf_swizzled_layout=False",
                   "False for the linear layout",
                   "pass is_sf_swizzled_layout=True for the 8x4 layout");
  }
}

void check_format_recipe(const Tensor& input, const Format& format) {
  check_recipe(kOperator, format.recipe, "input", input);
  if (format.recipe != kStandardRecipe && format.sf_use_ue8m0) {
    argument_error(kOperator, "nvfp4_4over6", text(format.recipe, " with sf_use_ue8m0=True"),
                   "0 (MXFP4 has no other recipe)", "pass the standard recipe");
  }
}

// The quantized matrix has rows M and columns K.
struct Problem : Description<2> {
  Kernel<flashinfer::fp4_quantize> quantize;
  const std::optional<Tensor>& global_scale;
  Format format;
  bool enable_pdl;
  bool is_transposed;  // of the input, and so of the results
  int64_t m;
  int64_t k;
  int64_t padded_rows;  // of the row-major scale buffer
  int64_t padded_columns;
};

Problem describe(const Tensor& input, const std::optional<Tensor>& global_scale,
                 int64_t sf_vec_size, bool sf_use_ue8m0, bool is_sf_swizzled_layout,
                 bool is_sf_8x4_layout, bool is_global_scale_inversed,
                 std::optional<bool> enable_pdl, int64_t nvfp4_4over6) {
  const Format format{
      sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout, is_sf_8x4_layout, is_global_scale_inversed,
      nvfp4_4over6};
  check_dtype(kOperator, "input", input,
              {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float8_e4m3fn});
  if (input.dim() < 2) {
    argument_error(kOperator, "input", text("shape ", shape_text(input)), "two or more dimensions",
                   "use input.unsqueeze(0) for a vector");
  }
  check_format(format);
  check_format_recipe(input, format);

  // A column-major input is quantized along its other dimension: FlashInfer transposes it, and the
  // results back.
  const bool is_transposed = !input.is_contiguous() && is_column_major(input);
  Dims sizes = input.sizes();
  if (is_transposed) std::swap(sizes[sizes.size() - 2], sizes.back());
  const int64_t k = sizes.back();
  int64_t m = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) m *= sizes[i];
  if (k % format.sf_vec_size != 0) {
    argument_error(
        kOperator, "input",
        text("shape ", shape_text(input), ", where ", k, " values are quantized along the ",
             is_transposed ? "contiguous second-to-last" : "last", " dimension"),
        text("a multiple of ", format.sf_vec_size), "pad that dimension");
  }
  check_int32(kOperator, "input", m, "a number of rows of");
  check_int32(kOperator, "input", k, "a number of columns of");

  if (global_scale.has_value()) {
    check_dtype(kOperator, "global_scale", *global_scale, {ScalarType::Float});
    const int64_t count = global_scale->numel();
    if (count != 1 && count != m) {
      argument_error(kOperator, "global_scale", text("shape ", shape_text(*global_scale)),
                     text("1 element, or one per row: ", m),
                     "pass a tensor of shape [1], or of shape [rows]");
    }
    check_same_device(kOperator, "global_scale", *global_scale, "input", input);
  } else if (!format.sf_use_ue8m0) {
    argument_error(kOperator, "global_scale", "None", "a float32 tensor (NVFP4 needs one)",
                   "pass 448 * 6 / input.abs().max() as a tensor of shape [1]");
  } else if (format.is_global_scale_inversed) {
    argument_error(kOperator, "is_global_scale_inversed", "True without a global_scale", "False",
                   "pass the global_scale that is inverted");
  }

  check_cuda(kOperator, "input", input);

  sizes.back() = k / 2;
  int64_t padded_rows = m;
  int64_t padded_columns = k / format.sf_vec_size;
  if (format.is_sf_swizzled_layout) {
    padded_rows = round_up(m, format.is_sf_8x4_layout ? 8 : 128);
    padded_columns = round_up(padded_columns, 4);
  }
  const auto output = [&](const char* name, const Dims& row_major) {
    const Layout layout = contiguous(row_major);
    return Output{name, is_transposed ? transposed(layout) : layout, ScalarType::Byte};
  };
  return {{kOperator,
           "input",
           input,
           {output("values", sizes), output("block_scales", {padded_rows, padded_columns})}},
          kernel.for_device(input.get_device_index()),
          global_scale,
          format,
          // Programmatic dependent launch is available on every device that these kernels run on.
          enable_pdl.value_or(true),
          is_transposed,
          m,
          k,
          padded_rows,
          padded_columns};
}

int64_t rows_of_part(const Problem& problem) {
  const bool by_bulk_copies = problem.format.sf_vec_size == 16 && problem.m >= kBulkCopyRows &&
                              problem.k % kBulkCopyColumns == 0;
  if (!by_bulk_copies) return problem.m;
  if (problem.input.scalar_type() == ScalarType::Float8_e4m3fn) return kFp8RowsOfPart;
  const bool within_the_buffer = problem.padded_rows % kBulkCopyTile == 0;
  return within_the_buffer ? problem.m : problem.m / kBulkCopyTile * kBulkCopyTile;
}

void launch(const Problem& problem, const Tensor& values, const Tensor& block_scales) {
  const Format& format = problem.format;
  // A transposed input is without gaps: its memory is that of the row-major matrix.
  const Readable input = problem.is_transposed ? aligned(problem.input, kInputAlignment)
                                               : dense(problem.input, kInputAlignment);
  const std::optional<Readable> scale = dense(problem.global_scale);
  const bool scale_per_row = scale.has_value() && (*scale)->numel() > 1;

  const int64_t part = rows_of_part(problem);
  for (int64_t first = 0; first < problem.m; first += part) {
    const int64_t rows = std::min(part, problem.m - first);
    std::optional<View> global;
    if (scale.has_value()) {
      const int64_t first_byte = scale_per_row ? first * static_cast<int64_t>(sizeof(float)) : 0;
      global.emplace(**scale, contiguous({scale_per_row ? rows : 1, 1}), kFloats, first_byte);
    }
    problem.quantize(rows_of(*input, first, rows, problem.k), global,
                     rows_of(values, first, rows, problem.k / 2),
                     rows_of(block_scales, first, rows, problem.padded_columns), format.sf_vec_size,
                     format.sf_use_ue8m0, format.is_sf_swizzled_layout, format.is_sf_8x4_layout,
                     format.is_global_scale_inversed, problem.enable_pdl, format.recipe);
  }
}

}  // namespace

FP4AOT_OPERATOR(fp4_quantize, describe, launch,
                "Tensor input, Tensor? global_scale=None, int sf_vec_size=16, "
                "bool sf_use_ue8m0=False, bool is_sf_swizzled_layout=True, "
                "bool is_sf_8x4_layout=False, bool is_global_scale_inversed=False, "
                "bool? enable_pdl=None, int nvfp4_4over6=0",
                "Tensor(a!) values, Tensor(b!) block_scales");

}  // namespace fp4aot
