// mm_fp4: FP4 matrix multiplication with block scales, through FlashInfer's CUTLASS kernels.
//
// Three modules export this function (10.0 and 11.0, 10.3, 12.x); the kernel table picks the one
// whose image fits the device of `a`.
#include "gemm.h"

#include <mutex>
#include <string>
#include <utility>

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "flat_view.h"
#include "gemm_tactics.h"
#include "kernel_table.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "mm_fp4";
constexpr int64_t kBlock = 16;     // values that share one block scale
constexpr int64_t kMultiple = 32;  // of N and K: 16 bytes of packed values
// Tensor maps of packed 4-bit values need it, and so do 256-bit stores of the results.
constexpr std::uintptr_t kAlignment = 32;

KernelFunction kernel{kOperator, "fp4_gemm"};

// FlashInfer keeps the workspace size of every problem in a map without a lock.
std::mutex call_mutex;

struct Problem {
  const Tensor& a;  // [..., M, K / 2]
  const Tensor& b;  // [..., K / 2, N], column-major
  const Tensor& a_scales;
  const Tensor& b_scales;
  const Tensor& alpha;
  int64_t batch;  // 1 for matrices
  int64_t m, n, k;
  Layout out;
};

// "16 rows of 64 values"
std::string rows_text(int64_t rows, int64_t k) { return text(rows, " rows of ", k, " values"); }

// Names the other layout that has as many scales, which is then what they are likely in.
std::string likeness(int64_t numel, int64_t batch, int64_t rows, int64_t k) {
  const int64_t columns = k / kBlock;
  if (numel == batch * rows * columns) return ", as many as layout_linear has";
  if (numel == batch * round_up(rows, 8) * round_up(columns, 4)) {
    return ", as many as layout_8x4 has";
  }
  return "";
}

// Scales in the 128x4 layout: their memory counts, not their shape. `accept_transposed` admits the
// transpose of a contiguous tensor, which is how FlashInfer's callers pass the scales of b.
void check_block_scales(const char* argument, const Tensor& scales, int64_t rows, const Tensor& a,
                        bool accept_transposed) {
  check_dtype(kOperator, argument, scales, {ScalarType::Byte, ScalarType::Float8_e4m3fn});
  check_same_device(kOperator, argument, scales, "a", a);
  if (!scales.is_contiguous() && !(accept_transposed && is_column_major(scales))) {
    argument_error(kOperator, argument,
                   text("shape ", shape_text(scales), " with strides ", strides_text(scales)),
                   text("contiguous scales", accept_transposed ? " or their transpose" : ""),
                   "pass them as the quantizer returned them");
  }
  const bool batched = a.dim() == 3;
  const int64_t batch = batched ? a.size(0) : 1;
  const int64_t k = a.size(-1) * 2;
  const int64_t expected = batch * round_up(rows, 128) * round_up(k / kBlock, 4);
  if (scales.numel() != expected) {
    argument_error(
        kOperator, argument,
        text(scales.numel(), " scales", likeness(scales.numel(), batch, rows, k)),
        text(expected, " (layout_128x4 for ",
             batched ? text("each of ", batch, " matrices with ", rows_text(rows, k))
                     : rows_text(rows, k),
             ")"),
        text("quantize with the 128x4 layout", batched ? ", each matrix by itself" : ""));
  }
}

const char* pass_transposed(const Tensor& b) {
  return b.dim() == 2 ? "pass weight.T of a contiguous weight [N, K / 2]"
                      : "pass weight.transpose(-2, -1) of a contiguous weight [B, N, K / 2]";
}

