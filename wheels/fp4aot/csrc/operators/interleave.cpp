// Block scales from the linear layout into the 128x4 swizzled layout, and back.
#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

KernelFunction<flashinfer::block_scale_interleave_sm100> interleave_kernel{
    "block_scale_interleave"};
KernelFunction<flashinfer::block_scale_interleave_reverse_sm100> reverse_kernel{
    "block_scale_interleave_reverse"};

template <typename Function>
struct Problem : Description<1> {
  Kernel<Function> reorder;
};

template <typename Function>
Problem<Function> describe(KernelFunction<Function>& kernel, const char* argument,
                           const Tensor& scales, const Dims& sizes) {
  check_cuda(kernel.operator_name(), argument, scales);
  return {{kernel.operator_name(),
           argument,
           scales,
           {Output{"out", contiguous(sizes), scales.scalar_type()}}},
          kernel.for_device(scales.get_device_index())};
}

auto describe_interleave(const Tensor& unswizzled_sf) {
  constexpr const char* kArgument = "unswizzled_sf";
  const char* name = interleave_kernel.operator_name();
  check_dtype(name, kArgument, unswizzled_sf, {ScalarType::Byte, ScalarType::BFloat16});
  check_rank(name, kArgument, unswizzled_sf, {2, 3});
  const int64_t experts = unswizzled_sf.dim() == 3 ? unswizzled_sf.size(0) : 1;
  const int64_t size =
      experts * round_up(unswizzled_sf.size(-2), 128) * round_up(unswizzled_sf.size(-1), 4);
  check_int32(name, kArgument, size, "a padded number of scales of");
  return describe(interleave_kernel, kArgument, unswizzled_sf, {size});
}

auto describe_reverse(const Tensor& interleaved_sf) {
  constexpr const char* kArgument = "interleaved_sf";
  const char* name = reverse_kernel.operator_name();
  check_dtype(name, kArgument, interleaved_sf, {ScalarType::Byte});
  check_rank(name, kArgument, interleaved_sf, {2, 3});
  if (interleaved_sf.size(-2) % 128 != 0 || interleaved_sf.size(-1) % 4 != 0) {
    argument_error(name, kArgument, text("shape ", shape_text(interleaved_sf)),
                   "rows divisible by 128 and columns divisible by 4",
                   "pass the padded shape that block_scale_interleave produced");
  }
  check_int32(name, kArgument, interleaved_sf.numel(), "a number of scales of");
  return describe(reverse_kernel, kArgument, interleaved_sf, interleaved_sf.sizes());
}

template <typename Function>
void launch(const Problem<Function>& problem, const Tensor& out) {
  problem.reorder(dense(problem.input), out);
}

}  // namespace

FP4AOT_OPERATOR(block_scale_interleave, describe_interleave,
                launch<flashinfer::block_scale_interleave_sm100>, "Tensor unswizzled_sf",
                "Tensor(a!) out");
FP4AOT_OPERATOR(block_scale_interleave_reverse, describe_reverse,
                launch<flashinfer::block_scale_interleave_reverse_sm100>, "Tensor interleaved_sf",
                "Tensor(a!) out");

}  // namespace fp4aot
