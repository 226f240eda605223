// Grouped GEMMs with block scales, through FlashInfer's CUTLASS kernels: a group is a segment of
// rows of `a` and one matrix of `b`.
//
// NVFP4 has kernels for 12.x alone. Two modules export the MXFP8 by MXFP4 function under one name,
// for 10.x and for 12.x; that of 10.x takes `mma_sm` as well. The segments are known on the device
// alone: no call reads `m_indptr` or waits for the device. FlashInfer's entry points read no
// environment and allocate nothing; all that they keep is a number of multiprocessors for each
// thread.
#include "group_gemm.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "flat_view.h"
#include "kernel_table.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr int64_t kRowTile = 128;    // rows of a tile of scales
constexpr int64_t kMultipleOfN = 8;  // the kernels store 16 bytes at once
constexpr int64_t kMultipleOfK = 128;
// Tensor maps of packed 4-bit values need it where they unpack them to bytes.
constexpr std::uintptr_t kAlignment = 32;
constexpr std::uintptr_t kOutputAlignment = 16;

struct Kernel {
  KernelFunction function;
  bool nvfp4;     // else MXFP8 by MXFP4
  int64_t block;  // values that share one scale

  const char* name() const { return function.operator_name(); }
};

Kernel nvfp4_kernel{{"group_gemm_nvfp4_nt_groupwise", "group_gemm_nvfp4_nt_groupwise"}, true, 16};
Kernel mxfp4_kernel{
    {"group_gemm_mxfp8_mxfp4_nt_groupwise", "group_gemm_mxfp4_nt_groupwise"}, false, 32};

struct Factors {
  const Tensor& a;        // [M, K / 2], or [M, K] of MXFP8
  const Tensor& b;        // [G, N, K / 2]
  const Tensor& a_scale;  // tiles of each group
  const Tensor& b_scale;
  const Tensor& m_indptr;  // [G + 1]
};

struct Tiles {
  int64_t mma_sm;  // multiprocessors that share a tile
  int64_t m, n, k;
  bool swap_ab;
};

struct Problem {
  int64_t groups, m, n, k;
  Layout out;
};

// "32, 64 or 128"
std::string choices_text(std::initializer_list<int64_t> values) {
  std::string result;
  size_t left = values.size();
  for (int64_t value : values) {
    result += text(result.empty() ? "" : left == 1 ? " or " : ", ", value);
    --left;
  }
  return result;
}

// `where` ends the sentence, e.g. " on compute capability 12.0".
void check_choice(const char* name, const char* argument, int64_t value,
                  std::initializer_list<int64_t> accepted, const std::string& where = "") {
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) return;
  argument_error(name, argument, text(value), choices_text(accepted) + where, "leave the default");
}

void check_scales(const Kernel& kernel, const char* argument, const Tensor& scales,
                  const Tensor& a) {
  if (kernel.nvfp4) {
    check_dtype(kernel.name(), argument, scales, {ScalarType::Byte, ScalarType::Float8_e4m3fn});
  } else {
    check_dtype(kernel.name(), argument, scales, {ScalarType::Byte, ScalarType::Float8_e8m0fnu});
  }
  check_same_device(kernel.name(), argument, scales, "a", a);
  if (!scales.is_contiguous()) {
    argument_error(kernel.name(), argument,
                   text("shape ", shape_text(scales), " with strides ", strides_text(scales)),
                   "contiguous scales", "pass them as they were written");
  }
  check_int32(kernel.name(), argument, scales.numel(), "a number of scales of");
}

// The first row of group i's scales is (m_indptr[i] + 127 * i) / 128 * 128, so that every group has
// whole tiles wherever the others begin. This many rows are enough for any segments, and with one
// row in the last group all of them are read.
int64_t scale_rows(const Problem& problem) {
  return (problem.m + problem.groups * (kRowTile - 1)) / kRowTile * kRowTile;
}

void check_scales_of_a(const Kernel& kernel, const Tensor& scales, const Tensor& a,
                       const Problem& problem) {
  check_scales(kernel, "a_scale", scales, a);
  const int64_t columns = problem.k / kernel.block;
  const int64_t needed = scale_rows(problem) * columns;
  if (scales.numel() >= needed) return;
  argument_error(kernel.name(), "a_scale", text(scales.numel(), " scales"),
                 text("at least ", needed, " ((", problem.m, " rows + 127 * ", problem.groups,
                      " groups) / 128 * 128 rows of ", columns, ")"),
                 "start the scales of group i at row (m_indptr[i] + 127 * i) / 128 * 128, and put "
                 "each group's into the 128x4 layout by itself");
}

