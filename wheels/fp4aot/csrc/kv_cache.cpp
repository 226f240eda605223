// NVFP4 KV cache to fp16 or bf16: plain rows, and pages gathered through a block table.
#include "kv_cache.h"

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "kernel_table.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr int64_t kBlock = 16;  // values that share one block scale
// Static shared memory of the plain kernel: the block scales of one row and the global scale.
constexpr int64_t kMaxScaleBytes = 48 * 1024 - 4;

KernelFunction plain_kernel{"nvfp4_kv_dequantize", "nvfp4_kv_dequant"};
KernelFunction paged_kernel{"nvfp4_kv_dequantize_paged", "nvfp4_paged_kv_dequant"};

void check_output_dtype(const char* operator_name, ScalarType dtype) {
  if (is_one_of(dtype, {ScalarType::Half, ScalarType::BFloat16})) return;
  argument_error(operator_name, "output_dtype", dtype_name(dtype),
                 "torch.bfloat16 or torch.float16", "convert the result instead");
}

Layout describe_plain(const Tensor& fp4_data, const Tensor& block_scales,
                      const Tensor& global_scale) {
  const char* name = plain_kernel.operator_name();
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
  return contiguous({m, k});
}

void launch_plain(const Tensor& fp4_data, const Tensor& block_scales, const Tensor& global_scale,
                  const Tensor& out) {
  const char* name = plain_kernel.operator_name();
  const int device = fp4_data.get_device_index();
  const TVMFFISafeCallType function = plain_kernel.for_device(device);
  if (out.numel() == 0) return;
  LaunchScope scope(name, device);
  const Readable data = dense(fp4_data, 2);
  const Readable scales = dense(block_scales);
  call_flashinfer(function, name, dl_tensor(*data), dl_tensor(*scales), dl_tensor(global_scale),
                  dl_tensor(out));
  scope.check_launch();
}

struct PagedCache {
  const Tensor& paged_k_cache;
  const Tensor& paged_v_cache;
  const Tensor& k_block_scales;
  const Tensor& v_block_scales;
  const Tensor& block_tables;
  const Tensor& seq_lens;
  const Tensor& k_scale;
  const Tensor& v_scale;
  int64_t kv_layout;
};

struct PagedShape {
  int64_t batch;
  int64_t heads;
  int64_t page_size;
  int64_t k_dim;
  int64_t v_dim;
};

// One of the two caches with its scales: same pages, page size and heads as the K cache.
void check_cache(const char* argument, const Tensor& cache, const char* scale_argument,
                 const Tensor& scales, const Tensor& reference) {
  const char* name = paged_kernel.operator_name();
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

PagedShape describe_paged(const PagedCache& cache, int64_t max_seq_len) {
  const char* name = paged_kernel.operator_name();
  if (cache.kv_layout != 0 && cache.kv_layout != 1) {
    argument_error(name, "kv_layout", text(cache.kv_layout), "0 (NHD) or 1 (HND)",
                   "pass the layout of the cache");
  }
  check_cache("paged_k_cache", cache.paged_k_cache, "k_block_scales", cache.k_block_scales,
              cache.paged_k_cache);
  check_cache("paged_v_cache", cache.paged_v_cache, "v_block_scales", cache.v_block_scales,
              cache.paged_k_cache);
  check_dtype(name, "block_tables", cache.block_tables, {ScalarType::Int, ScalarType::Long});
  check_rank(name, "block_tables", cache.block_tables, {2});
  check_same_device(name, "block_tables", cache.block_tables, "paged_k_cache", cache.paged_k_cache);
  check_dtype(name, "seq_lens", cache.seq_lens, {ScalarType::Int});
  check_rank(name, "seq_lens", cache.seq_lens, {1});
  check_same_device(name, "seq_lens", cache.seq_lens, "paged_k_cache", cache.paged_k_cache);
  check_scalar_scale(name, "k_scale", cache.k_scale, "paged_k_cache", cache.paged_k_cache);
  check_scalar_scale(name, "v_scale", cache.v_scale, "paged_k_cache", cache.paged_k_cache);
  check_cuda(name, "paged_k_cache", cache.paged_k_cache);

  const bool nhd = cache.kv_layout == 0;
  const PagedShape shape{cache.block_tables.size(0), cache.paged_k_cache.size(nhd ? 2 : 1),
                         cache.paged_k_cache.size(nhd ? 1 : 2), cache.paged_k_cache.size(3) * 2,
                         cache.paged_v_cache.size(3) * 2};
  if (cache.seq_lens.size(0) != shape.batch) {
    argument_error(name, "seq_lens", text("shape ", shape_text(cache.seq_lens)),
                   text("[", shape.batch, "], the batch of block_tables"),
                   "pass one length for each request");
  }
  if (max_seq_len < 0) {
    argument_error(name, "max_seq_len", text(max_seq_len), "0 or more",
                   "pass the longest sequence length");
  }
  if (cache.block_tables.size(1) * shape.page_size < max_seq_len) {
    argument_error(
        name, "block_tables",
        text("shape ", shape_text(cache.block_tables), " with pages of ", shape.page_size),
        text("pages for ", max_seq_len, " tokens"),
        "pass more pages a request, or a smaller max_seq_len");
  }
  check_int32(name, "max_seq_len", shape.batch * max_seq_len * shape.heads,
              "batch * max_seq_len * heads of");
  return shape;
}

void launch_paged(const PagedCache& cache, const Tensor& output_k, const Tensor& output_v) {
  const char* name = paged_kernel.operator_name();
  const int device = cache.paged_k_cache.get_device_index();
  const TVMFFISafeCallType function = paged_kernel.for_device(device);
  if (output_k.numel() == 0) return;
  LaunchScope scope(name, device);
  const Readable tables = dense(cache.block_tables);
  const Readable lengths = dense(cache.seq_lens);
  call_flashinfer(function, name, dl_tensor(cache.paged_k_cache), dl_tensor(cache.paged_v_cache),
                  dl_tensor(cache.k_block_scales), dl_tensor(cache.v_block_scales),
                  dl_tensor(*tables), dl_tensor(*lengths), dl_tensor(cache.k_scale),
                  dl_tensor(cache.v_scale), dl_tensor(output_k), dl_tensor(output_v),
                  cache.kv_layout);
  scope.check_launch();
}

}  // namespace

