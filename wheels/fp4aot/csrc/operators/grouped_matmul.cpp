// Grouped GEMMs with block scales, through FlashInfer's CUTLASS kernels: a group is a segment of
// rows of `a` and one matrix of `b`.
//
// NVFP4 has kernels for 12.x alone. Two modules export the MXFP8 by MXFP4 function under one name,
// for 10.x and for 12.x; that of 10.x takes `mma_sm` as well. The segments are known on the device
// alone: no call reads `m_indptr` or waits for the device. FlashInfer's entry points read no
// environment and allocate nothing; all that they keep is a number of multiprocessors for each
// thread.
#include <algorithm>
#include <initializer_list>
#include <string>

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr int64_t kRowTile = 128;    // rows of a tile of scales
constexpr int64_t kMultipleOfN = 8;  // the kernels store 16 bytes at once
constexpr int64_t kMultipleOfK = 128;
// Tensor maps of packed 4-bit values need it where they unpack them to bytes.
constexpr std::uintptr_t kAlignment = 32;
constexpr std::uintptr_t kOutputAlignment = 16;

KernelFunction<flashinfer::group_gemm_nvfp4_nt_groupwise> nvfp4_kernel{
    "group_gemm_nvfp4_nt_groupwise"};
KernelFunction<flashinfer::group_gemm_mxfp4_nt_groupwise> mxfp4_kernel{
    "group_gemm_mxfp8_mxfp4_nt_groupwise"};

// What differs between the two operators.
struct Format {
  const char* name;
  bool nvfp4;     // else MXFP8 by MXFP4
  int64_t block;  // values that share one scale
};

constexpr Format kNvfp4{"group_gemm_nvfp4_nt_groupwise", true, 16};
constexpr Format kMxfp4{"group_gemm_mxfp8_mxfp4_nt_groupwise", false, 32};

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