void check_scales_of_b(const Kernel& kernel, const Tensor& scales, const Tensor& a,
                       const Problem& problem) {
  check_scales(kernel, "b_scale", scales, a);
  const int64_t columns = problem.k / kernel.block;
  const int64_t expected = problem.groups * round_up(problem.n, kRowTile) * columns;
  if (scales.numel() == expected) return;
  argument_error(kernel.name(), "b_scale", text(scales.numel(), " scales"),
                 text(expected, " (layout_128x4 for each of ", problem.groups, " matrices with ",
                      problem.n, " rows of ", problem.k, " values)"),
                 "quantize with the 128x4 layout, each matrix by itself");
}

void check_segments(const Kernel& kernel, const Tensor& m_indptr, const Tensor& a,
                    const Problem& problem) {
  check_dtype(kernel.name(), "m_indptr", m_indptr, {ScalarType::Int});
  if (m_indptr.dim() != 1 || m_indptr.size(0) != problem.groups + 1) {
    argument_error(kernel.name(), "m_indptr", text("shape ", shape_text(m_indptr)),
                   text("[", problem.groups + 1, "], for ", problem.groups, " matrices of 'b'"),
                   "pass the first row of each group, then the number of rows");
  }
  check_same_device(kernel.name(), "m_indptr", m_indptr, "a", a);
}

