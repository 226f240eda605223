// cutlass_fused_moe: a mixture of experts in NVFP4, after its router, through FlashInfer's CUTLASS
// runner.
//
// Three modules export it (10.0 and 11.0, 10.3, 12.x), each with our own entry in place of
// FlashInfer's (csrc/modules/nvfp4_moe.cu).
#include "fused_moe.h"

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "flat_view.h"
#include "kernel_table.h"
#include "moe_arguments.h"
#include "moe_tactics.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "cutlass_fused_moe";
// The kernels load packed values and scales through tensor maps, and rows sixteen bytes at a time.
constexpr std::uintptr_t kAlignment = 32;
constexpr std::uintptr_t kWorkspaceAlignment = 128;

KernelFunction kernel{kOperator, "nvfp4_moe"};
KernelFunction workspace_kernel{"_cutlass_fused_moe_workspace_size", "nvfp4_moe_workspace_size"};
KernelFunction tactic_kernel{"_cutlass_fused_moe_tactic_count", "nvfp4_moe_tactic_count"};

// A tensor of bytes with its own last size: packed values that may have come eight at a time.
struct ByteView {
  explicit ByteView(const Tensor& tensor) : view(dl_tensor(tensor)) {
    const int64_t item = view.dtype.bits * view.dtype.lanes / 8;
    for (int32_t i = 0; i < 3; ++i) shape[i] = tensor.size(i);
    shape[2] *= item;
    strides[1] = shape[2];
    strides[0] = shape[1] * shape[2];
    view.dtype = {kDLUInt, 8, 1};
    view.shape = shape;
    view.strides = strides;
  }
  ByteView(const ByteView&) = delete;
  ByteView& operator=(const ByteView&) = delete;

  int64_t shape[3] = {};
  int64_t strides[3] = {0, 0, 1};
  DLTensor view;
};

// An optional tensor as a kernel can read it.
class OptionalReadable {
 public:
  explicit OptionalReadable(const std::optional<Tensor>& tensor) {
    if (!tensor.has_value()) return;
    readable_.emplace(dense(*tensor, kAlignment));
    view_ = dl_tensor(**readable_);
  }
  OptionalReadable(const OptionalReadable&) = delete;
  OptionalReadable& operator=(const OptionalReadable&) = delete;

  OptionalTensor argument() const { return {readable_.has_value() ? &view_ : nullptr}; }

 private:
  std::optional<Readable> readable_;
  DLTensor view_{};
};

void check_workspace(const std::optional<Tensor>& workspace, const Tensor& input) {
  if (!workspace.has_value()) return;
  const char* argument = "workspace_buffer";
  check_dtype(kOperator, argument, *workspace, {ScalarType::Byte, ScalarType::Char});
  check_rank(kOperator, argument, *workspace, {1});
  check_same_device(kOperator, argument, *workspace, "input", input);
  if (!workspace->is_contiguous()) {
    argument_error(kOperator, argument, text("strides ", strides_text(*workspace)),
                   "a contiguous tensor", "pass it as it was allocated");
  }
  if (input.is_cuda() && !is_aligned(*workspace, kWorkspaceAlignment)) {
    argument_error(kOperator, argument, "memory that starts within 128 bytes",
                   "memory that starts at a multiple of 128 bytes", "pass it as it was allocated");
  }
}