void check_matching_shapes(const Tensor& a, const Tensor& b) {
  if (a.dim() == 3 && a.size(0) != b.size(0)) {
    argument_error(kOperator, "b", text("shape ", shape_text(b)),
                   text(a.size(0), " matrices, as in a of shape ", shape_text(a)),
                   "pass one matrix of b for each matrix of a");
  }
  if (a.size(-1) != b.size(-2)) {
    argument_error(kOperator, "b", text("shape ", shape_text(b)),
                   text(a.size(-1), " rows (K / 2), for a of shape ", shape_text(a)),
                   pass_transposed(b));
  }
  check_positive_multiple(kOperator, "a", a, a.size(-1) * 2, kMultiple, "values a row");
  check_positive_multiple(kOperator, "b", b, b.size(-1), kMultiple, "columns");
  if (a.dim() == 3) check_int32(kOperator, "a", a.size(0), "a number of matrices of");
  check_int32(kOperator, "a", a.size(-2), "a number of rows of");
  check_int32(kOperator, "a", a.size(-1) * 2, "a number of values a row of");
  check_int32(kOperator, "b", b.size(-1), "a number of columns of");
}

// The kernels could read another b only after a copy, which every call would pay.
void check_column_major(const Tensor& b) {
  if (is_column_major(b)) return;
  const int64_t rows = b.size(-2);
  argument_error(
      kOperator, "b", text("shape ", shape_text(b), " with strides ", strides_text(b)),
      text("strides ", list_text(b.dim() == 2 ? Dims{1, rows} : Dims{rows * b.size(-1), 1, rows}),
           " (column major)"),
      pass_transposed(b));
}

