// The arguments of cutlass_fused_moe, checked, and the sizes that follow from them.
#pragma once

#include <cstdint>
#include <optional>

#include "torch/tensor.h"

namespace fp4aot {

// As they came. E experts of this rank, T tokens, H hidden and I intermediate values.
struct MixtureArguments {
  const Tensor& input;                   // [T, H], or packed [T, H / 2]
  const Tensor& token_selected_experts;  // [T, top_k]
  const std::optional<Tensor>& token_final_scales;
  const Tensor& fc1_weights;  // [E, I or 2 I, H / 2]
  const Tensor& fc2_weights;  // [E, H, I / 2]
  const Tensor& fc1_input_scale;
  const Tensor& fc1_block_scales;
  const Tensor& fc1_alpha;
  const Tensor& fc2_input_scale;
  const Tensor& fc2_block_scales;
  const Tensor& fc2_alpha;
  const std::optional<Tensor>& fc1_biases;
  const std::optional<Tensor>& fc2_biases;
  const std::optional<Tensor>& input_scales;
  const std::optional<Tensor>& swiglu_alpha;
  const std::optional<Tensor>& swiglu_beta;
  const std::optional<Tensor>& swiglu_limit;
  int64_t tp_size, tp_rank, ep_size, ep_rank;
  bool enable_alltoall;
  bool enable_pdl;
  int64_t activation_type;
  bool swizzled_input_scales;
  bool fused_finalize;
  int64_t gemm1_tactic, gemm2_tactic;
  ScalarType output_dtype;
};

struct MixtureSizes {
  int64_t tokens;
  int64_t top_k;
  int64_t hidden;
  int64_t inter;
  int64_t experts;  // of this rank
  bool quantized_input;
  // SwigluBias where Swiglu has parameters.
  int64_t activation_type;
};

// Throws for the first argument that does not fit the others.
MixtureSizes check_mixture(const MixtureArguments& arguments);

}  // namespace fp4aot
