// mxfp4_dequantize_host: FlashInfer's own host code, reached exactly as its kernels are.
#include "dequantize_host.h"

#include "checks.h"
#include "errors.h"
#include "kernel_table.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "mxfp4_dequantize_host";

KernelFunction kernel{kOperator, "mxfp4_dequantize_host"};

std::vector<int64_t> describe(const Tensor& weight, const Tensor& scale, int64_t group_size) {
  check_dtype(kOperator, "weight", weight, {ScalarType::Byte});
  check_rank(kOperator, "weight", weight, {2});
  check_dtype(kOperator, "scale", scale, {ScalarType::Byte});
  check_rank(kOperator, "scale", scale, {2});
  check_same_device(kOperator, "scale", scale, "weight", weight);
  if (group_size < 1) {
    argument_error(kOperator, "group_size", text(group_size), "a positive number", "MXFP4 uses 32");
  }
  const int64_t n = weight.size(0);
  const int64_t k = weight.size(1) * 2;
  if (scale.size(0) != n || scale.size(1) * group_size != k) {
    argument_error(
        kOperator, "scale", text("shape ", shape_text(scale)),
        text("[", n, ", ", k, " / ", group_size, "] for weight of shape ", shape_text(weight)),
        "pass linear scales, one for each group");
  }
  check_int32(kOperator, "weight", n * k, "a number of values of");
  return {n, k};
}

void run(const Tensor& weight, const Tensor& scale, int64_t group_size, const Tensor& out) {
  const TVMFFISafeCallType function = kernel.for_host();
  if (out.numel() == 0) return;
  const Tensor dense_weight = dense(weight);
  const Tensor dense_scale = dense(scale);
  call_flashinfer(function, kOperator, dl_tensor(dense_weight), dl_tensor(dense_scale),
                  dl_tensor(out), group_size);
}

}  // namespace

Tensor mxfp4_dequantize_host(Tensor weight, Tensor scale, int64_t group_size) {
  const std::vector<int64_t> sizes = describe(weight, scale, group_size);
  Tensor out = empty_strided(sizes, contiguous_strides(sizes), ScalarType::Float, weight);
  run(weight, scale, group_size, out);
  return out;
}

void mxfp4_dequantize_host_out(Tensor weight, Tensor scale, int64_t group_size, Tensor out) {
  const std::vector<int64_t> sizes = describe(weight, scale, group_size);
  check_output(kOperator, "out", out, sizes, contiguous_strides(sizes), ScalarType::Float, "weight",
               weight);
  run(weight, scale, group_size, out);
}

}  // namespace fp4aot
