// FP4 back to float32. `mxfp4_dequantize_host` is FlashInfer's own host code, reached exactly as
// its kernels are; for the other two FlashInfer has host code that would wait for the device.
#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "mxfp4_dequantize_host";

KernelFunction<flashinfer::mxfp4_dequantize_host> kernel{kOperator};

struct Problem : Description<1> {
  static constexpr bool kOnHost = true;
  Kernel<flashinfer::mxfp4_dequantize_host> dequantize;
  const Tensor& scale;
  int64_t group_size;
};

Problem describe(const Tensor& weight, const Tensor& scale, int64_t group_size) {
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
  if (scale.size(0) != n || k % group_size != 0 || scale.size(1) != k / group_size) {
    argument_error(
        kOperator, "scale", text("shape ", shape_text(scale)),
        text("[", n, ", ", k, " / ", group_size, "] for weight of shape ", shape_text(weight)),
        "pass linear scales, one for each group");
  }
  check_int32(kOperator, "weight", n * k, "a number of values of");
  return {{kOperator, "weight", weight, {Output{"out", contiguous({n, k}), ScalarType::Float}}},
          kernel.for_host(),
          scale,
          group_size};
}

void run(const Problem& problem, const Tensor& out) {
  problem.dequantize(dense(problem.input), dense(problem.scale), out, problem.group_size);
}

}  // namespace

FP4AOT_HOST_OPERATOR(mxfp4_dequantize_host, describe, run,
                     "Tensor weight, Tensor scale, int group_size=32", "Tensor(a!) out");
FP4AOT_REFERENCE_OPERATOR(mxfp4_dequantize, "Tensor a_fp4, Tensor a_sf, int sf_layout=0",
                          "Tensor(a!) out");
FP4AOT_REFERENCE_OPERATOR(e2m1_and_ufp8sf_scale_to_float,
                          "Tensor e2m1_tensor, Tensor ufp8_scale_tensor, "
                          "Tensor? global_scale_tensor=None, int sf_vec_size=16, int ufp8_type=1, "
                          "bool is_sf_swizzled_layout=True, bool is_sf_8x4_layout=False",
                          "Tensor(a!) out");

}  // namespace fp4aot
