// What a module of FlashInfer's CUTLASS mixture of experts exports, in place of
// flashinfer_cutlass_fused_moe_binding.cu, which names every dtype: the NVFP4 runners alone.
//
// The operator (csrc/fused_moe.cpp) has checked every argument: nothing here looks at shapes again
// but for what only a runner knows, the size of its workspace and the number of its tactics.
#include <tvm/ffi/function.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cutlass_kernel_selector.h"
#include "moe_kernels.h"
#include "tensorrt_llm/common/workspace.h"
#include "tvm_ffi_utils.h"

namespace {

namespace common = tensorrt_llm::common;
namespace kernels = CUTLASS_MOE_GEMM_KERNELS_NAMESPACE;
using ActivationParams = CUTLASS_MOE_GEMM_NAMESPACE::ActivationParams;
using ActivationType = CUTLASS_MOE_GEMM_NAMESPACE::ActivationType;
using BlockScale =
    tensorrt_llm::kernels::cutlass_kernels::TmaWarpSpecializedGroupedGemmInput::ElementSF;
using GemmConfig = tensorrt_llm::cutlass_extensions::CutlassGemmConfig;
using kernels::Fp4Type;
using tvm::ffi::Optional;

constexpr int64_t kFirstGemm = 1;
constexpr int64_t kDefaultTactic = -1;

// A runner and the tactics of its two products. FlashInfer's runner keeps the state of a call in
// its members, so calls take turns; they only launch.
class Runner {
 public:
  Runner(std::unique_ptr<kernels::CutlassMoeFCRunnerInterface> runner, bool fused_finalize)
      : runner_(std::move(runner)) {
    // Whether the second product has tactics that add up the experts' results, and what the
    // workspace holds, depends on it.
    runner_->use_fused_finalize_ = fused_finalize;
    tactics_ = {runner_->getTactics(kernels::MoeGemmId::GEMM_1),
                runner_->getTactics(kernels::MoeGemmId::GEMM_2)};
  }

  std::mutex& mutex() { return mutex_; }
  kernels::CutlassMoeFCRunnerInterface& get() { return *runner_; }
  kernels::GemmProfilerBackend& profiler() { return profiler_; }
  // Keeps what the profiler prepared, from one profiled call to the next.
  char* allocate_profile(size_t bytes, DLDevice device) {
    profile_ = alloc_tensor({static_cast<int64_t>(bytes)}, dl_int8, device);
    return profile();
  }
  char* profile() { return static_cast<char*>(profile_.data_ptr()); }
  const std::vector<GemmConfig>& tactics(int64_t gemm) const {
    return tactics_[gemm == kFirstGemm ? 0 : 1];
  }

