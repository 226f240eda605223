// fp16 or bf16 to an NVFP4 KV cache with linear block scales, and back: plain rows, and pages that
// are found through a table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr int64_t kBlock = 16;  // values that share one block scale
// The kernel loads two values at once.
constexpr std::uintptr_t kInputAlignment = 4;
// Static shared memory of the plain kernel: the block scales of one row and the global scale.
constexpr int64_t kMaxScaleBytes = 48 * 1024 - 4;

KernelFunction<flashinfer::nvfp4_kv_quant> quantize_kernel{"nvfp4_kv_quantize"};
KernelFunction<flashinfer::nvfp4_kv_dequant> plain_kernel{"nvfp4_kv_dequantize"};
KernelFunction<flashinfer::nvfp4_paged_kv_dequant> paged_kernel{"nvfp4_kv_dequantize_paged"};
KernelFunction<flashinfer::nvfp4_quantize_append_paged_kv_cache> append_kernel{
    "nvfp4_quantize_append_paged_kv_cache"};

struct QuantizeProblem : Description<2> {
  Kernel<flashinfer::nvfp4_kv_quant> quantize;
  const Tensor& global_scale;
};

QuantizeProblem describe_quantize(const Tensor& input, const Tensor& global_scale) {
  const char* name = quantize_kernel.operator_name();
  check_dtype(name, "input", input, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(name, "input", input, {2});
  check_blocks(name, "input", input);
  check_int32(name, "input", input.size(1), "a number of columns of");
  check_scalar_scale(name, "global_scale", global_scale, "input", input);
  check_cuda(name, "input", input);
  const int64_t rows = input.size(0), columns = input.size(1);
  return {{name,
           "input",
           input,
           {Output{"fp4_output", contiguous({rows, columns / 2}), ScalarType::Byte},
            Output{"block_scales", contiguous({rows, columns / kBlock}), ScalarType::Byte}}},
          quantize_kernel.for_device(input.get_device_index()),
          global_scale};
}

void launch_quantize(const QuantizeProblem& problem, const Tensor& fp4_output,
                     const Tensor& block_scales) {
  const Readable input = dense(problem.input, kInputAlignment);
  const int64_t m = input->size(0);
  const int64_t k = input->size(1);
  // The kernel's offsets are 32-bit integers: no part has more values.
  const int64_t part = std::numeric_limits<int32_t>::max() / k;
  for (int64_t first = 0; first < m; first += part) {
    const int64_t rows = std::min(part, m - first);
    problem.quantize(rows_of(*input, first, rows, k), problem.global_scale,
                     rows_of(fp4_output, first, rows, k / 2),
                     rows_of(block_scales, first, rows, k / kBlock));
  }
}

struct PlainProblem : Description<1> {
  Kernel<flashinfer::nvfp4_kv_dequant> dequantize;
  const Tensor& block_scales;
  const Tensor& global_scale;
};

PlainProblem describe_plain(const Tensor& fp4_data, const Tensor& block_scales,
                            const Tensor& global_scale, OutputDtype output_dtype) {
  const char* name = plain_kernel.operator_name();
  check_output_dtype(name, "output_dtype", "out", output_dtype);
  check_dtype(name, "fp4_data", fp4_data, {ScalarType::Byte});
  check_rank(name, "fp4_data", fp4_data, {2});
  const int64_t m = fp4_data.size(0);
  const int64_t k = fp4_data.size(1) * 2;
  if (k % kBlock != 0) {
    argument_error(name, "fp4_data",
                   text("shape ", shape_text(fp4_data), " (", k, " values a row)"),
                   text("a multiple of ", kBlock, " values a row"), "pad the rows");
  }
  check_dtype(name, "block_scales", block_scales, {ScalarType::Byte, ScalarType::Float8_e4m3fn});
  if (block_scales.dim() != 2 || block_scales.size(0) != m || block_scales.size(1) != k / kBlock) {
    argument_error(name, "block_scales", text("shape ", shape_text(block_scales)),
                   text("[", m, ", ", k / kBlock, "]"), "pass one linear scale for each 16 values");
  }
  check_same_device(name, "block_scales", block_scales, "fp4_data", fp4_data);
  check_scalar_scale(name, "global_scale", global_scale, "fp4_data", fp4_data);
  check_int32(name, "fp4_data", m * k, "a number of values of");
  if (k / kBlock > kMaxScaleBytes) {
    argument_error(name, "fp4_data", text(k, " values a row"),
                   text("at most ", kMaxScaleBytes * kBlock),
                   "split the rows: the block scales of one row must fit in shared memory");
  }
  check_cuda(name, "fp4_data", fp4_data);
  return {{name, "fp4_data", fp4_data, {Output{"out", contiguous({m, k}), output_dtype.value}}},
          plain_kernel.for_device(fp4_data.get_device_index()),
          block_scales,
          global_scale};
}

void launch_plain(const PlainProblem& problem, const Tensor& out) {
  problem.dequantize(dense(problem.input, 2), dense(problem.block_scales), problem.global_scale,
                     out);
}

struct Caches {
  const Tensor& k;
  const Tensor& v;
  const Tensor& k_scales;
  const Tensor& v_scales;
  int64_t layout;  // 0 for NHD, 1 for HND
};

struct PagedProblem : Description<2> {
  Kernel<flashinfer::nvfp4_paged_kv_dequant> dequantize;
  Caches caches;
  const Tensor& block_tables;
  const Tensor& seq_lens;
  const Tensor& k_scale;
  const Tensor& v_scale;
};

// One of the two caches with its scales: same pages, page size and heads as the K cache.
void check_cache(const char* name, const char* argument, const Tensor& cache,
                 const char* scale_argument, const Tensor& scales, const Tensor& reference) {
  check_dtype(name, argument, cache, {ScalarType::Byte});
  check_rank(name, argument, cache, {4});
  check_dtype(name, scale_argument, scales, {ScalarType::Byte, ScalarType::Float8_e4m3fn});
  check_rank(name, scale_argument, scales, {4});
  check_same_device(name, argument, cache, "paged_k_cache", reference);
  check_same_device(name, scale_argument, scales, "paged_k_cache", reference);
  const int64_t dim = cache.size(3) * 2;
  if (dim == 0 || dim % kBlock != 0) {
    argument_error(name, argument, text("shape ", shape_text(cache), " (head_dim ", dim, ")"),
                   text("a head_dim that is a positive multiple of ", kBlock), "pad the heads");
  }
  for (int64_t i = 0; i < 3; ++i) {
    if (cache.size(i) != reference.size(i)) {
      argument_error(
          name, argument, text("shape ", shape_text(cache)),
          text("the pages, page size and heads of paged_k_cache ", shape_text(reference)),
          "pass caches of one layout");
    }
    if (scales.size(i) != cache.size(i)) {
      argument_error(name, scale_argument, text("shape ", shape_text(scales)),
                     text("the first three sizes of ", argument, " ", shape_text(cache)),
                     "pass one scale for each 16 values");
    }
  }
  if (scales.size(3) != dim / kBlock) {
    argument_error(name, scale_argument, text("shape ", shape_text(scales)),
                   text(dim / kBlock, " scales a head"), "pass one scale for each 16 values");
  }
  if (cache.stride(3) != 1 && cache.size(3) > 1) {
    argument_error(name, argument, text("stride ", cache.stride(3), " in the last dimension"), "1",
                   "make the last dimension contiguous");
  }
  if (scales.stride(3) != 1 && scales.size(3) > 1) {
    argument_error(name, scale_argument,
                   text("stride ", scales.stride(3), " in the last dimension"), "1",
                   "make the last dimension contiguous");
  }
}

void check_caches(const char* name, const Caches& caches, const char* k_scales_argument,
                  const char* v_scales_argument) {
  if (caches.layout != 0 && caches.layout != 1) {
    argument_error(name, "kv_layout", text(caches.layout), "0 (NHD) or 1 (HND)",
                   "pass the layout of the cache");
  }
  check_cache(name, "paged_k_cache", caches.k, k_scales_argument, caches.k_scales, caches.k);
  check_cache(name, "paged_v_cache", caches.v, v_scales_argument, caches.v_scales, caches.k);
}

PagedProblem describe_paged(const Tensor& paged_k_cache, const Tensor& paged_v_cache,
                            const Tensor& k_block_scales, const Tensor& v_block_scales,
                            const Tensor& block_tables, const Tensor& seq_lens,
                            const Tensor& k_scale, const Tensor& v_scale, OutputLength length,
                            OutputDtype output_dtype, int64_t kv_layout) {
  const char* name = paged_kernel.operator_name();
  const int64_t max_seq_len = length.value;
  check_output_dtype(name, "output_dtype", "output_k", output_dtype);
  if (length.buffer != nullptr) check_rank(name, "output_k", *length.buffer, {4});
  const Caches caches{paged_k_cache, paged_v_cache, k_block_scales, v_block_scales, kv_layout};
  check_caches(name, caches, "k_block_scales", "v_block_scales");
  check_dtype(name, "block_tables", block_tables, {ScalarType::Int, ScalarType::Long});
  check_rank(name, "block_tables", block_tables, {2});
  check_same_device(name, "block_tables", block_tables, "paged_k_cache", paged_k_cache);
  check_dtype(name, "seq_lens", seq_lens, {ScalarType::Int});
  check_rank(name, "seq_lens", seq_lens, {1});
  check_same_device(name, "seq_lens", seq_lens, "paged_k_cache", paged_k_cache);
  check_scalar_scale(name, "k_scale", k_scale, "paged_k_cache", paged_k_cache);
  check_scalar_scale(name, "v_scale", v_scale, "paged_k_cache", paged_k_cache);
  const bool nhd = kv_layout == 0;
  const int64_t batch = block_tables.size(0);
  const int64_t heads = paged_k_cache.size(nhd ? 2 : 1);
  const int64_t page_size = paged_k_cache.size(nhd ? 1 : 2);
  if (seq_lens.size(0) != batch) {
    argument_error(name, "seq_lens", text("shape ", shape_text(seq_lens)),
                   text("[", batch, "], the batch of block_tables"),
                   "pass one length for each request");
  }
  if (max_seq_len < 0) {
    argument_error(name, "max_seq_len", text(max_seq_len), "0 or more",
                   "pass the longest sequence length");
  }
  if (block_tables.size(1) * page_size < max_seq_len) {
    argument_error(name, "block_tables",
                   text("shape ", shape_text(block_tables), " with pages of ", page_size),
                   text("pages for ", max_seq_len, " tokens"),
                   "pass more pages a request, or a smaller max_seq_len");
  }
  check_int32(name, "max_seq_len", batch * max_seq_len * heads, "batch * max_seq_len * heads of");
  check_cuda(name, "paged_k_cache", paged_k_cache);
  const auto output = [&](const char* output_name, const Tensor& cache) {
    // The kernel writes only positions below seq_lens.
    return Output{output_name, contiguous({batch, max_seq_len, heads, cache.size(3) * 2}),
                  output_dtype.value, 8, Clear::kNewBuffers};
  };
  return {{name,
           "paged_k_cache",
           paged_k_cache,
           {output("output_k", paged_k_cache), output("output_v", paged_v_cache)}},
          paged_kernel.for_device(paged_k_cache.get_device_index()),
          caches,
          block_tables,
          seq_lens,
          k_scale,
          v_scale};
}

void launch_paged(const PagedProblem& problem, const Tensor& output_k, const Tensor& output_v) {
  const Caches& caches = problem.caches;
  problem.dequantize(caches.k, caches.v, caches.k_scales, caches.v_scales,
                     dense(problem.block_tables), dense(problem.seq_lens), problem.k_scale,
                     problem.v_scale, output_k, output_v, caches.layout);
}

struct AppendProblem : Description<0> {
  Kernel<flashinfer::nvfp4_quantize_append_paged_kv_cache> append;
  const Tensor& append_value;  // `input` is append_key
  const Tensor& batch_indices;
  const Tensor& positions;
  Caches caches;
  const Tensor& kv_indices;
  const Tensor& kv_indptr;
  const Tensor& kv_last_page_len;
  double k_scale;
  double v_scale;
};

// The kernel reads both caches with the strides of K's.
void check_strides_of_k(const char* argument, const Tensor& tensor, const Tensor& k) {
  for (int64_t i = 0; i < 3; ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != k.stride(i)) {
      argument_error(append_kernel.operator_name(), argument,
                     text("strides ", strides_text(tensor)), text(strides_text(k), ", as K's"),
                     "take K and V from one tensor, or make both contiguous");
    }
  }
}

