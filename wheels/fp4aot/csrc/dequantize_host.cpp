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

Layout describe(const Tensor& weight, const Tensor& scale, int64_t group_size) {
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
  return contiguous({n, k});
}

void run(const Tensor& weight, const Tensor& scale, int64_t group_size, const Tensor& out) {
  const TVMFFISafeCallType function = kernel.for_host();
  if (out.numel() == 0) return;
  const Readable dense_weight = dense(weight);
  const Readable dense_scale = dense(scale);
  call_flashinfer(function, kOperator, dl_tensor(*dense_weight), dl_tensor(*dense_scale),
                  dl_tensor(out), group_size);
}

}  // namespace

NewTensor mxfp4_dequantize_host(const Tensor& weight, const Tensor& scale, int64_t group_size) {
  const Layout layout = describe(weight, scale, group_size);
  Tensor out = empty(layout, ScalarType::Float, weight);
  run(weight, scale, group_size, out);
  return out.release();
}

void mxfp4_dequantize_host_out(const Tensor& weight, const Tensor& scale, int64_t group_size,
                               const Tensor& out) {
  const Layout layout = describe(weight, scale, group_size);
  check_output(kOperator, "out", out, layout, ScalarType::Float, "weight", weight);
  run(weight, scale, group_size, out);
}

}  // namespace fp4aot
