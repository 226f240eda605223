// The operators: schemas, and which C++ function runs them on which dispatch key.
//
// Names, argument order and defaults follow FlashInfer's public API. The CPU implementations and
// the fakes are registered from Python (fp4aot._registration); the two operators for which
// FlashInfer has no device kernel, e2m1_and_ufp8sf_scale_to_float and mxfp4_dequantize, have no C++
// here. An `.out` overload declares its mutations and returns nothing, so that torch can
// functionalize it.
#include <cuda_runtime_api.h>
#include <torch/csrc/stable/library.h>

#include "batched_quantization.h"
#include "dequantize_host.h"
#include "fused_moe.h"
#include "gemm.h"
#include "gemm_tactics.h"
#include "group_gemm.h"
#include "interleave.h"
#include "kernel_table.h"
#include "kv_cache.h"
#include "kv_quantization.h"
#include "moe_tactics.h"
#include "per_token_quantization.h"
#include "quantization.h"

namespace {

// CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 without a driver.
int64_t cuda_driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  return version;
}

int64_t cuda_runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

bool has_kernel(std::string function, int64_t major, int64_t minor) {
  return fp4aot::find_kernel(function.c_str(),
                             {static_cast<int>(major), static_cast<int>(minor)}) != nullptr;
}

}  // namespace

#define FP4_QUANTIZE_ARGUMENTS                                                             \
  "Tensor input, Tensor? global_scale=None, int sf_vec_size=16, bool sf_use_ue8m0=False, " \
  "bool is_sf_swizzled_layout=True, bool is_sf_8x4_layout=False, "                         \
  "bool is_global_scale_inversed=False, bool? enable_pdl=None, int nvfp4_4over6=0"
#define SCALE_TO_FLOAT_ARGUMENTS                                                     \
  "Tensor e2m1_tensor, Tensor ufp8_scale_tensor, Tensor? global_scale_tensor=None, " \
  "int sf_vec_size=16, int ufp8_type=1, bool is_sf_swizzled_layout=True, "           \
  "bool is_sf_8x4_layout=False"
#define QUANTIZED_OUT ", *, Tensor(a!) values, Tensor(b!) block_scales) -> ()"
#define PER_TOKEN_ARGUMENTS                                                                     \
  "Tensor input, float scale_inv, Tensor? expanded_idx_to_permuted_idx=None, int sf_layout=0, " \
  "int nvfp4_4over6=0"
#define BATCHED_ARGUMENTS "Tensor a, Tensor a_global_sf, int sf_vec_size=16, int nvfp4_4over6=0"
#define EXPERTS_ARGUMENTS "Tensor a, Tensor mask, Tensor a_global_sf, int nvfp4_4over6=0"
#define GEMM_ARGUMENTS "Tensor a, Tensor b, Tensor a_descale, Tensor b_descale, Tensor? alpha"
#define MOE_ARGUMENTS                                                               \
  "Tensor input, Tensor token_selected_experts, Tensor? token_final_scales, "       \
  "Tensor fc1_expert_weights, Tensor fc2_expert_weights, "                          \
  "Tensor fc1_act_global_scale, Tensor fc1_weight_block_scales, Tensor fc1_alpha, " \
  "Tensor fc2_act_global_scale, Tensor fc2_weight_block_scales, Tensor fc2_alpha"
#define MOE_OPTIONS                                                                          \
  "Tensor? fc1_expert_biases=None, Tensor? fc2_expert_biases=None, Tensor? input_sf=None, "  \
  "Tensor? swiglu_alpha=None, Tensor? swiglu_beta=None, Tensor? swiglu_limit=None, "         \
  "int tp_size=1, int tp_rank=0, int ep_size=1, int ep_rank=0, bool enable_alltoall=False, " \
  "bool? enable_pdl=None, int activation_type=3, bool swizzled_input_sf=True, "              \
  "bool use_fused_finalize=True, int gemm1_tactic=-1, int gemm2_tactic=-1"