Problem describe(const Tensor& a, const Tensor& b, const Tensor& a_descale, const Tensor& b_descale,
                 const std::optional<Tensor>& alpha, int64_t tactic) {
  check_dtype(kOperator, "a", a, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  check_rank(kOperator, "a", a, {2, 3});
  check_dtype(kOperator, "b", b, {ScalarType::Byte, ScalarType::Float4_e2m1fn_x2});
  check_rank(kOperator, "b", b, {a.dim()});
  check_same_device(kOperator, "b", b, "a", a);
  check_matching_shapes(a, b);
  check_column_major(b);
  check_block_scales("a_descale", a_descale, a.size(-2), a, false);
  check_block_scales("b_descale", b_descale, b.size(-1), a, true);
  if (!alpha.has_value()) {
    argument_error(kOperator, "alpha", "None", "a float32 tensor (the kernels always read it)",
                   "pass 1 / (a_global_sf * b_global_sf) as a tensor of shape [1]");
  }
  check_dtype(kOperator, "alpha", *alpha, {ScalarType::Float});
  if (alpha->numel() != 1) {
    argument_error(kOperator, "alpha", text("shape ", shape_text(*alpha)),
                   "one element (no kernel here applies another alpha to each row)",
                   "pass a tensor of shape [1] and scale the rows of the result");
  }
  check_same_device(kOperator, "alpha", *alpha, "a", a);
  if (tactic < kDefaultTactic) {
    argument_error(kOperator, "tactic", text(tactic),
                   "the number of a tactic, or -1 to have one chosen", "pass -1");
  }
  Dims out_sizes = a.sizes();
  out_sizes.back() = b.size(-1);
  const int64_t batch = a.dim() == 3 ? a.size(0) : 1;
  return {a,     b,          a_descale,  b_descale,      *alpha,
          batch, a.size(-2), b.size(-1), a.size(-1) * 2, contiguous(out_sizes)};
}

void check_out_dtype(const Tensor& a, ScalarType out_dtype) {
  if (!is_one_of(out_dtype, {ScalarType::BFloat16, ScalarType::Half})) {
    argument_error(kOperator, "out_dtype", dtype_name(out_dtype), "torch.bfloat16 or torch.float16",
                   "convert the result instead");
  }
  check_cuda(kOperator, "a", a);
}

void check_tactic(int device, int64_t tactic) {
  const Capability capability = device_capability(kOperator, device);
  const int64_t count = mm_fp4_tactic_count(capability.major, capability.minor);
  if (tactic < count) return;
  argument_error(kOperator, "tactic", text(tactic),
                 text("-1, or 0 to ", count - 1, " on compute capability ", capability.major, ".",
                      capability.minor),
                 "pass -1 to have one chosen");
}

// A matrix, or a batch of more than one, as FlashInfer takes them: the module for 12.x refuses a
// batch of one.
struct MatrixView {
  MatrixView(const Tensor& tensor, int64_t batch, bool transposed) : view(dl_tensor(tensor)) {
    const int32_t rank = batch == 1 ? 2 : 3;
    const int64_t skipped = tensor.dim() - rank;
    for (int32_t i = 0; i < rank; ++i) {
      shape[i] = tensor.size(skipped + i);
      strides[i] = tensor.stride(skipped + i);
    }
    if (transposed) {
      std::swap(shape[rank - 2], shape[rank - 1]);
      std::swap(strides[rank - 2], strides[rank - 1]);
    }
    view.ndim = rank;
    view.shape = shape;
    view.strides = strides;
  }
  MatrixView(const MatrixView&) = delete;
  MatrixView& operator=(const MatrixView&) = delete;

  int64_t shape[3] = {};
  int64_t strides[3] = {};
  DLTensor view;
};

void launch(const Problem& problem, int64_t tactic, const Tensor& out) {
  const int device = problem.a.get_device_index();
  const TVMFFISafeCallType function = kernel.for_device(device);
  if (out.numel() == 0) return;
  if (tactic == kDefaultTactic) {
    tactic = find_tactic(kOperator, device, out.scalar_type(), problem.m, problem.n, problem.k);
  } else {
    check_tactic(device, tactic);
  }
  LaunchScope scope(kOperator, device);
  const Readable a = dense(problem.a, kAlignment);
  const Readable b = aligned(problem.b, kAlignment);
  const Readable a_scales = aligned(problem.a_scales, kAlignment);
  const Readable b_scales = aligned(problem.b_scales, kAlignment);
  const FlatView left_scales(*a_scales, kBytes);
  const FlatView right_scales(*b_scales, kBytes);
  const MatrixView left(*a, problem.batch, /*transposed=*/false);
  const MatrixView right(*b, problem.batch, /*transposed=*/true);
  const MatrixView result(out, problem.batch, /*transposed=*/false);
  // Empty: FlashInfer then asks its environment for a workspace when the kernel needs one, and that
  // is torch's allocator (tvm_ffi_tensor.cpp).
  int64_t no_bytes = 0;
  int64_t stride = 1;
  DLTensor workspace{};
  workspace.device = result.view.device;
  workspace.ndim = 1;
  workspace.dtype = {kDLUInt, 8, 1};
  workspace.shape = &no_bytes;
  workspace.strides = &stride;
  {
    const std::lock_guard<std::mutex> lock(call_mutex);
    call_flashinfer(function, kOperator, left.view, right.view, left_scales.view, right_scales.view,
                    dl_tensor(problem.alpha), result.view, workspace, tactic);
  }
  scope.check_launch();
}

}  // namespace

NewTensor mm_fp4(const Tensor& a, const Tensor& b, const Tensor& a_descale, const Tensor& b_descale,
                 const std::optional<Tensor>& alpha, ScalarType out_dtype, int64_t tactic) {
  const Problem problem = describe(a, b, a_descale, b_descale, alpha, tactic);
  check_out_dtype(a, out_dtype);
  kernel.for_device(a.get_device_index());
  Tensor out = empty(problem.out, out_dtype, a);
  launch(problem, tactic, out);
  return out.release();
}

void mm_fp4_out(const Tensor& a, const Tensor& b, const Tensor& a_descale, const Tensor& b_descale,
                const std::optional<Tensor>& alpha, int64_t tactic, const Tensor& out) {
  const Problem problem = describe(a, b, a_descale, b_descale, alpha, tactic);
  check_dtype(kOperator, "out", out, {ScalarType::BFloat16, ScalarType::Half});
  check_output(kOperator, "out", out, problem.out, out.scalar_type(), "a", a, kAlignment);
  check_cuda(kOperator, "a", a);
  launch(problem, tactic, out);
}

}  // namespace fp4aot