// int32, a number for each of something.
void check_numbers(const char* argument, const Tensor& tensor, int64_t count, const char* of_what,
                   const Tensor& append_key) {
  const char* name = append_kernel.operator_name();
  check_dtype(name, argument, tensor, {ScalarType::Int});
  check_rank(name, argument, tensor, {1});
  if (tensor.size(0) != count) {
    argument_error(name, argument, text("shape ", shape_text(tensor)),
                   text("[", count, "], ", of_what), "pass one number for each");
  }
  check_same_device(name, argument, tensor, "append_key", append_key);
}

void check_decode_scale(const char* argument, double scale) {
  if (std::isfinite(scale) && scale > 0) return;
  argument_error(append_kernel.operator_name(), argument,
                 std::isfinite(scale) ? "a number that is not positive" : "no finite number",
                 "a positive, finite number", "pass what dequantizing multiplies by");
}

AppendProblem describe_append(const Tensor& append_key, const Tensor& append_value,
                              const Tensor& batch_indices, const Tensor& positions,
                              const Tensor& paged_k_cache, const Tensor& paged_v_cache,
                              const Tensor& k_scale_cache, const Tensor& v_scale_cache,
                              const Tensor& kv_indices, const Tensor& kv_indptr,
                              const Tensor& kv_last_page_len, double k_scale, double v_scale,
                              int64_t kv_layout) {
  const char* name = append_kernel.operator_name();
  check_dtype(name, "append_key", append_key, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(name, "append_key", append_key, {3});
  const int64_t rows = append_key.size(0), head_dim = append_key.size(2);
  if (head_dim != 64 && head_dim != 128 && head_dim != 256 && head_dim != 512) {
    argument_error(name, "append_key",
                   text("shape ", shape_text(append_key), " (head_dim ", head_dim, ")"),
                   "a head_dim of 64, 128, 256 or 512", "pad the heads");
  }
  check_int32(name, "append_key", rows, "a number of rows of");
  check_dtype(name, "append_value", append_value, {append_key.scalar_type()});
  if (!has_sizes(append_value, append_key.sizes())) {
    argument_error(name, "append_value", text("shape ", shape_text(append_value)),
                   text(shape_text(append_key), ", the shape of append_key"),
                   "append a value for each key");
  }
  check_same_device(name, "append_value", append_value, "append_key", append_key);
  check_numbers("batch_indices", batch_indices, rows, "a request for each row", append_key);
  check_numbers("positions", positions, rows, "a position for each row", append_key);
  const Caches caches{paged_k_cache, paged_v_cache, k_scale_cache, v_scale_cache, kv_layout};
  check_caches(name, caches, "k_scale_cache", "v_scale_cache");
  check_same_device(name, "paged_k_cache", paged_k_cache, "append_key", append_key);
  const int64_t heads = paged_k_cache.size(kv_layout == 0 ? 2 : 1);
  if (heads != append_key.size(1) || paged_k_cache.size(3) * 2 != head_dim ||
      paged_v_cache.size(3) * 2 != head_dim) {
    argument_error(name, "append_key", text("shape ", shape_text(append_key)),
                   text("[rows, heads, head_dim] for caches of shape ", shape_text(paged_k_cache),
                        " and ", shape_text(paged_v_cache)),
                   "append the heads that the caches hold, and pass their kv_layout");
  }
  check_strides_of_k("paged_v_cache", paged_v_cache, paged_k_cache);
  check_strides_of_k("v_scale_cache", v_scale_cache, k_scale_cache);
  check_dtype(name, "kv_indices", kv_indices, {ScalarType::Int});
  check_rank(name, "kv_indices", kv_indices, {1});
  check_same_device(name, "kv_indices", kv_indices, "append_key", append_key);
  check_dtype(name, "kv_last_page_len", kv_last_page_len, {ScalarType::Int});
  check_rank(name, "kv_last_page_len", kv_last_page_len, {1});
  check_same_device(name, "kv_last_page_len", kv_last_page_len, "append_key", append_key);
  check_numbers("kv_indptr", kv_indptr, kv_last_page_len.size(0) + 1,
                "one more than the requests of kv_last_page_len", append_key);
  check_decode_scale("k_scale", k_scale);
  check_decode_scale("v_scale", v_scale);
  check_cuda(name, "append_key", append_key);
  return {{name, "append_key", append_key, {}},
          append_kernel.for_device(append_key.get_device_index()),
          append_value,
          batch_indices,
          positions,
          caches,
          kv_indices,
          kv_indptr,
          kv_last_page_len,
          k_scale,
          v_scale};
}

// The kernel takes any strides but the last.
Readable with_dense_rows(const Tensor& tensor) {
  return tensor.stride(-1) == 1 ? Readable(tensor) : dense(tensor);
}

void launch_append(const AppendProblem& problem) {
  if (problem.input.numel() == 0) return;
  // FlashInfer asks for the dtype, which the cache of a server may not have.
  const auto as_e4m3 = [](const Tensor& scales) {
    return Layout{scales.sizes(), scales.strides()};
  };
  constexpr DLDataType kE4m3{kDLFloat8_e4m3fn, 8, 1};
  const Caches& caches = problem.caches;
  problem.append(with_dense_rows(problem.input), with_dense_rows(problem.append_value),
                 dense(problem.batch_indices), dense(problem.positions), caches.k, caches.v,
                 View(caches.k_scales, as_e4m3(caches.k_scales), kE4m3),
                 View(caches.v_scales, as_e4m3(caches.v_scales), kE4m3), dense(problem.kv_indices),
                 dense(problem.kv_indptr), dense(problem.kv_last_page_len), problem.k_scale,
                 problem.v_scale, caches.layout);
}

}  // namespace

