// cutlass_fused_moe: a mixture of experts in NVFP4, after its router, through FlashInfer's CUTLASS
// runner.
//
// Three modules export it (10.0 and 11.0, 10.3, 12.x), each with our own entry in place of
// FlashInfer's (csrc/modules/nvfp4_moe.cu).
#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/mixture_arguments.h"
#include "operators/mixture_tactics.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "cutlass_fused_moe";
// The kernels load packed values and scales through tensor maps, and rows sixteen bytes at a time.
constexpr std::uintptr_t kAlignment = 32;
constexpr std::uintptr_t kWorkspaceAlignment = 128;

KernelFunction<flashinfer::nvfp4_moe> kernel{kOperator};
KernelFunction<flashinfer::nvfp4_moe_workspace_size> workspace_kernel{
    "_cutlass_fused_moe_workspace_size"};
KernelFunction<flashinfer::nvfp4_moe_tactic_count> tactic_kernel{"_cutlass_fused_moe_tactic_count"};
KernelFunction<flashinfer::nvfp4_moe_tactic_occupancy> occupancy_kernel{
    "_cutlass_fused_moe_tactic_occupancy"};
KernelFunction<flashinfer::nvfp4_moe_profile> profile_kernel{"_cutlass_fused_moe_profile"};

struct Problem : Description<1> {
  Kernel<flashinfer::nvfp4_moe> mix;
  MixtureArguments arguments;
  MixtureSizes sizes;
  const std::optional<Tensor>& workspace;
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

Problem describe(const Tensor& input, const Tensor& token_selected_experts,
                 const std::optional<Tensor>& token_final_scales, const Tensor& fc1_expert_weights,
                 const Tensor& fc2_expert_weights, const Tensor& fc1_act_global_scale,
                 const Tensor& fc1_weight_block_scales, const Tensor& fc1_alpha,
                 const Tensor& fc2_act_global_scale, const Tensor& fc2_weight_block_scales,
                 const Tensor& fc2_alpha, OutputDtype output_dtype,
                 const std::optional<Tensor>& fc1_expert_biases,
                 const std::optional<Tensor>& fc2_expert_biases,
                 const std::optional<Tensor>& input_sf, const std::optional<Tensor>& swiglu_alpha,
                 const std::optional<Tensor>& swiglu_beta,
                 const std::optional<Tensor>& swiglu_limit, int64_t tp_size, int64_t tp_rank,
                 int64_t ep_size, int64_t ep_rank, bool enable_alltoall,
                 std::optional<bool> enable_pdl, int64_t activation_type, bool swizzled_input_sf,
                 bool use_fused_finalize, int64_t gemm1_tactic, int64_t gemm2_tactic,
                 const OutOnly<std::optional<Tensor>>& workspace_buffer) {
  const MixtureArguments arguments{
      .input = input,
      .token_selected_experts = token_selected_experts,
      .token_final_scales = token_final_scales,
      .fc1_weights = fc1_expert_weights,
      .fc2_weights = fc2_expert_weights,
      .fc1_input_scale = fc1_act_global_scale,
      .fc1_block_scales = fc1_weight_block_scales,
      .fc1_alpha = fc1_alpha,
      .fc2_input_scale = fc2_act_global_scale,
      .fc2_block_scales = fc2_weight_block_scales,
      .fc2_alpha = fc2_alpha,
      .fc1_biases = fc1_expert_biases,
      .fc2_biases = fc2_expert_biases,
      .input_scales = input_sf,
      .swiglu_alpha = swiglu_alpha,
      .swiglu_beta = swiglu_beta,
      .swiglu_limit = swiglu_limit,
      .tp_size = tp_size,
      .tp_rank = tp_rank,
      .ep_size = ep_size,
      .ep_rank = ep_rank,
      .enable_alltoall = enable_alltoall,
      .enable_pdl = enable_pdl.value_or(true),
      .activation_type = activation_type,
      .swizzled_input_scales = swizzled_input_sf,
      .fused_finalize = use_fused_finalize,
      .gemm1_tactic = gemm1_tactic,
      .gemm2_tactic = gemm2_tactic,
      .output_dtype = output_dtype.value,
  };
  check_output_dtype(kOperator, "output_dtype", "out", output_dtype);
  const MixtureSizes sizes = check_mixture(arguments);
  check_workspace(workspace_buffer.value, input);
  check_cuda(kOperator, "input", input);
  return {
      {kOperator,
       "input",
       input,
       {Output{"out", contiguous({sizes.tokens, sizes.hidden}), output_dtype.value, kAlignment}}},
      kernel.for_device(input.get_device_index()),
      arguments,
      sizes,
      workspace_buffer.value};
}

// Packed values, which may have come eight at a time, as bytes [experts, rows, bytes].
View packed_bytes(const Tensor& weights) {
  const DLDataType dtype = dl_tensor(weights).dtype;
  const int64_t item = dtype.bits * dtype.lanes / 8;
  return {weights, contiguous({weights.size(0), weights.size(1), weights.size(2) * item}), kBytes};
}

void launch(const Problem& problem, const Tensor& out) {
  const MixtureArguments& a = problem.arguments;
  const MixtureTactics tactics =
      find_mixture_tactics(kOperator, a.input.get_device_index(), a, problem.sizes);
  const Readable fc1_weights = aligned(a.fc1_weights, kAlignment);
  const Readable fc2_weights = aligned(a.fc2_weights, kAlignment);
  const Readable fc1_input_scale = dense(a.fc1_input_scale);
  const Readable fc2_input_scale = dense(a.fc2_input_scale);
  problem.mix(out, dense(a.input, kAlignment), dense(a.input_scales, kAlignment),
              dense(a.token_selected_experts, kAlignment), dense(a.token_final_scales, kAlignment),
              packed_bytes(*fc1_weights), dense(a.fc1_biases, kAlignment),
              packed_bytes(*fc2_weights), dense(a.fc2_biases, kAlignment), flat(*fc1_input_scale),
              aligned(a.fc1_block_scales, kAlignment), dense(a.fc1_alpha), flat(*fc2_input_scale),
              aligned(a.fc2_block_scales, kAlignment), dense(a.fc2_alpha),
              dense(a.swiglu_alpha, kAlignment), dense(a.swiglu_beta, kAlignment),
              dense(a.swiglu_limit, kAlignment), dense(problem.workspace, kAlignment),
              a.swizzled_input_scales, a.tp_size, a.tp_rank, a.ep_size, a.ep_rank,
              a.enable_alltoall, a.fused_finalize, problem.sizes.activation_type, tactics.first,
              tactics.second, a.enable_pdl);
}

// Bytes of workspace that a call on cuda:`device` takes.
int64_t workspace_size(int64_t rows, int64_t hidden_size, int64_t inter_size, int64_t experts_total,
                       int64_t top_k, int64_t tp_size, int64_t tp_rank, int64_t ep_size,
                       int64_t ep_rank, int64_t activation_type, bool bfloat16,
                       bool quantized_input, bool use_fused_finalize, int64_t device) {
  const int index = static_cast<int>(device);
  const auto size = workspace_kernel.for_device(index);
  const LaunchScope scope(workspace_kernel.operator_name(), index);
  return size.integer(rows, hidden_size, inter_size, experts_total, top_k, tp_size, tp_rank,
                      ep_size, ep_rank, activation_type, bfloat16, quantized_input,
                      use_fused_finalize);
}

// How many tactics the first or the second product has on cuda:`device`.
int64_t tactic_count(int64_t gemm, bool use_fused_finalize, int64_t device) {
  const int index = static_cast<int>(device);
  const auto count = tactic_kernel.for_device(index);
  const LaunchScope scope(tactic_kernel.operator_name(), index);
  return count.integer(gemm, use_fused_finalize);
}

// Thread blocks of a tactic that fit on one multiprocessor of cuda:`device`.
int64_t tactic_occupancy(int64_t gemm, int64_t tactic, bool use_fused_finalize, int64_t device) {
  const int index = static_cast<int>(device);
  const auto occupancy = occupancy_kernel.for_device(index);
  const LaunchScope scope(occupancy_kernel.operator_name(), index);
  return occupancy.integer(gemm, tactic, use_fused_finalize);
}

// Runs one product alone with made-up data, for FlashInfer's autotuner to time.
void profile(const Tensor& weights, int64_t gemm, int64_t tactic, bool prepare, int64_t rows,
             int64_t hidden_size, int64_t inter_size, int64_t experts_total, int64_t top_k,
             int64_t tp_size, int64_t tp_rank, int64_t ep_size, int64_t ep_rank,
             int64_t activation_type, bool enable_alltoall, bool biases, bool bfloat16,
             bool quantized_input, bool use_fused_finalize, bool enable_pdl) {
  const char* name = profile_kernel.operator_name();
  check_cuda(name, "weights", weights);
  const int index = weights.get_device_index();
  const auto run = profile_kernel.for_device(index);
  const LaunchScope scope(name, index);
  run(weights, gemm, tactic, prepare, rows, hidden_size, inter_size, experts_total, top_k, tp_size,
      tp_rank, ep_size, ep_rank, activation_type, enable_alltoall, biases, bfloat16,
      quantized_input, use_fused_finalize, enable_pdl);
  scope.check_launch();
}

}  // namespace