  const GemmConfig& tactic(int64_t gemm, int64_t number) const {
    const std::vector<GemmConfig>& all = tactics(gemm);
    TVM_FFI_CHECK(!all.empty(), RuntimeError)
        << "the runner has no tactic for product " << gemm << " on this device";
    // FlashInfer's default is the first.
    const int64_t chosen = number == kDefaultTactic ? 0 : number;
    TVM_FFI_CHECK(chosen >= 0 && chosen < static_cast<int64_t>(all.size()), ValueError)
        << "argument 'gemm" << gemm << "_tactic': got " << number << ", expected -1, or 0 to "
        << all.size() - 1 << "; pass -1 to have one chosen";
    return all[chosen];
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<kernels::CutlassMoeFCRunnerInterface> runner_;
  kernels::GemmProfilerBackend profiler_;
  Tensor profile_;
  std::array<std::vector<GemmConfig>, 2> tactics_;
};

template <typename Output>
std::unique_ptr<kernels::CutlassMoeFCRunnerInterface> make_runner(bool quantized_input) {
  if (quantized_input) {
    return std::make_unique<kernels::CutlassMoeFCRunner<Fp4Type, Fp4Type, Output>>();
  }
  return std::make_unique<kernels::CutlassMoeFCRunner<Fp4Type, Fp4Type, Output, Output>>();
}

// The runner for the current device. A runner reads the device's capability and size when it is
// made, on the first call; it is never taken away, for a captured graph may need what it launched.
Runner& runner_for(bool bfloat16, bool quantized_input, bool fused_finalize) {
  constexpr size_t kDevices = 64;
  static std::array<std::array<std::atomic<Runner*>, 8>, kDevices> runners{};
  static std::mutex mutex;
  int device = 0;
  common::check_cuda_error(cudaGetDevice(&device));
  TVM_FFI_CHECK(static_cast<size_t>(device) < kDevices, RuntimeError)
      << "device cuda:" << device << " is beyond the " << kDevices << " that are supported";
  const size_t kind = (bfloat16 ? 4 : 0) + (quantized_input ? 2 : 0) + (fused_finalize ? 1 : 0);
  std::atomic<Runner*>& slot = runners[device][kind];
  if (Runner* found = slot.load(std::memory_order_acquire)) return *found;
  const std::lock_guard<std::mutex> lock(mutex);
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    slot.store(new Runner(bfloat16 ? make_runner<__nv_bfloat16>(quantized_input)
                                   : make_runner<half>(quantized_input),
                          fused_finalize),
               std::memory_order_release);
  }
  return *slot.load(std::memory_order_relaxed);
}

struct Sizes {
  size_t runner;  // what the runner uses itself
  size_t map;     // where each row of each expert came from