FP4AOT_OPERATOR(nvfp4_kv_quantize, describe_quantize, launch_quantize,
                "Tensor input, Tensor global_scale",
                "Tensor(a!) fp4_output, Tensor(b!) block_scales");
FP4AOT_OPERATOR(nvfp4_kv_dequantize, describe_plain, launch_plain,
                "Tensor fp4_data, Tensor block_scales, Tensor global_scale, "
                "ScalarType output_dtype",
                "Tensor(a!) out", "output_dtype");
FP4AOT_OPERATOR(nvfp4_kv_dequantize_paged, describe_paged, launch_paged,
                "Tensor paged_k_cache, Tensor paged_v_cache, Tensor k_block_scales, "
                "Tensor v_block_scales, Tensor block_tables, Tensor seq_lens, Tensor k_scale, "
                "Tensor v_scale, int max_seq_len, ScalarType output_dtype, int kv_layout",
                "Tensor(a!) output_k, Tensor(b!) output_v", "max_seq_len", "output_dtype");
FP4AOT_IN_PLACE_OPERATOR(nvfp4_quantize_append_paged_kv_cache, describe_append, launch_append,
                         "Tensor append_key, Tensor append_value, Tensor batch_indices, "
                         "Tensor positions, Tensor(a!) paged_k_cache, Tensor(b!) paged_v_cache, "
                         "Tensor(c!) k_scale_cache, Tensor(d!) v_scale_cache, Tensor kv_indices, "
                         "Tensor kv_indptr, Tensor kv_last_page_len, float k_scale, "
                         "float v_scale, int kv_layout");

}  // namespace fp4aot
