// Block scales from the linear layout into the 128x4 swizzled layout, and back.
#include "interleave.h"

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "kernel_table.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

KernelFunction interleave_kernel{"block_scale_interleave", "block_scale_interleave_sm100"};
KernelFunction reverse_kernel{"block_scale_interleave_reverse",
                              "block_scale_interleave_reverse_sm100"};

int64_t interleaved_size(const Tensor& scales) {
  const int64_t experts = scales.dim() == 3 ? scales.size(0) : 1;
  return experts * round_up(scales.size(-2), 128) * round_up(scales.size(-1), 4);
}

void check_interleave(const Tensor& scales) {
  const char* name = interleave_kernel.operator_name();
  check_dtype(name, "unswizzled_sf", scales, {ScalarType::Byte, ScalarType::BFloat16});
  check_rank(name, "unswizzled_sf", scales, {2, 3});
  check_int32(name, "unswizzled_sf", interleaved_size(scales), "a padded number of scales of");
}

void check_reverse(const Tensor& scales) {
  const char* name = reverse_kernel.operator_name();
  check_dtype(name, "interleaved_sf", scales, {ScalarType::Byte});
  check_rank(name, "interleaved_sf", scales, {2, 3});
  if (scales.size(-2) % 128 != 0 || scales.size(-1) % 4 != 0) {
    argument_error(name, "interleaved_sf", text("shape ", shape_text(scales)),
                   "rows divisible by 128 and columns divisible by 4",
                   "pass the padded shape that block_scale_interleave produced");
  }
  check_int32(name, "interleaved_sf", scales.numel(), "a number of scales of");
}

void launch(KernelFunction& kernel, const Tensor& scales, const Tensor& out) {
  const int device = scales.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (out.numel() == 0) return;
  LaunchScope scope(kernel.operator_name(), device);
  const Readable input = dense(scales);
  call_flashinfer(function, kernel.operator_name(), dl_tensor(*input), dl_tensor(out));
  scope.check_launch();
}

}  // namespace

NewTensor block_scale_interleave(const Tensor& unswizzled_sf) {
  check_interleave(unswizzled_sf);
  interleave_kernel.for_device(unswizzled_sf.get_device_index());
  Tensor out = empty(contiguous({interleaved_size(unswizzled_sf)}), unswizzled_sf.scalar_type(),
                     unswizzled_sf);
  launch(interleave_kernel, unswizzled_sf, out);
  return out.release();
}

void block_scale_interleave_out(const Tensor& unswizzled_sf, const Tensor& out) {
  check_interleave(unswizzled_sf);
  check_cuda(interleave_kernel.operator_name(), "unswizzled_sf", unswizzled_sf);
  check_output(interleave_kernel.operator_name(), "out", out,
               contiguous({interleaved_size(unswizzled_sf)}), unswizzled_sf.scalar_type(),
               "unswizzled_sf", unswizzled_sf);
  launch(interleave_kernel, unswizzled_sf, out);
}

NewTensor block_scale_interleave_reverse(const Tensor& interleaved_sf) {
  check_reverse(interleaved_sf);
  reverse_kernel.for_device(interleaved_sf.get_device_index());
  Tensor out = empty(contiguous(interleaved_sf.sizes()), ScalarType::Byte, interleaved_sf);
  launch(reverse_kernel, interleaved_sf, out);
  return out.release();
}

void block_scale_interleave_reverse_out(const Tensor& interleaved_sf, const Tensor& out) {
  check_reverse(interleaved_sf);
  check_cuda(reverse_kernel.operator_name(), "interleaved_sf", interleaved_sf);
  check_output(reverse_kernel.operator_name(), "out", out, contiguous(interleaved_sf.sizes()),
               ScalarType::Byte, "interleaved_sf", interleaved_sf);
  launch(reverse_kernel, interleaved_sf, out);
}

}  // namespace fp4aot
