// NVFP4 quantization of batches: plain, by expert under a mask, and fused with SiLU and multiply.
#include "batched_quantization.h"

#include <algorithm>

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

constexpr int64_t kBlock = 16;  // values that share one block scale
// The kernels load sixteen 2-byte values at once.
constexpr std::uintptr_t kInputAlignment = 32;

KernelFunction batched_kernel{"nvfp4_batched_quantize", "fp4_batched_quantize"};
KernelFunction matrix_kernel{"nvfp4_batched_quantize", "fp4_quantize"};
KernelFunction grouped_kernel{"scaled_fp4_grouped_quantize",
                              "silu_and_mul_scaled_nvfp4_experts_quantize"};
KernelFunction silu_kernel{"silu_and_mul_scaled_nvfp4_experts_quantize",
                           "silu_and_mul_scaled_nvfp4_experts_quantize"};

struct Batch {
  int64_t count;  // matrices
  int64_t m;
  int64_t k;  // quantized values a row
};

struct Results {
  Layout values;
  Layout block_scales;
};

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

// The grouped GEMM reads its operands with the batch last.
Results results_of_experts(const Batch& experts) {
  const int64_t row_tiles = round_up(experts.m, 128) / 128;
  const int64_t column_tiles = round_up(experts.k / kBlock, 4) / 4;
  return {permuted({experts.count, experts.m, experts.k / 2}, {1, 2, 0}),
          permuted({experts.count, row_tiles, column_tiles, 32, 4, 4}, {3, 4, 1, 5, 2, 0})};
}

int64_t scales_of_matrix(const Batch& batch) {
  return round_up(batch.m, 128) * round_up(batch.k / kBlock, 4);
}

Results results_of_batch(const Batch& batch) {
  return {contiguous({batch.count, batch.m, batch.k / 2}),
          contiguous({batch.count, scales_of_matrix(batch)})};
}

Batch describe_batched(const Tensor& a, const Tensor& global_scale, int64_t sf_vec_size,
                       int64_t recipe) {
  const char* name = batched_kernel.operator_name();
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
  return batch;
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

Batch describe_experts(const char* name, const Tensor& a, const Tensor& mask,
                       const Tensor& global_scale, bool silu, int64_t recipe) {
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
  return experts;
}

// Padding columns of the scales meet zero values in a GEMM: a NaN left there would spoil real rows.
// The kernels for experts write no padding. This also clears the scales of rows beyond the mask.
void clear_padding_columns(const Batch& experts, const Tensor& block_scales) {
  if (experts.k / kBlock % 4 != 0) fill_with_zeros(block_scales);
}

// FlashInfer 0.7.2 cannot quantize fp8 input of many rows in one call (bulk_copy_rows.h says why):
// each matrix is quantized by itself, in parts of whole scale tiles.
void launch_fp8(const Tensor& a, const Tensor& global_scale, const Batch& batch, int64_t recipe,
                const Tensor& values, const Tensor& block_scales, const LaunchScope& scope,
                TVMFFISafeCallType function) {
  const char* name = batched_kernel.operator_name();
  const bool scale_per_row = global_scale.numel() > 1;
  const int64_t scale_columns = round_up(batch.k / kBlock, 4);
  const int64_t padded_rows = round_up(batch.m, 128);
  for (int64_t matrix = 0; matrix < batch.count; ++matrix) {
    for (int64_t first = 0; first < batch.m; first += kFp8RowsOfPart) {
      const int64_t rows = std::min(kFp8RowsOfPart, batch.m - first);
      const int64_t row = matrix * batch.m + first;
      const RowView input(a, row, rows, batch.k);
      const RowView packed(values, row, rows, batch.k / 2);
      const RowView scales(block_scales, matrix * padded_rows + first, rows, scale_columns);
      const RowView global(global_scale, scale_per_row ? first : 0, scale_per_row ? rows : 1, 1);
      call_flashinfer(function, name, input.view, OptionalTensor{&global.view}, packed.view,
                      scales.view, kBlock, /*ue8m0=*/false, /*swizzled=*/true, /*8x4=*/false,
                      /*inversed=*/false, /*enable_pdl=*/false, recipe);
      scope.check_launch();
    }
  }
}

void launch_batched(const Tensor& a, const Tensor& global_scale, const Batch& batch, int64_t recipe,
                    const Tensor& values, const Tensor& block_scales) {
  const char* name = batched_kernel.operator_name();
  const int device = a.get_device_index();
  const bool fp8 = a.scalar_type() == ScalarType::Float8_e4m3fn;
  const TVMFFISafeCallType function = (fp8 ? matrix_kernel : batched_kernel).for_device(device);
  if (values.numel() == 0) return;
  LaunchScope scope(name, device);
  const Readable input = dense(a, kInputAlignment);
  const Readable scale = dense(global_scale);
  if (fp8) {
    launch_fp8(*input, *scale, batch, recipe, values, block_scales, scope, function);
    return;
  }
  call_flashinfer(function, name, OwningTensor(name, *input, {batch.count, batch.m, batch.k}),
                  OwningTensor(name, *scale, {scale->numel()}),
                  OwningTensor(name, values, {batch.count, batch.m, batch.k / 2}),
                  OwningTensor(name, block_scales, {batch.count, block_scales.size(1)}), kBlock,
                  /*ue8m0=*/false, recipe);
  scope.check_launch();
}

// `values` and `block_scales` are the permuted views that the operators return.
void launch_experts(KernelFunction& kernel, const Tensor& a, const Tensor& mask,
                    const Tensor& global_scale, const Batch& experts, bool silu, int64_t recipe,
                    const Tensor& values, const Tensor& block_scales) {
  const char* name = kernel.operator_name();
  const int device = a.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (values.numel() == 0) return;
  LaunchScope scope(name, device);
  clear_padding_columns(experts, block_scales);
  const Readable input = dense(a, kInputAlignment);
  const Readable scale = dense(global_scale);
  const Readable rows_of_experts = dense(mask);
  const int64_t rows = experts.count * experts.m;
  const int64_t scale_rows = experts.count * round_up(experts.m, 128);
  const int64_t scale_words = round_up(experts.k / kBlock, 4) / 4;
  const DLDataType word{kDLInt, 32, 1};  // four scales each, as FlashInfer takes them
  call_flashinfer(function, name, OwningTensor(name, values, {rows, experts.k / 2}),
                  OwningTensor(name, block_scales, {scale_rows, scale_words}, word),
                  OwningTensor(name, *input, {rows, silu ? experts.k * 2 : experts.k}),
                  OwningTensor(name, *scale, {experts.count}),
                  OwningTensor(name, *rows_of_experts, {experts.count}), silu, recipe);
  scope.check_launch();
}

std::tuple<NewTensor, NewTensor> quantize_experts(KernelFunction& kernel, const Tensor& a,
                                                  const Tensor& mask, const Tensor& global_scale,
                                                  bool silu, int64_t recipe) {
  const Batch experts =
      describe_experts(kernel.operator_name(), a, mask, global_scale, silu, recipe);
  kernel.for_device(a.get_device_index());
  const Results results = results_of_experts(experts);
  Tensor values = empty(results.values, ScalarType::Byte, a);
  Tensor block_scales = empty(results.block_scales, ScalarType::Float8_e4m3fn, a);
  launch_experts(kernel, a, mask, global_scale, experts, silu, recipe, values, block_scales);
  return {values.release(), block_scales.release()};
}

void quantize_experts_out(KernelFunction& kernel, const Tensor& a, const Tensor& mask,
                          const Tensor& global_scale, bool silu, int64_t recipe,
                          const Tensor& values, const Tensor& block_scales) {
  const char* name = kernel.operator_name();
  const Batch experts = describe_experts(name, a, mask, global_scale, silu, recipe);
  const Results results = results_of_experts(experts);
  check_output(name, "values", values, results.values, ScalarType::Byte, "a", a);
  check_output(name, "block_scales", block_scales, results.block_scales, ScalarType::Float8_e4m3fn,
               "a", a);
  launch_experts(kernel, a, mask, global_scale, experts, silu, recipe, values, block_scales);
}

}  // namespace