void check_dtype_of_a(const Kernel& kernel, const Tensor& a) {
  if (kernel.nvfp4) {
    check_dtype(kernel.name(), "a", a, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  } else {
    check_dtype(kernel.name(), "a", a, {ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2});
  }
}

void check_contiguous_b(const char* name, const Tensor& b) {
  if (b.is_contiguous()) return;
  // The kernels could read another b only after a copy, which every call would pay.
  argument_error(name, "b", text("shape ", shape_text(b), " with strides ", strides_text(b)),
                 text("strides ", list_text(contiguous(b.sizes()).strides)),
                 "make it contiguous once, where it is loaded");
}

Problem describe(const Kernel& kernel, const Factors& factors) {
  const char* name = kernel.name();
  const Tensor& a = factors.a;
  const Tensor& b = factors.b;
  check_dtype_of_a(kernel, a);
  check_rank(name, "a", a, {2});
  check_dtype(name, "b", b, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  check_rank(name, "b", b, {3});
  check_same_device(name, "b", b, "a", a);
  const int64_t k = kernel.nvfp4 ? a.size(1) * 2 : a.size(1);
  if (b.size(0) == 0) {
    argument_error(name, "b", text("shape ", shape_text(b)), "at least one matrix",
                   "pass one matrix for each group");
  }
  if (b.size(2) * 2 != k) {
    argument_error(name, "b", text("shape ", shape_text(b), " (", b.size(2) * 2, " values a row)"),
                   text(k, " values a row, for a of shape ", shape_text(a)),
                   "pass the packed weights [G, N, K / 2]");
  }
  check_positive_multiple(name, "a", a, k, kMultipleOfK, "values a row");
  check_positive_multiple(name, "b", b, b.size(1), kMultipleOfN, "rows");
  check_int32(name, "a", a.size(0), "a number of rows of");
  check_int32(name, "a", k, "a number of values a row of");
  check_int32(name, "b", b.size(1), "a number of rows of");
  check_contiguous_b(name, b);
  const Problem problem{b.size(0), a.size(0), b.size(1), k, contiguous({a.size(0), b.size(1)})};
  check_scales_of_a(kernel, factors.a_scale, a, problem);
  check_scales_of_b(kernel, factors.b_scale, a, problem);
  check_segments(kernel, factors.m_indptr, a, problem);
  return problem;
}

void check_alpha(const char* name, const std::optional<Tensor>& alpha, const Tensor& a,
                 const Problem& problem) {
  if (!alpha.has_value()) return;
  check_dtype(name, "alpha", *alpha, {ScalarType::Float});
  if (alpha->numel() != 0 && (alpha->dim() != 1 || alpha->size(0) != problem.groups)) {
    argument_error(name, "alpha", text("shape ", shape_text(*alpha)),
                   text("[", problem.groups, "], for ", problem.groups, " matrices of 'b'"),
                   "pass one value for each group, or None for 1");
  }
  check_same_device(name, "alpha", *alpha, "a", a);
}

// What some device has kernels for, as the CPU kernels and the fakes check it.
void check_tiles(const Kernel& kernel, const Tiles& tiles) {
  const char* name = kernel.name();
  if (!kernel.nvfp4) check_choice(name, "mma_sm", tiles.mma_sm, {1, 2});
  check_choice(name, "tile_m", tiles.m, {128});
  if (kernel.nvfp4) {
    check_choice(name, "tile_n", tiles.n, {32, 64, 128});
  } else {
    check_choice(name, "tile_n", tiles.n, {32, 64, 128, 192, 256});
  }
  check_choice(name, "tile_k", tiles.k, {128, 256});
}

bool takes_mma_sm(const Kernel& kernel, Capability capability) {
  return !kernel.nvfp4 && capability.major == 10;
}

void check_tiles_of_device(const Kernel& kernel, const Tiles& tiles, Capability capability) {
  if (kernel.nvfp4) return;  // one family of devices
  const char* name = kernel.name();
  const std::string where =
      text(" on compute capability ", capability.major, ".", capability.minor);
  if (takes_mma_sm(kernel, capability)) {
    check_choice(name, "tile_n", tiles.n, {64, 128, 192, 256}, where);
    return;
  }
  check_choice(name, "mma_sm", tiles.mma_sm, {1}, where);
  check_choice(name, "tile_n", tiles.n, {32, 64, 128}, where);
  check_choice(name, "tile_k", tiles.k, {128}, where);
}

// FlashInfer keeps 64 MB for ever where a call needs these. Its allocator refuses, by throwing,
// what does not fit.
struct WorkspaceSizes {
  int64_t tensor_maps;  // bytes; first, because tensor maps need an aligned start
  int64_t groups;
};

WorkspaceSizes workspace_sizes(const Kernel& kernel, Capability capability, int64_t groups) {
  // Of each group: the problem's three sizes, five pointers, three strides, and two layouts of five
  // integers. They are ten arrays, each aligned to 16 bytes.
  constexpr int64_t kBytesOfGroup = 3 * 4 + 5 * 8 + 3 * 8 + 2 * 5 * 4;
  constexpr int64_t kBytesOfAlignment = 10 * 16;
  // CUTLASS keeps tensor maps of 128 bytes for each multiprocessor, and nothing else. On 12.x they
  // are the four operands' and one for each of two warp groups that store. On 10.x every operand
  // and the result has as many as there are steps of the scheduler (8) and of the pipeline (at most
  // 10 in 227 KiB of shared memory; 16 is room), and two.
  constexpr int64_t kBytesOfMap = 128;
  // The largest Blackwell has 192; a thread's first device counts, so this one is not asked.
  constexpr int64_t kMultiprocessors = 192;
  const int64_t maps = takes_mma_sm(kernel, capability) ? (4 + 1) * (8 + 16 + 2) : 4 + 2;
  return {kMultiprocessors * maps * kBytesOfMap, groups * kBytesOfGroup + kBytesOfAlignment};
}

void launch(Kernel& kernel, const Factors& factors, const std::optional<Tensor>& alpha,
            const Tiles& tiles, const Problem& problem, const Tensor& out) {
  const char* name = kernel.name();
  const int device = factors.a.get_device_index();
  const TVMFFISafeCallType function = kernel.function.for_device(device);
  const Capability capability = device_capability(name, device);
  check_tiles_of_device(kernel, tiles, capability);
  if (out.numel() == 0) return;
  LaunchScope scope(name, device);
  const Readable a = dense(factors.a, kAlignment);
  const Readable b = aligned(factors.b, kAlignment);
  const Readable a_scale = aligned(factors.a_scale, kAlignment);
  const Readable b_scale = aligned(factors.b_scale, kAlignment);
  const Readable m_indptr = dense(factors.m_indptr);
  // From torch's caching allocator, in the order of the stream: safe under graph capture.
  const WorkspaceSizes sizes = workspace_sizes(kernel, capability, problem.groups);
  const Tensor workspace =
      empty(contiguous({sizes.tensor_maps + sizes.groups}), ScalarType::Byte, out);
  const FlatView maps(workspace, kBytes, sizes.tensor_maps);
  const FlatView groups(workspace, kBytes, sizes.groups, sizes.tensor_maps);
  const FlatView left(*a);
  const FlatView right(*b, kBytes);
  const FlatView left_scales(*a_scale, kBytes);
  const FlatView right_scales(*b_scale, kBytes);
  const DLTensor result = dl_tensor(out);
  const DLTensor segments = dl_tensor(*m_indptr);
  if (kernel.nvfp4) {
    // An empty alpha is 1 for every group.
    const bool has_alpha = alpha.has_value() && alpha->numel() != 0;
    const Readable alphas = has_alpha ? dense(*alpha) : Readable(workspace);
    const FlatView factor(*alphas, {kDLFloat, 32, 1}, has_alpha ? problem.groups : 0);
    call_flashinfer(function, name, groups.view, maps.view, left.view, right.view, left_scales.view,
                    right_scales.view, result, factor.view, segments, problem.n, problem.k, tiles.m,
                    tiles.n, tiles.k, tiles.swap_ab);
  } else if (takes_mma_sm(kernel, capability)) {
    call_flashinfer(function, name, groups.view, maps.view, left.view, right.view, left_scales.view,
                    right_scales.view, result, segments, problem.n, problem.k, tiles.mma_sm,
                    tiles.m, tiles.n, tiles.k, tiles.swap_ab);
  } else {
    call_flashinfer(function, name, groups.view, maps.view, left.view, right.view, left_scales.view,
                    right_scales.view, result, segments, problem.n, problem.k, tiles.m, tiles.n,
                    tiles.k, tiles.swap_ab);
  }
  scope.check_launch();
}

NewTensor multiply(Kernel& kernel, const Factors& factors, const std::optional<Tensor>& alpha,
                   ScalarType out_dtype, const Tiles& tiles) {
  const char* name = kernel.name();
  const Problem problem = describe(kernel, factors);
  check_alpha(name, alpha, factors.a, problem);
  check_tiles(kernel, tiles);
  if (!is_one_of(out_dtype, {ScalarType::BFloat16, ScalarType::Half})) {
    argument_error(name, "out_dtype", dtype_name(out_dtype), "torch.bfloat16 or torch.float16",
                   "convert the result instead");
  }
  check_cuda(name, "a", factors.a);
  kernel.function.for_device(factors.a.get_device_index());
  Tensor out = empty(problem.out, out_dtype, factors.a);
  launch(kernel, factors, alpha, tiles, problem, out);
  return out.release();
}

void multiply_into(Kernel& kernel, const Factors& factors, const std::optional<Tensor>& alpha,
                   const Tiles& tiles, const Tensor& out) {
  const char* name = kernel.name();
  const Problem problem = describe(kernel, factors);
  check_alpha(name, alpha, factors.a, problem);
  check_tiles(kernel, tiles);
  check_dtype(name, "out", out, {ScalarType::BFloat16, ScalarType::Half});
  check_output(name, "out", out, problem.out, out.scalar_type(), "a", factors.a, kOutputAlignment);
  check_cuda(name, "a", factors.a);
  launch(kernel, factors, alpha, tiles, problem, out);
}

}  // namespace

NewTensor group_gemm_nvfp4_nt_groupwise(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                                        const Tensor& b_scale, const Tensor& m_indptr,
                                        const std::optional<Tensor>& alpha, ScalarType out_dtype,
                                        int64_t tile_m, int64_t tile_n, int64_t tile_k,
                                        bool swap_ab) {
  return multiply(nvfp4_kernel, {a, b, a_scale, b_scale, m_indptr}, alpha, out_dtype,
                  {1, tile_m, tile_n, tile_k, swap_ab});
}

void group_gemm_nvfp4_nt_groupwise_out(const Tensor& a, const Tensor& b, const Tensor& a_scale,
                                       const Tensor& b_scale, const Tensor& m_indptr,
                                       const std::optional<Tensor>& alpha, int64_t tile_m,
                                       int64_t tile_n, int64_t tile_k, bool swap_ab,
                                       const Tensor& out) {
  multiply_into(nvfp4_kernel, {a, b, a_scale, b_scale, m_indptr}, alpha,
                {1, tile_m, tile_n, tile_k, swap_ab}, out);
}

NewTensor group_gemm_mxfp8_mxfp4_nt_groupwise(const Tensor& a, const Tensor& b,
                                              const Tensor& a_scale, const Tensor& b_scale,
                                              const Tensor& m_indptr, ScalarType out_dtype,
                                              int64_t mma_sm, int64_t tile_m, int64_t tile_n,
                                              int64_t tile_k, bool swap_ab) {
  return multiply(mxfp4_kernel, {a, b, a_scale, b_scale, m_indptr}, std::nullopt, out_dtype,
                  {mma_sm, tile_m, tile_n, tile_k, swap_ab});
}

void group_gemm_mxfp8_mxfp4_nt_groupwise_out(const Tensor& a, const Tensor& b,
                                             const Tensor& a_scale, const Tensor& b_scale,
                                             const Tensor& m_indptr, int64_t mma_sm, int64_t tile_m,
                                             int64_t tile_n, int64_t tile_k, bool swap_ab,
                                             const Tensor& out) {
  multiply_into(mxfp4_kernel, {a, b, a_scale, b_scale, m_indptr}, std::nullopt,
                {mma_sm, tile_m, tile_n, tile_k, swap_ab}, out);
}

}  // namespace fp4aot