struct Sizes {
  int64_t groups, m, n, k;
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

void check_scales(const Format& format, const char* argument, const Tensor& scales,
                  const Tensor& a) {
  if (format.nvfp4) {
    check_dtype(format.name, argument, scales, {ScalarType::Byte, ScalarType::Float8_e4m3fn});
  } else {
    check_dtype(format.name, argument, scales, {ScalarType::Byte, ScalarType::Float8_e8m0fnu});
  }
  check_same_device(format.name, argument, scales, "a", a);
  if (!scales.is_contiguous()) {
    argument_error(format.name, argument,
                   text("shape ", shape_text(scales), " with strides ", strides_text(scales)),
                   "contiguous scales", "pass them as they were written");
  }
  check_int32(format.name, argument, scales.numel(), "a number of scales of");
}

// The first row of group i's scales is (m_indptr[i] + 127 * i) / 128 * 128, so that every group has
// whole tiles wherever the others begin. This many rows are enough for any segments, and with one
// row in the last group all of them are read.
int64_t scale_rows(const Sizes& sizes) {
  return (sizes.m + sizes.groups * (kRowTile - 1)) / kRowTile * kRowTile;
}

void check_scales_of_a(const Format& format, const Tensor& scales, const Tensor& a,
                       const Sizes& sizes) {
  check_scales(format, "a_scale", scales, a);
  const int64_t columns = sizes.k / format.block;
  const int64_t needed = scale_rows(sizes) * columns;
  if (scales.numel() >= needed) return;
  argument_error(format.name, "a_scale", text(scales.numel(), " scales"),
                 text("at least ", needed, " ((", sizes.m, " rows + 127 * ", sizes.groups,
                      " groups) / 128 * 128 rows of ", columns, ")"),
                 "start the scales of group i at row (m_indptr[i] + 127 * i) / 128 * 128, and put "
                 "each group's into the 128x4 layout by itself");
}

void check_scales_of_b(const Format& format, const Tensor& scales, const Tensor& a,
                       const Sizes& sizes) {
  check_scales(format, "b_scale", scales, a);
  const int64_t columns = sizes.k / format.block;
  const int64_t expected = sizes.groups * round_up(sizes.n, kRowTile) * columns;
  if (scales.numel() == expected) return;
  argument_error(format.name, "b_scale", text(scales.numel(), " scales"),
                 text(expected, " (layout_128x4 for each of ", sizes.groups, " matrices with ",
                      sizes.n, " rows of ", sizes.k, " values)"),
                 "quantize with the 128x4 layout, each matrix by itself");
}

void check_segments(const Format& format, const Tensor& m_indptr, const Tensor& a,
                    const Sizes& sizes) {
  check_dtype(format.name, "m_indptr", m_indptr, {ScalarType::Int});
  if (m_indptr.dim() != 1 || m_indptr.size(0) != sizes.groups + 1) {
    argument_error(format.name, "m_indptr", text("shape ", shape_text(m_indptr)),
                   text("[", sizes.groups + 1, "], for ", sizes.groups, " matrices of 'b'"),
                   "pass the first row of each group, then the number of rows");
  }
  check_same_device(format.name, "m_indptr", m_indptr, "a", a);
}

void check_dtype_of_a(const Format& format, const Tensor& a) {
  if (format.nvfp4) {
    check_dtype(format.name, "a", a, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  } else {
    check_dtype(format.name, "a", a, {ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2});
  }
}

void check_contiguous_b(const char* name, const Tensor& b) {
  if (b.is_contiguous()) return;
  // The kernels could read another b only after a copy, which every call would pay.
  argument_error(name, "b", text("shape ", shape_text(b), " with strides ", strides_text(b)),
                 text("strides ", list_text(contiguous(b.sizes()).strides)),
                 "make it contiguous once, where it is loaded");
}

Sizes check(const Format& format, const Factors& factors) {
  const char* name = format.name;
  const Tensor& a = factors.a;
  const Tensor& b = factors.b;
  check_dtype_of_a(format, a);
  check_rank(name, "a", a, {2});
  check_dtype(name, "b", b, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  check_rank(name, "b", b, {3});
  check_same_device(name, "b", b, "a", a);
  const int64_t k = format.nvfp4 ? a.size(1) * 2 : a.size(1);
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
  const Sizes sizes{b.size(0), a.size(0), b.size(1), k};
  check_scales_of_a(format, factors.a_scale, a, sizes);
  check_scales_of_b(format, factors.b_scale, a, sizes);
  check_segments(format, factors.m_indptr, a, sizes);
  return sizes;
}

void check_alpha(const char* name, const std::optional<Tensor>& alpha, const Tensor& a,
                 const Sizes& sizes) {
  if (!alpha.has_value()) return;
  check_dtype(name, "alpha", *alpha, {ScalarType::Float});
  if (alpha->numel() != 0 && (alpha->dim() != 1 || alpha->size(0) != sizes.groups)) {
    argument_error(name, "alpha", text("shape ", shape_text(*alpha)),
                   text("[", sizes.groups, "], for ", sizes.groups, " matrices of 'b'"),
                   "pass one value for each group, or None for 1");
  }
  check_same_device(name, "alpha", *alpha, "a", a);
}

// What some device has kernels for, as the CPU kernels and the fakes check it.
void check_tiles(const Format& format, const Tiles& tiles) {
  const char* name = format.name;
  if (!format.nvfp4) check_choice(name, "mma_sm", tiles.mma_sm, {1, 2});
  check_choice(name, "tile_m", tiles.m, {128});
  if (format.nvfp4) {
    check_choice(name, "tile_n", tiles.n, {32, 64, 128});
  } else {
    check_choice(name, "tile_n", tiles.n, {32, 64, 128, 192, 256});
  }
  check_choice(name, "tile_k", tiles.k, {128, 256});
}

bool takes_mma_sm(const Format& format, Capability capability) {
  return !format.nvfp4 && capability.major == 10;
}

void check_tiles_of_device(const Format& format, const Tiles& tiles, Capability capability) {
  if (format.nvfp4) return;  // one family of devices
  const char* name = format.name;
  const std::string where =
      text(" on compute capability ", capability.major, ".", capability.minor);
  if (takes_mma_sm(format, capability)) {
    check_choice(name, "tile_n", tiles.n, {64, 128, 192, 256}, where);
    return;
  }
  check_choice(name, "mma_sm", tiles.mma_sm, {1}, where);
  check_choice(name, "tile_n", tiles.n, {32, 64, 128}, where);
  check_choice(name, "tile_k", tiles.k, {128}, where);
}

// FlashInfer keeps 64 MB for ever where a call needs these. Its allocator refuses, by throwing,
// what does not fit.
struct WorkspaceBytes {
  int64_t tensor_maps;  // bytes; first, because tensor maps need an aligned start
  int64_t groups;
};

WorkspaceBytes workspace_bytes(const Format& format, Capability capability, int64_t groups) {
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
  const int64_t maps = takes_mma_sm(format, capability) ? (4 + 1) * (8 + 16 + 2) : 4 + 2;
  return {kMultiprocessors * maps * kBytesOfMap, groups * kBytesOfGroup + kBytesOfAlignment};
}

template <typename Function>
struct Problem : Description<1> {
  Kernel<Function> multiply;
  Factors factors;
  const std::optional<Tensor>* alpha;  // nullptr where the operator has none
  Tiles tiles;
  Sizes sizes;
  Capability capability;
};

template <typename Function>
Problem<Function> describe(KernelFunction<Function>& kernel, const Format& format,
                           const Factors& factors, const std::optional<Tensor>* alpha,
                           const Tiles& tiles, OutputDtype out_dtype) {
  const Tensor& a = factors.a;
  check_output_dtype(format.name, "out_dtype", "out", out_dtype);
  const Sizes sizes = check(format, factors);
  if (alpha != nullptr) check_alpha(format.name, *alpha, a, sizes);
  check_tiles(format, tiles);
  check_cuda(format.name, "a", a);
  const int device = a.get_device_index();
  const Kernel<Function> multiply = kernel.for_device(device);
  const Capability capability = device_capability(format.name, device);
  check_tiles_of_device(format, tiles, capability);
  return {{format.name,
           "a",
           a,
           {Output{"out", contiguous({sizes.m, sizes.n}), out_dtype.value, kOutputAlignment}}},
          multiply,
          factors,
          alpha,
          tiles,
          sizes,
          capability};
}

auto describe_nvfp4(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
                    const Tensor& m_indptr, const std::optional<Tensor>& alpha,
                    OutputDtype out_dtype, int64_t tile_m, int64_t tile_n, int64_t tile_k,
                    bool swap_ab) {
  return describe(nvfp4_kernel, kNvfp4, {a, b, a_scale, b_scale, m_indptr}, &alpha,
                  {1, tile_m, tile_n, tile_k, swap_ab}, out_dtype);
}

auto describe_mxfp4(const Tensor& a, const Tensor& b, const Tensor& a_scale, const Tensor& b_scale,
                    const Tensor& m_indptr, OutputDtype out_dtype, int64_t mma_sm, int64_t tile_m,
                    int64_t tile_n, int64_t tile_k, bool swap_ab) {
  return describe(mxfp4_kernel, kMxfp4, {a, b, a_scale, b_scale, m_indptr}, nullptr,
                  {mma_sm, tile_m, tile_n, tile_k, swap_ab}, out_dtype);
}

// The operands and the workspace as FlashInfer takes them.
struct Operands {
  template <typename Function>
  Operands(const Format& format, const Problem<Function>& problem, const Tensor& out)
      : a(dense(problem.factors.a, kAlignment)),
        b(aligned(problem.factors.b, kAlignment)),
        a_scale(aligned(problem.factors.a_scale, kAlignment)),
        b_scale(aligned(problem.factors.b_scale, kAlignment)),
        m_indptr(dense(problem.factors.m_indptr)),
        bytes(workspace_bytes(format, problem.capability, problem.sizes.groups)),
        // From torch's caching allocator, in the order of the stream: safe under graph capture.
        workspace(empty(contiguous({bytes.tensor_maps + bytes.groups}), ScalarType::Byte, out)),
        tensor_maps(workspace, contiguous({bytes.tensor_maps}), kBytes),
        groups(workspace, contiguous({bytes.groups}), kBytes, bytes.tensor_maps) {}

  Readable a, b, a_scale, b_scale, m_indptr;
  WorkspaceBytes bytes;
  Tensor workspace;
  View tensor_maps, groups;
};

void launch_nvfp4(const Problem<flashinfer::group_gemm_nvfp4_nt_groupwise>& problem,
                  const Tensor& out) {
  const Operands operands(kNvfp4, problem, out);
  const Tiles& tiles = problem.tiles;
  // An empty alpha is 1 for every group.
  const bool has_alpha = problem.alpha->has_value() && (*problem.alpha)->numel() != 0;
  const Readable alpha = has_alpha ? dense(**problem.alpha) : Readable(operands.workspace);
  problem.multiply(
      operands.groups, operands.tensor_maps, flat(*operands.a), flat_bytes(*operands.b),
      flat_bytes(*operands.a_scale), flat_bytes(*operands.b_scale), out,
      View(*alpha, contiguous({has_alpha ? problem.sizes.groups : 0}), kFloats), operands.m_indptr,
      problem.sizes.n, problem.sizes.k, tiles.m, tiles.n, tiles.k, tiles.swap_ab);
}

void launch_mxfp4(const Problem<flashinfer::group_gemm_mxfp4_nt_groupwise>& problem,
                  const Tensor& out) {
  const Operands operands(kMxfp4, problem, out);
  const Tiles& tiles = problem.tiles;
  const auto multiply = [&](auto... mma_sm) {
    problem.multiply(operands.groups, operands.tensor_maps, flat(*operands.a),
                     flat_bytes(*operands.b), flat_bytes(*operands.a_scale),
                     flat_bytes(*operands.b_scale), out, operands.m_indptr, problem.sizes.n,
                     problem.sizes.k, mma_sm..., tiles.m, tiles.n, tiles.k, tiles.swap_ab);
  };
  if (takes_mma_sm(kMxfp4, problem.capability)) {
    multiply(tiles.mma_sm);
  } else {
    multiply();
  }
}

}  // namespace

FP4AOT_OPERATOR(group_gemm_nvfp4_nt_groupwise, describe_nvfp4, launch_nvfp4,
                "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor m_indptr, "
                "Tensor? alpha, ScalarType out_dtype, int tile_m=128, int tile_n=128, "
                "int tile_k=128, bool swap_ab=True",
                "Tensor(a!) out", "out_dtype");
FP4AOT_OPERATOR(group_gemm_mxfp8_mxfp4_nt_groupwise, describe_mxfp4, launch_mxfp4,
                "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor m_indptr, "
                "ScalarType out_dtype, int mma_sm=1, int tile_m=128, int tile_n=128, "
                "int tile_k=128, bool swap_ab=True",
                "Tensor(a!) out", "out_dtype");

}  // namespace fp4aot