void launch(const MoeArguments& a, const MoeSizes& sizes, const std::optional<Tensor>& workspace,
            const Tensor& out) {
  const int device = a.input.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (out.numel() == 0) return;
  const MoeTactics tactics = find_moe_tactics(kOperator, device, a, sizes);
  LaunchScope scope(kOperator, device);
  const Readable input = dense(a.input, kAlignment);
  const Readable experts = dense(a.token_selected_experts, kAlignment);
  const OptionalReadable final_scales(a.token_final_scales);
  const OptionalReadable input_scales(a.input_scales);
  const Readable fc1_weights = aligned(a.fc1_weights, kAlignment);
  const Readable fc2_weights = aligned(a.fc2_weights, kAlignment);
  const ByteView fc1(*fc1_weights);
  const ByteView fc2(*fc2_weights);
  const OptionalReadable fc1_biases(a.fc1_biases);
  const OptionalReadable fc2_biases(a.fc2_biases);
  const Readable fc1_block_scales = aligned(a.fc1_block_scales, kAlignment);
  const Readable fc2_block_scales = aligned(a.fc2_block_scales, kAlignment);
  const Readable fc1_input_scale = dense(a.fc1_input_scale);
  const Readable fc2_input_scale = dense(a.fc2_input_scale);
  const FlatView fc1_input(*fc1_input_scale);
  const FlatView fc2_input(*fc2_input_scale);
  const Readable fc1_alpha = dense(a.fc1_alpha);
  const Readable fc2_alpha = dense(a.fc2_alpha);
  const OptionalReadable swiglu_alpha(a.swiglu_alpha);
  const OptionalReadable swiglu_beta(a.swiglu_beta);
  const OptionalReadable swiglu_limit(a.swiglu_limit);
  const OptionalReadable memory(workspace);
  call_flashinfer(function, kOperator, dl_tensor(out), dl_tensor(*input), input_scales.argument(),
                  dl_tensor(*experts), final_scales.argument(), fc1.view, fc1_biases.argument(),
                  fc2.view, fc2_biases.argument(), fc1_input.view, dl_tensor(*fc1_block_scales),
                  dl_tensor(*fc1_alpha), fc2_input.view, dl_tensor(*fc2_block_scales),
                  dl_tensor(*fc2_alpha), swiglu_alpha.argument(), swiglu_beta.argument(),
                  swiglu_limit.argument(), memory.argument(), a.swizzled_input_scales, a.tp_size,
                  a.tp_rank, a.ep_size, a.ep_rank, a.enable_alltoall, a.fused_finalize,
                  sizes.activation_type, tactics.first, tactics.second, a.enable_pdl);
  scope.check_launch();
}

}  // namespace

NewTensor cutlass_fused_moe(
    const Tensor& input, const Tensor& token_selected_experts,
    const std::optional<Tensor>& token_final_scales, const Tensor& fc1_expert_weights,
    const Tensor& fc2_expert_weights, const Tensor& fc1_act_global_scale,
    const Tensor& fc1_weight_block_scales, const Tensor& fc1_alpha,
    const Tensor& fc2_act_global_scale, const Tensor& fc2_weight_block_scales,
    const Tensor& fc2_alpha, ScalarType output_dtype,
    const std::optional<Tensor>& fc1_expert_biases, const std::optional<Tensor>& fc2_expert_biases,
    const std::optional<Tensor>& input_sf, const std::optional<Tensor>& swiglu_alpha,
    const std::optional<Tensor>& swiglu_beta, const std::optional<Tensor>& swiglu_limit,
    int64_t tp_size, int64_t tp_rank, int64_t ep_size, int64_t ep_rank, bool enable_alltoall,
    std::optional<bool> enable_pdl, int64_t activation_type, bool swizzled_input_sf,
    bool use_fused_finalize, int64_t gemm1_tactic, int64_t gemm2_tactic) {
  const MoeArguments arguments{input,
                               token_selected_experts,
                               token_final_scales,
                               fc1_expert_weights,
                               fc2_expert_weights,
                               fc1_act_global_scale,
                               fc1_weight_block_scales,
                               fc1_alpha,
                               fc2_act_global_scale,
                               fc2_weight_block_scales,
                               fc2_alpha,
                               fc1_expert_biases,
                               fc2_expert_biases,
                               input_sf,
                               swiglu_alpha,
                               swiglu_beta,
                               swiglu_limit,
                               tp_size,
                               tp_rank,
                               ep_size,
                               ep_rank,
                               enable_alltoall,
                               enable_pdl.value_or(true),
                               activation_type,
                               swizzled_input_sf,
                               use_fused_finalize,
                               gemm1_tactic,
                               gemm2_tactic,
                               output_dtype};
  if (!is_one_of(output_dtype, {ScalarType::BFloat16, ScalarType::Half})) {
    argument_error(kOperator, "output_dtype", dtype_name(output_dtype),
                   "torch.bfloat16 or torch.float16", "convert the result instead");
  }
  const MoeSizes sizes = check_moe(arguments);
  check_cuda(kOperator, "input", input);
  kernel.for_device(input.get_device_index());
  Tensor out = empty(contiguous({sizes.tokens, sizes.hidden}), output_dtype, input);
  launch(arguments, sizes, std::nullopt, out);
  return out.release();
}

