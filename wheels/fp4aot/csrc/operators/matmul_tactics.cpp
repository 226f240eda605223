#include "operators/matmul_tactics.h"

#include "flashinfer/kernel_table.h"
#include "flashinfer_functions.h"
#include "operators/operator.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kSetOperator = "_set_mm_fp4_tactics";

// Capability, out dtype, N, K.
using Table = TacticTable<5, 1>;

Table table_in_force;

void check_row(int64_t row, const Table::Key& key, const Table::Tactics& tactics) {
  const int64_t major = key[0], minor = key[1], dtype = key[2], tactic = tactics[0];
  const int64_t count = mm_fp4_tactic_count(major, minor);
  if ((dtype == kBfloat16Column || dtype == kFloat16Column) && tactic >= kDefaultTactic &&
      tactic < count) {
    return;
  }
  argument_error(kSetOperator, "table",
                 text("row ", row, " with out dtype ", dtype, " and tactic ", tactic),
                 text("out dtype 0 or 1, and a tactic of the ", count, " that compute capability ",
                      major, ".", minor, " has in this wheel"),
                 "load a table that was made with this wheel");
}

// Replaces the table. Columns: major, minor, out dtype (0 = bfloat16, 1 = float16), N, K, smallest
// M of the bucket, tactic.
void set_mm_fp4_tactics(const Tensor& table) {
  table_in_force.replace(kSetOperator, table, check_row);
}

}  // namespace

int64_t mm_fp4_tactic_count(int64_t major, int64_t minor) {
  using Count = flashinfer::fp4_gemm_tactic_num;
  const KernelEntry* entry =
      find_kernel(Count::kName, {static_cast<int>(major), static_cast<int>(minor)});
  if (entry == nullptr) return 0;
  return Kernel<Count>(entry->call, "_mm_fp4_tactic_count").integer();
}

int64_t find_tactic(const char* operator_name, int device, ScalarType out_dtype, int64_t m,
                    int64_t n, int64_t k) {
  const Table::Tactics* found = table_in_force.find(m, [&]() -> Table::Key {
    const Capability capability = device_capability(operator_name, device);
    return {capability.major, capability.minor, dtype_column(out_dtype), n, k};
  });
  return found == nullptr ? kDefaultTactic : (*found)[0];
}

FP4AOT_FUNCTION(_mm_fp4_tactic_count, mm_fp4_tactic_count, "int major, int minor", "int");
FP4AOT_FUNCTION(_set_mm_fp4_tactics, set_mm_fp4_tactics, "Tensor table", "()");

}  // namespace fp4aot
