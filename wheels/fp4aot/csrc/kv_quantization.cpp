// fp16 or bf16 rows to an NVFP4 KV cache with linear block scales.
#include "kv_quantization.h"

#include <algorithm>
#include <limits>

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "kernel_table.h"
#include "row_view.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "nvfp4_kv_quantize";
constexpr int64_t kBlock = 16;  // values that share one block scale
// The kernel loads two values at once.
constexpr std::uintptr_t kInputAlignment = 4;

KernelFunction kernel{kOperator, "nvfp4_kv_quant"};

struct Results {
  Layout values;
  Layout scales;
};

Results describe(const Tensor& input, const Tensor& global_scale) {
  check_dtype(kOperator, "input", input, {ScalarType::Half, ScalarType::BFloat16});
  check_rank(kOperator, "input", input, {2});
  check_blocks(kOperator, "input", input);
  check_int32(kOperator, "input", input.size(1), "a number of columns of");
  check_scalar_scale(kOperator, "global_scale", global_scale, "input", input);
  check_cuda(kOperator, "input", input);
  return {contiguous({input.size(0), input.size(1) / 2}),
          contiguous({input.size(0), input.size(1) / kBlock})};
}

void launch(const Tensor& input, const Tensor& global_scale, const Tensor& fp4_output,
            const Tensor& block_scales) {
  const int device = input.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (input.numel() == 0) return;
  LaunchScope scope(kOperator, device);
  const Readable readable = dense(input, kInputAlignment);
  const int64_t m = input.size(0);
  const int64_t k = input.size(1);
  // The kernel's offsets are 32-bit integers: no part has more values.
  const int64_t part = std::numeric_limits<int32_t>::max() / k;
  for (int64_t first = 0; first < m; first += part) {
    const int64_t rows = std::min(part, m - first);
    const RowView values(*readable, first, rows, k);
    const RowView packed(fp4_output, first, rows, k / 2);
    const RowView scales(block_scales, first, rows, k / kBlock);
    call_flashinfer(function, kOperator, values.view, dl_tensor(global_scale), packed.view,
                    scales.view);
    scope.check_launch();
  }
}

}  // namespace

std::tuple<NewTensor, NewTensor> nvfp4_kv_quantize(const Tensor& input,
                                                   const Tensor& global_scale) {
  const Results results = describe(input, global_scale);
  kernel.for_device(input.get_device_index());
  Tensor fp4_output = empty(results.values, ScalarType::Byte, input);
  Tensor block_scales = empty(results.scales, ScalarType::Byte, input);
  launch(input, global_scale, fp4_output, block_scales);
  return {fp4_output.release(), block_scales.release()};
}

void nvfp4_kv_quantize_out(const Tensor& input, const Tensor& global_scale,
                           const Tensor& fp4_output, const Tensor& block_scales) {
  const Results results = describe(input, global_scale);
  check_output(kOperator, "fp4_output", fp4_output, results.values, ScalarType::Byte, "input",
               input);
  check_output(kOperator, "block_scales", block_scales, results.scales, ScalarType::Byte, "input",
               input);
  launch(input, global_scale, fp4_output, block_scales);
}

}  // namespace fp4aot