std::tuple<NewTensor, NewTensor> nvfp4_batched_quantize(const Tensor& a, const Tensor& a_global_sf,
                                                        int64_t sf_vec_size, int64_t nvfp4_4over6) {
  const Batch batch = describe_batched(a, a_global_sf, sf_vec_size, nvfp4_4over6);
  batched_kernel.for_device(a.get_device_index());
  const Results results = results_of_batch(batch);
  Tensor values = empty(results.values, ScalarType::Byte, a);
  Tensor block_scales = empty(results.block_scales, ScalarType::Byte, a);
  launch_batched(a, a_global_sf, batch, nvfp4_4over6, values, block_scales);
  return {values.release(), block_scales.release()};
}

void nvfp4_batched_quantize_out(const Tensor& a, const Tensor& a_global_sf, int64_t sf_vec_size,
                                int64_t nvfp4_4over6, const Tensor& values,
                                const Tensor& block_scales) {
  const char* name = batched_kernel.operator_name();
  const Batch batch = describe_batched(a, a_global_sf, sf_vec_size, nvfp4_4over6);
  const Results results = results_of_batch(batch);
  check_output(name, "values", values, results.values, ScalarType::Byte, "a", a);
  check_output(name, "block_scales", block_scales, results.block_scales, ScalarType::Byte, "a", a);
  launch_batched(a, a_global_sf, batch, nvfp4_4over6, values, block_scales);
}

std::tuple<NewTensor, NewTensor> scaled_fp4_grouped_quantize(const Tensor& a, const Tensor& mask,
                                                             const Tensor& a_global_sf,
                                                             int64_t nvfp4_4over6) {
  return quantize_experts(grouped_kernel, a, mask, a_global_sf, false, nvfp4_4over6);
}

void scaled_fp4_grouped_quantize_out(const Tensor& a, const Tensor& mask, const Tensor& a_global_sf,
                                     int64_t nvfp4_4over6, const Tensor& values,
                                     const Tensor& block_scales) {
  quantize_experts_out(grouped_kernel, a, mask, a_global_sf, false, nvfp4_4over6, values,
                       block_scales);
}

std::tuple<NewTensor, NewTensor> silu_and_mul_scaled_nvfp4_experts_quantize(
    const Tensor& a, const Tensor& mask, const Tensor& a_global_sf, int64_t nvfp4_4over6) {
  return quantize_experts(silu_kernel, a, mask, a_global_sf, true, nvfp4_4over6);
}

void silu_and_mul_scaled_nvfp4_experts_quantize_out(const Tensor& a, const Tensor& mask,
                                                    const Tensor& a_global_sf, int64_t nvfp4_4over6,
                                                    const Tensor& values,
                                                    const Tensor& block_scales) {
  quantize_experts_out(silu_kernel, a, mask, a_global_sf, true, nvfp4_4over6, values, block_scales);
}

}  // namespace fp4aot