NewTensor nvfp4_kv_dequantize(const Tensor& fp4_data, const Tensor& block_scales,
                              const Tensor& global_scale, ScalarType output_dtype) {
  const Layout layout = describe_plain(fp4_data, block_scales, global_scale);
  check_output_dtype(plain_kernel.operator_name(), output_dtype);
  plain_kernel.for_device(fp4_data.get_device_index());
  Tensor out = empty(layout, output_dtype, fp4_data);
  launch_plain(fp4_data, block_scales, global_scale, out);
  return out.release();
}

void nvfp4_kv_dequantize_out(const Tensor& fp4_data, const Tensor& block_scales,
                             const Tensor& global_scale, const Tensor& out) {
  const Layout layout = describe_plain(fp4_data, block_scales, global_scale);
  check_dtype(plain_kernel.operator_name(), "out", out, {ScalarType::Half, ScalarType::BFloat16});
  check_output(plain_kernel.operator_name(), "out", out, layout, out.scalar_type(), "fp4_data",
               fp4_data);
  launch_plain(fp4_data, block_scales, global_scale, out);
}

std::tuple<NewTensor, NewTensor> nvfp4_kv_dequantize_paged(
    const Tensor& paged_k_cache, const Tensor& paged_v_cache, const Tensor& k_block_scales,
    const Tensor& v_block_scales, const Tensor& block_tables, const Tensor& seq_lens,
    const Tensor& k_scale, const Tensor& v_scale, int64_t max_seq_len, ScalarType output_dtype,
    int64_t kv_layout) {
  const PagedCache cache{paged_k_cache, paged_v_cache, k_block_scales, v_block_scales, block_tables,
                         seq_lens,      k_scale,       v_scale,        kv_layout};
  const PagedShape shape = describe_paged(cache, max_seq_len);
  check_output_dtype(paged_kernel.operator_name(), output_dtype);
  paged_kernel.for_device(paged_k_cache.get_device_index());
  // The kernel writes only positions below seq_lens: the others are zero here.
  Tensor output_k = zeros(contiguous({shape.batch, max_seq_len, shape.heads, shape.k_dim}),
                          output_dtype, paged_k_cache);
  Tensor output_v = zeros(contiguous({shape.batch, max_seq_len, shape.heads, shape.v_dim}),
                          output_dtype, paged_k_cache);
  launch_paged(cache, output_k, output_v);
  return {output_k.release(), output_v.release()};
}

void nvfp4_kv_dequantize_paged_out(const Tensor& paged_k_cache, const Tensor& paged_v_cache,
                                   const Tensor& k_block_scales, const Tensor& v_block_scales,
                                   const Tensor& block_tables, const Tensor& seq_lens,
                                   const Tensor& k_scale, const Tensor& v_scale, int64_t kv_layout,
                                   const Tensor& output_k, const Tensor& output_v) {
  const char* name = paged_kernel.operator_name();
  const PagedCache cache{paged_k_cache, paged_v_cache, k_block_scales, v_block_scales, block_tables,
                         seq_lens,      k_scale,       v_scale,        kv_layout};
  check_dtype(name, "output_k", output_k, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(name, "output_k", output_k, {4});
  const int64_t max_seq_len = output_k.size(1);
  const PagedShape shape = describe_paged(cache, max_seq_len);
  check_output(name, "output_k", output_k,
               contiguous({shape.batch, max_seq_len, shape.heads, shape.k_dim}),
               output_k.scalar_type(), "paged_k_cache", paged_k_cache);
  check_output(name, "output_v", output_v,
               contiguous({shape.batch, max_seq_len, shape.heads, shape.v_dim}),
               output_k.scalar_type(), "paged_k_cache", paged_k_cache);
  launch_paged(cache, output_k, output_v);
}

}  // namespace fp4aot