void cutlass_fused_moe_out(
    const Tensor& input, const Tensor& token_selected_experts,
    const std::optional<Tensor>& token_final_scales, const Tensor& fc1_expert_weights,
    const Tensor& fc2_expert_weights, const Tensor& fc1_act_global_scale,
    const Tensor& fc1_weight_block_scales, const Tensor& fc1_alpha,
    const Tensor& fc2_act_global_scale, const Tensor& fc2_weight_block_scales,
    const Tensor& fc2_alpha, const std::optional<Tensor>& fc1_expert_biases,
    const std::optional<Tensor>& fc2_expert_biases, const std::optional<Tensor>& input_sf,
    const std::optional<Tensor>& swiglu_alpha, const std::optional<Tensor>& swiglu_beta,
    const std::optional<Tensor>& swiglu_limit, int64_t tp_size, int64_t tp_rank, int64_t ep_size,
    int64_t ep_rank, bool enable_alltoall, std::optional<bool> enable_pdl, int64_t activation_type,
    bool swizzled_input_sf, bool use_fused_finalize, int64_t gemm1_tactic, int64_t gemm2_tactic,
    const std::optional<Tensor>& workspace_buffer, const Tensor& out) {
  const MoeArguments arguments{input,
                               token_selected_experts,
                               token_final_scales,
                               fc1_expert_weights,
                               fc2_expert_weights,
                               fc1_act_global_scale,
                               fc1_weight_block_scales,
                               fc1_alpha,
                               fc2_act_global_scale,
                               fc2_weight_block_scales,
                               fc2_alpha,
                               fc1_expert_biases,
                               fc2_expert_biases,
                               input_sf,
                               swiglu_alpha,
                               swiglu_beta,
                               swiglu_limit,
                               tp_size,
                               tp_rank,
                               ep_size,
                               ep_rank,
                               enable_alltoall,
                               enable_pdl.value_or(true),
                               activation_type,
                               swizzled_input_sf,
                               use_fused_finalize,
                               gemm1_tactic,
                               gemm2_tactic,
                               out.scalar_type()};
  check_dtype(kOperator, "out", out, {ScalarType::BFloat16, ScalarType::Half});
  const MoeSizes sizes = check_moe(arguments);
  check_output(kOperator, "out", out, contiguous({sizes.tokens, sizes.hidden}), out.scalar_type(),
               "input", input, kAlignment);
  check_workspace(workspace_buffer, input);
  check_cuda(kOperator, "input", input);
  launch(arguments, sizes, workspace_buffer, out);
}

int64_t cutlass_fused_moe_workspace_size(int64_t rows, int64_t hidden_size, int64_t inter_size,
                                         int64_t experts_total, int64_t top_k, int64_t tp_size,
                                         int64_t tp_rank, int64_t ep_size, int64_t ep_rank,
                                         int64_t activation_type, bool bfloat16,
                                         bool quantized_input, bool use_fused_finalize,
                                         int64_t device) {
  const char* name = workspace_kernel.operator_name();
  const int index = static_cast<int>(device);
  const TVMFFISafeCallType function = workspace_kernel.for_device(index);
  LaunchScope scope(name, index);
  return call_flashinfer_for_int(function, name, rows, hidden_size, inter_size, experts_total,
                                 top_k, tp_size, tp_rank, ep_size, ep_rank, activation_type,
                                 bfloat16, quantized_input, use_fused_finalize);
}

int64_t cutlass_fused_moe_tactic_count(int64_t gemm, bool use_fused_finalize, int64_t device) {
  const char* name = tactic_kernel.operator_name();
  const int index = static_cast<int>(device);
  const TVMFFISafeCallType function = tactic_kernel.for_device(index);
  LaunchScope scope(name, index);
  return call_flashinfer_for_int(function, name, gemm, use_fused_finalize);
}

}  // namespace fp4aot
