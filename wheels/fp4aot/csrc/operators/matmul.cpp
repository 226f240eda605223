// mm_fp4: FP4 matrix multiplication with block scales, through FlashInfer's CUTLASS kernels.
//
// Three modules export this function (10.0 and 11.0, 10.3, 12.x); the kernel table picks the one
// whose image fits the device of `a`.
#include <mutex>
#include <string>

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/matmul_tactics.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "mm_fp4";
constexpr int64_t kBlock = 16;     // values that share one block scale
constexpr int64_t kMultiple = 32;  // of N and K: 16 bytes of packed values
// Tensor maps of packed 4-bit values need it, and so do 256-bit stores of the results.
constexpr std::uintptr_t kAlignment = 32;

KernelFunction<flashinfer::fp4_gemm> kernel{kOperator};

// FlashInfer keeps the workspace size of every problem in a map without a lock.
std::mutex call_mutex;

struct Problem : Description<1> {
  Kernel<flashinfer::fp4_gemm> multiply;
  const Tensor& b;  // [..., K / 2, N], column-major; `input` is a, [..., M, K / 2]
  const Tensor& a_scales;
  const Tensor& b_scales;
  const Tensor& alpha;
  int64_t tactic;
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
                 const std::optional<Tensor>& alpha, OutputDtype out_dtype, int64_t tactic) {
  check_output_dtype(kOperator, "out_dtype", "out", out_dtype);
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
  check_cuda(kOperator, "a", a);
  Dims out_sizes = a.sizes();
  out_sizes.back() = b.size(-1);
  return {{kOperator, "a", a, {Output{"out", contiguous(out_sizes), out_dtype.value, kAlignment}}},
          kernel.for_device(a.get_device_index()),
          b,
          a_descale,
          b_descale,
          *alpha,
          tactic};
}

// The tactic of the call, or the one that the table has for its sizes.
int64_t chosen_tactic(const Problem& problem, const Tensor& out) {
  const int device = problem.input.get_device_index();
  if (problem.tactic == kDefaultTactic) {
    return find_tactic(kOperator, device, out.scalar_type(), out.size(-2), out.size(-1),
                       problem.input.size(-1) * 2);
  }
  const Capability capability = device_capability(kOperator, device);
  const int64_t count = mm_fp4_tactic_count(capability.major, capability.minor);
  if (problem.tactic >= count) {
    argument_error(kOperator, "tactic", text(problem.tactic),
                   text("-1, or 0 to ", count - 1, " on compute capability ", capability.major, ".",
                        capability.minor),
                   "pass -1 to have one chosen");
  }
  return problem.tactic;
}

// A matrix, or a batch of more than one, as FlashInfer takes them: the module for 12.x refuses a
// batch of one.
Layout matrices(const Tensor& tensor) {
  const bool is_batch = tensor.dim() == 3 && tensor.size(0) != 1;
  const int64_t first = is_batch || tensor.dim() == 2 ? 0 : 1;
  const auto rank = static_cast<size_t>(tensor.dim() - first);
  return {Dims(tensor.sizes().data() + first, rank), Dims(tensor.strides().data() + first, rank)};
}

void launch(const Problem& problem, const Tensor& out) {
  const int64_t tactic = chosen_tactic(problem, out);
  const Readable a = dense(problem.input, kAlignment);
  const Readable b = aligned(problem.b, kAlignment);
  const Readable a_scales = aligned(problem.a_scales, kAlignment);
  const Readable b_scales = aligned(problem.b_scales, kAlignment);
  // Empty: FlashInfer then asks its environment for a workspace when the kernel needs one, and that
  // is torch's allocator (owning_tensor.cpp).
  const View workspace(out, contiguous({0}), kBytes);
  const std::lock_guard<std::mutex> lock(call_mutex);
  problem.multiply(View(*a, matrices(*a)), View(*b, transposed(matrices(*b))),
                   flat_bytes(*a_scales), flat_bytes(*b_scales), problem.alpha,
                   View(out, matrices(out)), workspace, tactic);
}

}  // namespace

FP4AOT_OPERATOR(mm_fp4, describe, launch,
                "Tensor a, Tensor b, Tensor a_descale, Tensor b_descale, Tensor? alpha, "
                "ScalarType out_dtype, int tactic=-1",
                "Tensor(a!) out", "out_dtype");

}  // namespace fp4aot