  size_t total() const {
    const size_t parts[] = {runner, map};
    return common::calculateTotalWorkspaceSize(parts, 2);
  }
};

Sizes workspace_sizes(Runner& runner, int64_t rows, int64_t hidden_size, int64_t inter_size,
                      int64_t experts_total, int64_t top_k, ActivationType activation,
                      kernels::MOEParallelismConfig parallelism) {
  return {runner.get().getWorkspaceSize(rows, hidden_size, inter_size,
                                        static_cast<int>(experts_total), static_cast<int>(top_k),
                                        activation, parallelism, /*use_lora=*/false,
                                        /*use_deepseek_fp8_block_scale=*/false,
                                        /*use_mxfp8_act_scaling=*/false,
                                        /*min_latency_mode=*/false, /*use_awq=*/false),
          static_cast<size_t>(top_k) * static_cast<size_t>(rows) * sizeof(int)};
}

const void* data(const Optional<TensorView>& tensor) {
  return tensor.has_value() ? tensor.value().data_ptr() : nullptr;
}

const float* floats(const TensorView& tensor) {
  return static_cast<const float*>(tensor.data_ptr());
}

const float* floats(const Optional<TensorView>& tensor) {
  return static_cast<const float*>(data(tensor));
}

const BlockScale* scales(const TensorView& tensor) {
  return static_cast<const BlockScale*>(tensor.data_ptr());
}

// Weights are [experts, rows, bytes] of packed e2m1; what is optional may be None. The block scales
// and weights are contiguous. Experts whose number is on no rank are skipped.
void nvfp4_moe(TensorView output, TensorView input, Optional<TensorView> input_scales,
               TensorView token_selected_experts, Optional<TensorView> token_final_scales,
               TensorView fc1_weights, Optional<TensorView> fc1_biases, TensorView fc2_weights,
               Optional<TensorView> fc2_biases, TensorView fc1_input_scale,
               TensorView fc1_block_scales, TensorView fc1_alpha, TensorView fc2_input_scale,
               TensorView fc2_block_scales, TensorView fc2_alpha, Optional<TensorView> swiglu_alpha,
               Optional<TensorView> swiglu_beta, Optional<TensorView> swiglu_limit,
               Optional<TensorView> workspace, bool swizzled_input_scales, int64_t tp_size,
               int64_t tp_rank, int64_t ep_size, int64_t ep_rank, bool enable_alltoall,
               bool fused_finalize, int64_t activation_type, int64_t gemm1_tactic,
               int64_t gemm2_tactic, bool enable_pdl) {
  const bool quantized_input = input_scales.has_value();
  const bool bfloat16 = output.dtype() == dl_bfloat16;
  const int64_t rows = input.size(0);
  const int64_t top_k = token_selected_experts.size(1);
  const int64_t hidden_size = fc2_weights.size(1);
  const int64_t inter_size = fc2_weights.size(2) * 2;
  const int64_t experts_total = fc2_weights.size(0) * ep_size;
  const auto activation = static_cast<ActivationType>(activation_type);
  const kernels::MOEParallelismConfig parallelism(
      static_cast<int>(tp_size), static_cast<int>(tp_rank), static_cast<int>(ep_size),
      static_cast<int>(ep_rank));
  Runner& runner = runner_for(bfloat16, quantized_input, fused_finalize);
  const std::lock_guard<std::mutex> lock(runner.mutex());
  const Sizes sizes = workspace_sizes(runner, rows, hidden_size, inter_size, experts_total, top_k,
                                      activation, parallelism);
  Tensor allocated;
  char* memory = nullptr;
  if (workspace.has_value()) {
    const auto bytes = static_cast<size_t>(workspace.value().size(0));
    TVM_FFI_CHECK(bytes >= sizes.total(), ValueError)
        << "argument 'workspace_buffer': got " << bytes << " bytes, expected at least "
        << sizes.total() << " for " << rows << " tokens; allocate what "
        << "cutlass_fused_moe_workspace_size returns for the largest number of tokens";
    memory = static_cast<char*>(workspace.value().data_ptr());
  } else {
    allocated = alloc_tensor({static_cast<int64_t>(sizes.total())}, dl_int8, input.device());
    memory = static_cast<char*>(allocated.data_ptr());
  }
  auto* map = reinterpret_cast<int*>(
      common::nextWorkspacePtr(reinterpret_cast<int8_t*>(memory), sizes.runner));
  runner.get().setTactic(runner.tactic(1, gemm1_tactic), runner.tactic(2, gemm2_tactic));
  const ActivationParams activation_params(activation, floats(swiglu_alpha), floats(swiglu_beta),
                                           floats(swiglu_limit));
  const auto quantization = kernels::QuantParams::FP4(
      floats(fc1_input_scale), scales(fc1_block_scales), floats(fc1_alpha), floats(fc2_input_scale),
      scales(fc2_block_scales), floats(fc2_alpha),
      /*fc1_use_per_expert_act_scale=*/fc1_input_scale.size(0) != 1,
      /*fc2_use_per_expert_act_scale=*/fc2_input_scale.size(0) != 1);
  tensorrt_llm::kernels::LoraParams no_lora{};
  kernels::MoeMinLatencyParams no_min_latency{};
  runner.get().runMoe(
      input.data_ptr(), data(input_scales), swizzled_input_scales,
      static_cast<const int*>(token_selected_experts.data_ptr()), floats(token_final_scales),
      fc1_weights.data_ptr(), data(fc1_biases), activation_params, fc2_weights.data_ptr(),
      data(fc2_biases), quantization, rows, hidden_size, /*unpadded_hidden_size=*/hidden_size,
      inter_size, static_cast<int>(experts_total), static_cast<int>(top_k), memory,
      output.data_ptr(), map, parallelism, enable_alltoall, /*use_lora=*/false, no_lora,
      /*use_deepseek_fp8_block_scale=*/false, /*use_mxfp8_act_scaling=*/false,
      /*min_latency_mode=*/false, no_min_latency, enable_pdl, get_stream(input.device()));
}

int64_t nvfp4_moe_workspace_size(int64_t rows, int64_t hidden_size, int64_t inter_size,
                                 int64_t experts_total, int64_t top_k, int64_t tp_size,
                                 int64_t tp_rank, int64_t ep_size, int64_t ep_rank,
                                 int64_t activation_type, bool bfloat16, bool quantized_input,
                                 bool fused_finalize) {
  const kernels::MOEParallelismConfig parallelism(
      static_cast<int>(tp_size), static_cast<int>(tp_rank), static_cast<int>(ep_size),
      static_cast<int>(ep_rank));
  Runner& runner = runner_for(bfloat16, quantized_input, fused_finalize);
  const std::lock_guard<std::mutex> lock(runner.mutex());
  const Sizes sizes = workspace_sizes(runner, rows, hidden_size, inter_size, experts_total, top_k,
                                      static_cast<ActivationType>(activation_type), parallelism);
  return static_cast<int64_t>(sizes.total());
}

// Runs one product alone, as FlashInfer's autotuner times it: on data and routings that
// FlashInfer's profiler makes up, but for the weights. `prepare` makes them, and must come first.
void nvfp4_moe_profile(TensorView weights, int64_t gemm, int64_t tactic, bool prepare, int64_t rows,
                       int64_t hidden_size, int64_t inter_size, int64_t experts_total,
                       int64_t top_k, int64_t tp_size, int64_t tp_rank, int64_t ep_size,
                       int64_t ep_rank, int64_t activation_type, bool enable_alltoall, bool biases,
                       bool bfloat16, bool quantized_input, bool fused_finalize, bool enable_pdl) {
  Runner& runner = runner_for(bfloat16, quantized_input, fused_finalize);
  const std::lock_guard<std::mutex> lock(runner.mutex());
  const GemmConfig& config = runner.tactic(gemm, tactic);
  const cudaStream_t stream = get_stream(weights.device());
  kernels::GemmProfilerBackend& profiler = runner.profiler();
  const int tokens = static_cast<int>(rows);
  if (prepare) {
    profiler.mGemmToProfile =
        gemm == kFirstGemm ? kernels::MoeGemmId::GEMM_1 : kernels::MoeGemmId::GEMM_2;
    profiler.init(
        runner.get(), profiler.mGemmToProfile, nvinfer1::DataType::kINT64,
        nvinfer1::DataType::kINT64,
        bfloat16 ? nvinfer1::DataType::kBF16 : nvinfer1::DataType::kHALF,
        static_cast<int>(experts_total), static_cast<int>(top_k), hidden_size,
        /*unpadded_hidden_size=*/hidden_size, inter_size, /*group_size=*/-1,
        static_cast<ActivationType>(activation_type), biases, /*use_lora=*/false,
        /*min_latency_mode=*/false, /*need_weights=*/false,
        kernels::MOEParallelismConfig(static_cast<int>(tp_size), static_cast<int>(tp_rank),
                                      static_cast<int>(ep_size), static_cast<int>(ep_rank)),
        enable_alltoall);
    char* workspace = runner.allocate_profile(profiler.getWorkspaceSize(tokens), weights.device());
    profiler.prepare(tokens, workspace, weights.data_ptr(), enable_pdl, stream);
  }
  profiler.runProfiler(tokens, config, runner.profile(), weights.data_ptr(), enable_pdl, stream);
}

int64_t nvfp4_moe_tactic_count(int64_t gemm, bool fused_finalize) {
  return static_cast<int64_t>(
      runner_for(/*bfloat16=*/true, /*quantized_input=*/true, fused_finalize).tactics(gemm).size());
}

// Thread blocks of a tactic that fit on one multiprocessor: none where the device cannot run it.
int64_t nvfp4_moe_tactic_occupancy(int64_t gemm, int64_t tactic, bool fused_finalize) {
  Runner& runner = runner_for(/*bfloat16=*/true, /*quantized_input=*/true, fused_finalize);
  const std::lock_guard<std::mutex> lock(runner.mutex());
  return static_cast<int64_t>(runner.get().queryOccupancyForConfig(runner.tactic(gemm, tactic)));
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(nvfp4_moe, nvfp4_moe);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nvfp4_moe_workspace_size, nvfp4_moe_workspace_size);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nvfp4_moe_tactic_count, nvfp4_moe_tactic_count);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nvfp4_moe_profile, nvfp4_moe_profile);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(nvfp4_moe_tactic_occupancy, nvfp4_moe_tactic_occupancy);