FP4AOT_OPERATOR(
    cutlass_fused_moe, describe, launch,
    "Tensor input, Tensor token_selected_experts, Tensor? token_final_scales, "
    "Tensor fc1_expert_weights, Tensor fc2_expert_weights, "
    "Tensor fc1_act_global_scale, Tensor fc1_weight_block_scales, Tensor fc1_alpha, "
    "Tensor fc2_act_global_scale, Tensor fc2_weight_block_scales, Tensor fc2_alpha, "
    "ScalarType output_dtype, Tensor? fc1_expert_biases=None, "
    "Tensor? fc2_expert_biases=None, Tensor? input_sf=None, "
    "Tensor? swiglu_alpha=None, Tensor? swiglu_beta=None, Tensor? swiglu_limit=None, "
    "int tp_size=1, int tp_rank=0, int ep_size=1, int ep_rank=0, "
    "bool enable_alltoall=False, bool? enable_pdl=None, int activation_type=3, "
    "bool swizzled_input_sf=True, bool use_fused_finalize=True, int gemm1_tactic=-1, "
    "int gemm2_tactic=-1",
    // A workspace belongs to the caller, who wants its content no more than the kernels.
    "Tensor(a!)? workspace_buffer=None, Tensor(b!) out", "output_dtype");
FP4AOT_FUNCTION(_cutlass_fused_moe_workspace_size, workspace_size,
                "int rows, int hidden_size, int inter_size, int experts_total, int top_k, "
                "int tp_size, int tp_rank, int ep_size, int ep_rank, int activation_type, "
                "bool bfloat16, bool quantized_input, bool use_fused_finalize, int device",
                "int");
FP4AOT_FUNCTION(_cutlass_fused_moe_tactic_count, tactic_count,
                "int gemm, bool use_fused_finalize, int device", "int");
FP4AOT_FUNCTION(_cutlass_fused_moe_tactic_occupancy, tactic_occupancy,
                "int gemm, int tactic, bool use_fused_finalize, int device", "int");
FP4AOT_FUNCTION(_cutlass_fused_moe_profile, profile,
                "Tensor weights, int gemm, int tactic, bool prepare, int rows, int hidden_size, "
                "int inter_size, int experts_total, int top_k, int tp_size, int tp_rank, "
                "int ep_size, int ep_rank, int activation_type, bool enable_alltoall, "
                "bool biases, bool bfloat16, bool quantized_input, bool use_fused_finalize, "
                "bool enable_pdl",
                "()");

}  // namespace fp4aot
