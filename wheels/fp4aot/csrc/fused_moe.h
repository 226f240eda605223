// cutlass_fused_moe: a mixture of experts in NVFP4, after its router.
#pragma once

#include <optional>

#include "tensor.h"

namespace fp4aot {

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
    bool use_fused_finalize, int64_t gemm1_tactic, int64_t gemm2_tactic);

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
    const std::optional<Tensor>& workspace_buffer, const Tensor& out);

// Bytes of workspace that a call on cuda:`device` takes.
int64_t cutlass_fused_moe_workspace_size(int64_t rows, int64_t hidden_size, int64_t inter_size,
                                         int64_t experts_total, int64_t top_k, int64_t tp_size,
                                         int64_t tp_rank, int64_t ep_size, int64_t ep_rank,
                                         int64_t activation_type, bool bfloat16,
                                         bool quantized_input, bool use_fused_finalize,
                                         int64_t device);

// How many tactics the first or the second product has on cuda:`device`.
int64_t cutlass_fused_moe_tactic_count(int64_t gemm, bool use_fused_finalize, int64_t device);

}  // namespace fp4aot
