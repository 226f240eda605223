// NVFP4 quantization of batches: plain, by expert under a mask, and fused with SiLU and multiply.
#include <algorithm>

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/bulk_copy_rows.h"
#include "operators/operator.h"
#include "operators/recipe.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr int64_t kBlock = 16;  // values that share one block scale
// The kernels load sixteen 2-byte values at once.
constexpr std::uintptr_t kInputAlignment = 32;

using BatchedKernel = flashinfer::fp4_batched_quantize;
using MatrixKernel = flashinfer::fp4_quantize;
using ExpertsKernel = flashinfer::silu_and_mul_scaled_nvfp4_experts_quantize;

KernelFunction<BatchedKernel> batched_kernel{"nvfp4_batched_quantize"};
KernelFunction<MatrixKernel> matrix_kernel{"nvfp4_batched_quantize"};
KernelFunction<ExpertsKernel> grouped_kernel{"scaled_fp4_grouped_quantize"};
KernelFunction<ExpertsKernel> silu_kernel{"silu_and_mul_scaled_nvfp4_experts_quantize"};

struct Batch {
  int64_t count;  // matrices
  int64_t m;
  int64_t k;  // quantized values a row
};

struct BatchedProblem : Description<2> {
  std::optional<Kernel<BatchedKernel>> quantize;
  std::optional<Kernel<MatrixKernel>> quantize_matrix;  // of fp8
  const Tensor& global_scale;
  Batch batch;
  int64_t recipe;
};

struct ExpertsProblem : Description<2> {
  Kernel<ExpertsKernel> quantize;
  const Tensor& mask;
  const Tensor& global_scale;
  Batch experts;
  bool silu;
  int64_t recipe;
};

int64_t scales_of_matrix(const Batch& batch) {
  return round_up(batch.m, 128) * round_up(batch.k / kBlock, 4);
}

// A contiguous buffer of `sizes`, its dimensions in another order.
Layout permuted(const Dims& sizes, std::initializer_list<size_t> order) {
  const Layout buffer = contiguous(sizes);
  Layout result = buffer;
  size_t i = 0;
  for (size_t dimension : order) {
    result.sizes[i] = buffer.sizes[dimension];
    result.strides[i] = buffer.strides[dimension];
    ++i;
  }
  return result;
}

BatchedProblem describe_batched(const Tensor& a, const Tensor& global_scale, int64_t sf_vec_size,
                                int64_t recipe) {
  constexpr const char* name = "nvfp4_batched_quantize";
  check_dtype(name, "a", a, {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float8_e4m3fn});
  check_rank(name, "a", a, {3});
  if (sf_vec_size != kBlock) {
    argument_error(name, "sf_vec_size", text(sf_vec_size), "16", "NVFP4 has blocks of 16 values");
  }
  check_recipe(name, recipe, "a", a);
  check_blocks(name, "a", a);
  const Batch batch{a.size(0), a.size(1), a.size(2)};
  check_int32(name, "a", batch.count * batch.m, "a number of rows of");
  check_int32(name, "a", batch.k, "a number of columns of");
  check_int32(name, "a", batch.count * scales_of_matrix(batch), "a padded number of scales of");
  check_dtype(name, "a_global_sf", global_scale, {ScalarType::Float});
  if (global_scale.numel() != 1 && global_scale.numel() != batch.m) {
    argument_error(name, "a_global_sf", text("shape ", shape_text(global_scale)),
                   text("1 element, or one per row: ", batch.m),
                   "pass a tensor of shape [1], or of shape [rows]");
  }
  check_same_device(name, "a_global_sf", global_scale, "a", a);
  check_cuda(name, "a", a);
  const int device = a.get_device_index();
  const bool fp8 = a.scalar_type() == ScalarType::Float8_e4m3fn;
  return {{name,
           "a",
           a,
           {Output{"values", contiguous({batch.count, batch.m, batch.k / 2}), ScalarType::Byte},
            Output{"block_scales", contiguous({batch.count, scales_of_matrix(batch)}),
                   ScalarType::Byte}}},
          fp8 ? std::nullopt : std::optional(batched_kernel.for_device(device)),
          fp8 ? std::optional(matrix_kernel.for_device(device)) : std::nullopt,
          global_scale,
          batch,
          recipe};
}

// One element for each matrix.
void check_per_matrix(const char* name, const char* argument, const Tensor& tensor,
                      ScalarType dtype, const Tensor& a, const char* what_to_do) {
  check_dtype(name, argument, tensor, {dtype});
  if (tensor.dim() != 1 || tensor.size(0) != a.size(0)) {
    argument_error(name, argument, text("shape ", shape_text(tensor)),
                   text("[", a.size(0), "], the batch of 'a'"), what_to_do);
  }
  check_same_device(name, argument, tensor, "a", a);
}

