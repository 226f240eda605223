// fp4_quantize: fp16, bf16 or fp8 values to packed e2m1 with block scales (NVFP4 and MXFP4).
#include "quantization.h"

#include <algorithm>
#include <utility>

#include "bulk_copy_rows.h"
#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "kernel_table.h"
#include "recipe.h"
#include "row_view.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "fp4_quantize";
// The kernels load sixteen 2-byte values at once.
constexpr std::uintptr_t kInputAlignment = 32;

KernelFunction kernel{kOperator, "fp4_quantize"};

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

// Everything about the quantized matrix: rows M, columns K, and how the results are laid out.
struct Problem {
  bool is_transposed;  // of the input, and so of the results
  int64_t m;
  int64_t k;
  int64_t scale_columns;  // of the row-major scale buffer, padded
  Layout values;
  Layout block_scales;
};

Problem describe(const Tensor& input, const std::optional<Tensor>& global_scale,
                 const Format& format) {
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
  const int64_t columns = k / format.sf_vec_size;
  const Dims scale_sizes =
      format.is_sf_swizzled_layout
          ? Dims{round_up(m, format.is_sf_8x4_layout ? 8 : 128), round_up(columns, 4)}
          : Dims{m, columns};
  const auto layout = [&](const Dims& row_major) {
    return is_transposed ? transposed(contiguous(row_major)) : contiguous(row_major);
  };
  return {is_transposed, m, k, scale_sizes[1], layout(sizes), layout(scale_sizes)};
}

int64_t rows_of_part(const Tensor& input, const Problem& problem, const Format& format) {
  const bool by_bulk_copies =
      format.sf_vec_size == 16 && problem.m >= kBulkCopyRows && problem.k % kBulkCopyColumns == 0;
  if (!by_bulk_copies) return problem.m;
  if (input.scalar_type() == ScalarType::Float8_e4m3fn) return kFp8RowsOfPart;
  const int64_t padded_rows = !format.is_sf_swizzled_layout
                                  ? problem.m
                                  : round_up(problem.m, format.is_sf_8x4_layout ? 8 : 128);
  const bool within_the_buffer = padded_rows % kBulkCopyTile == 0;
  return within_the_buffer ? problem.m : problem.m / kBulkCopyTile * kBulkCopyTile;
}

void launch(const Tensor& original, const Problem& problem,
            const std::optional<Tensor>& global_scale, const Format& format,
            std::optional<bool> enable_pdl, const Tensor& values, const Tensor& block_scales) {
  const int device = original.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (problem.m == 0 || problem.k == 0) return;
  const LaunchScope scope(kOperator, device);
  // A transposed input is without gaps: its memory is that of the row-major matrix.
  const Readable input =
      problem.is_transposed ? aligned(original, kInputAlignment) : dense(original, kInputAlignment);
  std::optional<Readable> scale;
  if (global_scale.has_value()) scale.emplace(dense(*global_scale));
  const bool scale_per_row = scale.has_value() && (*scale)->numel() > 1;

  const int64_t part = rows_of_part(*input, problem, format);
  for (int64_t first = 0; first < problem.m; first += part) {
    const int64_t rows = std::min(part, problem.m - first);
    const RowView unpacked(*input, first, rows, problem.k);
    const RowView packed(values, first, rows, problem.k / 2);
    const RowView scales(block_scales, first, rows, problem.scale_columns);
    std::optional<RowView> global;
    if (scale.has_value())
      global.emplace(**scale, scale_per_row ? first : 0, scale_per_row ? rows : 1, 1);
    // Programmatic dependent launch is available on every device that these kernels run on.
    call_flashinfer(function, kOperator, unpacked.view,
                    OptionalTensor{global.has_value() ? &global->view : nullptr}, packed.view,
                    scales.view, format.sf_vec_size, format.sf_use_ue8m0,
                    format.is_sf_swizzled_layout, format.is_sf_8x4_layout,
                    format.is_global_scale_inversed, enable_pdl.value_or(true), format.recipe);
    scope.check_launch();
  }
}

}  // namespace

std::tuple<NewTensor, NewTensor> fp4_quantize(
    const Tensor& input, const std::optional<Tensor>& global_scale, int64_t sf_vec_size,
    bool sf_use_ue8m0, bool is_sf_swizzled_layout, bool is_sf_8x4_layout,
    bool is_global_scale_inversed, std::optional<bool> enable_pdl, int64_t nvfp4_4over6) {
  const Format format{
      sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout, is_sf_8x4_layout, is_global_scale_inversed,
      nvfp4_4over6};
  const Problem problem = describe(input, global_scale, format);
  // Refuse before allocating.
  kernel.for_device(input.get_device_index());
  Tensor values = empty(problem.values, ScalarType::Byte, input);
  Tensor block_scales = empty(problem.block_scales, ScalarType::Byte, input);
  launch(input, problem, global_scale, format, enable_pdl, values, block_scales);
  return {values.release(), block_scales.release()};
}

void fp4_quantize_out(const Tensor& input, const std::optional<Tensor>& global_scale,
                      int64_t sf_vec_size, bool sf_use_ue8m0, bool is_sf_swizzled_layout,
                      bool is_sf_8x4_layout, bool is_global_scale_inversed,
                      std::optional<bool> enable_pdl, int64_t nvfp4_4over6, const Tensor& values,
                      const Tensor& block_scales) {
  const Format format{
      sf_vec_size, sf_use_ue8m0, is_sf_swizzled_layout, is_sf_8x4_layout, is_global_scale_inversed,
      nvfp4_4over6};
  const Problem problem = describe(input, global_scale, format);
  check_output(kOperator, "values", values, problem.values, ScalarType::Byte, "input", input);
  check_output(kOperator, "block_scales", block_scales, problem.block_scales, ScalarType::Byte,
               "input", input);
  launch(input, problem, global_scale, format, enable_pdl, values, block_scales);
}

}  // namespace fp4aot