#define MOE_SIZES                                                                          \
  "int rows, int hidden_size, int inter_size, int experts_total, int top_k, int tp_size, " \
  "int tp_rank, int ep_size, int ep_rank, int activation_type, bool bfloat16, "            \
  "bool quantized_input, bool use_fused_finalize, int device"
#define GROUP_ARGUMENTS "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor m_indptr"
#define TILES "int tile_m=128, int tile_n=128, int tile_k=128, bool swap_ab=True"
#define PAGED_CACHE_ARGUMENTS                                           \
  "Tensor paged_k_cache, Tensor paged_v_cache, Tensor k_block_scales, " \
  "Tensor v_block_scales, Tensor block_tables, Tensor seq_lens, Tensor k_scale, Tensor v_scale"

STABLE_TORCH_LIBRARY(fp4aot, library) {
  library.def("fp4_quantize(" FP4_QUANTIZE_ARGUMENTS ") -> (Tensor, Tensor)");
  library.def("fp4_quantize.out(" FP4_QUANTIZE_ARGUMENTS QUANTIZED_OUT);
  library.def("block_scale_interleave(Tensor unswizzled_sf) -> Tensor");
  library.def("block_scale_interleave.out(Tensor unswizzled_sf, *, Tensor(a!) out) -> ()");
  library.def("block_scale_interleave_reverse(Tensor interleaved_sf) -> Tensor");
  library.def("block_scale_interleave_reverse.out(Tensor interleaved_sf, *, Tensor(a!) out) -> ()");
  library.def("e2m1_and_ufp8sf_scale_to_float(" SCALE_TO_FLOAT_ARGUMENTS ") -> Tensor");
  library.def("e2m1_and_ufp8sf_scale_to_float.out(" SCALE_TO_FLOAT_ARGUMENTS
              ", *, Tensor(a!) out) -> ()");
  library.def("mxfp4_dequantize(Tensor a_fp4, Tensor a_sf, int sf_layout=0) -> Tensor");
  library.def(
      "mxfp4_dequantize.out(Tensor a_fp4, Tensor a_sf, int sf_layout=0, *, Tensor(a!) out) -> ()");
  library.def("mxfp4_dequantize_host(Tensor weight, Tensor scale, int group_size=32) -> Tensor");
  library.def(
      "mxfp4_dequantize_host.out(Tensor weight, Tensor scale, int group_size=32, *, "
      "Tensor(a!) out) -> ()");
  library.def(
      "nvfp4_kv_dequantize(Tensor fp4_data, Tensor block_scales, Tensor global_scale, "
      "ScalarType output_dtype) -> Tensor");
  library.def(
      "nvfp4_kv_dequantize.out(Tensor fp4_data, Tensor block_scales, Tensor global_scale, *, "
      "Tensor(a!) out) -> ()");
  library.def("nvfp4_kv_dequantize_paged(" PAGED_CACHE_ARGUMENTS
              ", int max_seq_len, ScalarType output_dtype, int kv_layout) -> (Tensor, Tensor)");
  library.def("nvfp4_kv_dequantize_paged.out(" PAGED_CACHE_ARGUMENTS
              ", int kv_layout, *, Tensor(a!) output_k, Tensor(b!) output_v) -> ()");

  library.def("nvfp4_kv_quantize(Tensor input, Tensor global_scale) -> (Tensor, Tensor)");
  library.def(
      "nvfp4_kv_quantize.out(Tensor input, Tensor global_scale, *, Tensor(a!) fp4_output, "
      "Tensor(b!) block_scales) -> ()");
  library.def("nvfp4_quantize_per_token(" PER_TOKEN_ARGUMENTS ") -> (Tensor, Tensor, Tensor)");
  library.def("nvfp4_quantize_per_token.out(" PER_TOKEN_ARGUMENTS
              ", *, Tensor(a!) values, Tensor(b!) block_scales, Tensor(c!) per_token_scale) -> ()");
  library.def("nvfp4_batched_quantize(" BATCHED_ARGUMENTS ") -> (Tensor, Tensor)");
  library.def("nvfp4_batched_quantize.out(" BATCHED_ARGUMENTS QUANTIZED_OUT);
  library.def("scaled_fp4_grouped_quantize(" EXPERTS_ARGUMENTS ") -> (Tensor, Tensor)");
  library.def("scaled_fp4_grouped_quantize.out(" EXPERTS_ARGUMENTS QUANTIZED_OUT);
  library.def("silu_and_mul_scaled_nvfp4_experts_quantize(" EXPERTS_ARGUMENTS
              ") -> (Tensor, Tensor)");
  library.def("silu_and_mul_scaled_nvfp4_experts_quantize.out(" EXPERTS_ARGUMENTS QUANTIZED_OUT);
  library.def("mm_fp4(" GEMM_ARGUMENTS ", ScalarType out_dtype, int tactic=-1) -> Tensor");
  library.def("mm_fp4.out(" GEMM_ARGUMENTS ", int tactic=-1, *, Tensor(a!) out) -> ()");

  library.def("cutlass_fused_moe(" MOE_ARGUMENTS ", ScalarType output_dtype, " MOE_OPTIONS
              ") -> Tensor");
  // A workspace belongs to the caller, who wants its content no more than the kernels do.
  library.def("cutlass_fused_moe.out(" MOE_ARGUMENTS ", " MOE_OPTIONS
              ", *, Tensor(a!)? workspace_buffer=None, Tensor(b!) out) -> ()");
  library.def("_cutlass_fused_moe_workspace_size(" MOE_SIZES ") -> int");
  library.def(
      "_cutlass_fused_moe_tactic_count(int gemm, bool use_fused_finalize, int device) -> int");
  library.def("group_gemm_nvfp4_nt_groupwise(" GROUP_ARGUMENTS
              ", Tensor? alpha, ScalarType out_dtype, " TILES ") -> Tensor");
  library.def("group_gemm_nvfp4_nt_groupwise.out(" GROUP_ARGUMENTS ", Tensor? alpha, " TILES
              ", *, Tensor(a!) out) -> ()");
  library.def("group_gemm_mxfp8_mxfp4_nt_groupwise(" GROUP_ARGUMENTS
              ", ScalarType out_dtype, int mma_sm=1, " TILES ") -> Tensor");
  library.def("group_gemm_mxfp8_mxfp4_nt_groupwise.out(" GROUP_ARGUMENTS ", int mma_sm=1, " TILES
              ", *, Tensor(a!) out) -> ()");

  // For `python -m fp4aot tune` and the tables that it writes.
  library.def("_mm_fp4_tactic_count(int major, int minor) -> int");
  library.def("_set_mm_fp4_tactics(Tensor table) -> ()");
  library.def("_set_cutlass_fused_moe_tactics(Tensor table) -> ()");

  // For `python -m fp4aot doctor`: what this library's CUDA runtime sees, and what it carries.
  library.def("_cuda_driver_version() -> int");
  library.def("_cuda_runtime_version() -> int");
  library.def("_has_kernel(str function, int major, int minor) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(fp4aot, CUDA, library) {
  library.impl("fp4_quantize", TORCH_BOX(&fp4aot::fp4_quantize));
  library.impl("fp4_quantize.out", TORCH_BOX(&fp4aot::fp4_quantize_out));
  library.impl("block_scale_interleave", TORCH_BOX(&fp4aot::block_scale_interleave));
  library.impl("block_scale_interleave.out", TORCH_BOX(&fp4aot::block_scale_interleave_out));
  library.impl("block_scale_interleave_reverse",
               TORCH_BOX(&fp4aot::block_scale_interleave_reverse));
  library.impl("block_scale_interleave_reverse.out",
               TORCH_BOX(&fp4aot::block_scale_interleave_reverse_out));
  library.impl("nvfp4_kv_dequantize", TORCH_BOX(&fp4aot::nvfp4_kv_dequantize));
  library.impl("nvfp4_kv_dequantize.out", TORCH_BOX(&fp4aot::nvfp4_kv_dequantize_out));
  library.impl("nvfp4_kv_dequantize_paged", TORCH_BOX(&fp4aot::nvfp4_kv_dequantize_paged));
  library.impl("nvfp4_kv_dequantize_paged.out", TORCH_BOX(&fp4aot::nvfp4_kv_dequantize_paged_out));
  library.impl("nvfp4_kv_quantize", TORCH_BOX(&fp4aot::nvfp4_kv_quantize));
  library.impl("nvfp4_kv_quantize.out", TORCH_BOX(&fp4aot::nvfp4_kv_quantize_out));
  library.impl("nvfp4_quantize_per_token", TORCH_BOX(&fp4aot::nvfp4_quantize_per_token));
  library.impl("nvfp4_quantize_per_token.out", TORCH_BOX(&fp4aot::nvfp4_quantize_per_token_out));
  library.impl("nvfp4_batched_quantize", TORCH_BOX(&fp4aot::nvfp4_batched_quantize));
  library.impl("nvfp4_batched_quantize.out", TORCH_BOX(&fp4aot::nvfp4_batched_quantize_out));
  library.impl("scaled_fp4_grouped_quantize", TORCH_BOX(&fp4aot::scaled_fp4_grouped_quantize));
  library.impl("scaled_fp4_grouped_quantize.out",
               TORCH_BOX(&fp4aot::scaled_fp4_grouped_quantize_out));
  library.impl("silu_and_mul_scaled_nvfp4_experts_quantize",
               TORCH_BOX(&fp4aot::silu_and_mul_scaled_nvfp4_experts_quantize));
  library.impl("silu_and_mul_scaled_nvfp4_experts_quantize.out",
               TORCH_BOX(&fp4aot::silu_and_mul_scaled_nvfp4_experts_quantize_out));
  library.impl("mm_fp4", TORCH_BOX(&fp4aot::mm_fp4));
  library.impl("mm_fp4.out", TORCH_BOX(&fp4aot::mm_fp4_out));
  library.impl("group_gemm_nvfp4_nt_groupwise", TORCH_BOX(&fp4aot::group_gemm_nvfp4_nt_groupwise));
  library.impl("group_gemm_nvfp4_nt_groupwise.out",
               TORCH_BOX(&fp4aot::group_gemm_nvfp4_nt_groupwise_out));
  library.impl("group_gemm_mxfp8_mxfp4_nt_groupwise",
               TORCH_BOX(&fp4aot::group_gemm_mxfp8_mxfp4_nt_groupwise));
  library.impl("group_gemm_mxfp8_mxfp4_nt_groupwise.out",
               TORCH_BOX(&fp4aot::group_gemm_mxfp8_mxfp4_nt_groupwise_out));
  library.impl("cutlass_fused_moe", TORCH_BOX(&fp4aot::cutlass_fused_moe));
  library.impl("cutlass_fused_moe.out", TORCH_BOX(&fp4aot::cutlass_fused_moe_out));
}

STABLE_TORCH_LIBRARY_IMPL(fp4aot, CPU, library) {
  library.impl("mxfp4_dequantize_host", TORCH_BOX(&fp4aot::mxfp4_dequantize_host));
  library.impl("mxfp4_dequantize_host.out", TORCH_BOX(&fp4aot::mxfp4_dequantize_host_out));
}

STABLE_TORCH_LIBRARY_IMPL(fp4aot, CompositeExplicitAutograd, library) {
  library.impl("_cuda_driver_version", TORCH_BOX(&cuda_driver_version));
  library.impl("_cuda_runtime_version", TORCH_BOX(&cuda_runtime_version));
  library.impl("_has_kernel", TORCH_BOX(&has_kernel));
  library.impl("_cutlass_fused_moe_workspace_size",
               TORCH_BOX(&fp4aot::cutlass_fused_moe_workspace_size));
  library.impl("_cutlass_fused_moe_tactic_count",
               TORCH_BOX(&fp4aot::cutlass_fused_moe_tactic_count));
  library.impl("_mm_fp4_tactic_count", TORCH_BOX(&fp4aot::mm_fp4_tactic_count));
  library.impl("_set_mm_fp4_tactics", TORCH_BOX(&fp4aot::set_mm_fp4_tactics));
  library.impl("_set_cutlass_fused_moe_tactics", TORCH_BOX(&fp4aot::set_cutlass_fused_moe_tactics));
}