template <bool silu>
ExpertsProblem describe_experts(const Tensor& a, const Tensor& mask, const Tensor& global_scale,
                                int64_t recipe) {
  KernelFunction<ExpertsKernel>& kernel = silu ? silu_kernel : grouped_kernel;
  const char* name = kernel.operator_name();
  check_dtype(name, "a", a, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(name, "a", a, {3});
  check_recipe(name, recipe, "a", a);
  check_blocks(name, "a", a, silu ? 2 * kBlock : kBlock);
  const Batch experts{a.size(0), a.size(1), silu ? a.size(2) / 2 : a.size(2)};
  // The kernel counts its work in groups of eight values.
  check_int32(name, "a", experts.count * experts.m * (experts.k / 8),
              "a number of groups of 8 values of");
  check_int32(name, "a", experts.count * scales_of_matrix(experts), "a padded number of scales of");
  check_per_matrix(name, "mask", mask, ScalarType::Int, a,
                   "pass one number of rows for each matrix");
  check_per_matrix(name, "a_global_sf", global_scale, ScalarType::Float, a,
                   "pass one global scale for each matrix");
  check_cuda(name, "a", a);
  const int64_t row_tiles = round_up(experts.m, 128) / 128;
  const int64_t column_tiles = round_up(experts.k / kBlock, 4) / 4;
  // Padding columns of the scales meet zero values in a GEMM: a NaN left there would spoil real
  // rows. The kernel writes no padding. This also clears the scales of rows beyond the mask.
  const Clear clear = experts.k / kBlock % 4 != 0 ? Clear::kEveryBuffer : Clear::kNothing;
  // The grouped GEMM reads its operands with the batch last.
  return {{name,
           "a",
           a,
           {Output{"values", permuted({experts.count, experts.m, experts.k / 2}, {1, 2, 0}),
                   ScalarType::Byte},
            Output{"block_scales",
                   permuted({experts.count, row_tiles, column_tiles, 32, 4, 4}, {3, 4, 1, 5, 2, 0}),
                   ScalarType::Float8_e4m3fn, 8, clear}}},
          kernel.for_device(a.get_device_index()),
          mask,
          global_scale,
          experts,
          silu,
          recipe};
}

// FlashInfer 0.7.2 cannot quantize fp8 input of many rows in one call (bulk_copy_rows.h says why):
// each matrix is quantized by itself, in parts of whole scale tiles.
void launch_fp8(const BatchedProblem& problem, const Tensor& values, const Tensor& block_scales) {
  const Batch& batch = problem.batch;
  const Readable a = dense(problem.input, kInputAlignment);
  const Readable global_scale = dense(problem.global_scale);
  const bool scale_per_row = global_scale->numel() > 1;
  const int64_t scale_columns = round_up(batch.k / kBlock, 4);
  const int64_t padded_rows = round_up(batch.m, 128);
  for (int64_t matrix = 0; matrix < batch.count; ++matrix) {
    for (int64_t first = 0; first < batch.m; first += kFp8RowsOfPart) {
      const int64_t rows = std::min(kFp8RowsOfPart, batch.m - first);
      const int64_t row = matrix * batch.m + first;
      const int64_t first_byte = scale_per_row ? first * static_cast<int64_t>(sizeof(float)) : 0;
      std::optional<View> global;
      global.emplace(*global_scale, contiguous({scale_per_row ? rows : 1, 1}), kFloats, first_byte);
      (*problem.quantize_matrix)(
          rows_of(*a, row, rows, batch.k), global, rows_of(values, row, rows, batch.k / 2),
          rows_of(block_scales, matrix * padded_rows + first, rows, scale_columns), kBlock,
          /*ue8m0=*/false, /*swizzled=*/true, /*8x4=*/false, /*inversed=*/false,
          /*enable_pdl=*/false, problem.recipe);
    }
  }
}

void launch_batched(const BatchedProblem& problem, const Tensor& values,
                    const Tensor& block_scales) {
  if (problem.quantize_matrix.has_value()) return launch_fp8(problem, values, block_scales);
  const char* name = problem.operator_name;
  const Batch& batch = problem.batch;
  const Readable input = dense(problem.input, kInputAlignment);
  const Readable scale = dense(problem.global_scale);
  (*problem.quantize)(OwningTensor(name, *input, {batch.count, batch.m, batch.k}),
                      OwningTensor(name, *scale, {scale->numel()}),
                      OwningTensor(name, values, {batch.count, batch.m, batch.k / 2}),
                      OwningTensor(name, block_scales, {batch.count, block_scales.size(1)}), kBlock,
                      /*ue8m0=*/false, problem.recipe);
}

// `values` and `block_scales` are the permuted views that the operators return.
void launch_experts(const ExpertsProblem& problem, const Tensor& values,
                    const Tensor& block_scales) {
  const char* name = problem.operator_name;
  const Batch& experts = problem.experts;
  const Readable input = dense(problem.input, kInputAlignment);
  const Readable scale = dense(problem.global_scale);
  const Readable rows_of_experts = dense(problem.mask);
  const int64_t rows = experts.count * experts.m;
  const int64_t scale_rows = experts.count * round_up(experts.m, 128);
  const int64_t scale_words = round_up(experts.k / kBlock, 4) / 4;
  const DLDataType word{kDLInt, 32, 1};  // four scales each, as FlashInfer takes them
  problem.quantize(OwningTensor(name, values, {rows, experts.k / 2}),
                   OwningTensor(name, block_scales, {scale_rows, scale_words}, word),
                   OwningTensor(name, *input, {rows, problem.silu ? experts.k * 2 : experts.k}),
                   OwningTensor(name, *scale, {experts.count}),
                   OwningTensor(name, *rows_of_experts, {experts.count}), problem.silu,
                   problem.recipe);
}

}  // namespace

FP4AOT_OPERATOR(nvfp4_batched_quantize, describe_batched, launch_batched,
                "Tensor a, Tensor a_global_sf, int sf_vec_size=16, int nvfp4_4over6=0",
                "Tensor(a!) values, Tensor(b!) block_scales");
FP4AOT_OPERATOR(scaled_fp4_grouped_quantize, describe_experts<false>, launch_experts,
                "Tensor a, Tensor mask, Tensor a_global_sf, int nvfp4_4over6=0",
                "Tensor(a!) values, Tensor(b!) block_scales");
FP4AOT_OPERATOR(silu_and_mul_scaled_nvfp4_experts_quantize, describe_experts<true>, launch_experts,
                "Tensor a, Tensor mask, Tensor a_global_sf, int nvfp4_4over6=0",
                "Tensor(a!) values, Tensor(b!) block_scales");

}  // namespace fp4aot
