#include "gemm_tactics.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cuda_state.h"
#include "errors.h"
#include "tvm_ffi_call.h"

namespace fp4aot {

namespace {

constexpr const char* kSetOperator = "_set_mm_fp4_tactics";
constexpr int64_t kColumns = 7;
constexpr int64_t kBfloat16 = 0;
constexpr int64_t kFloat16 = 1;

// Capability, out dtype, N, K.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

struct Bucket {
  int64_t smallest_m;
  int64_t tactic;
};

using Table = std::map<Key, std::vector<Bucket>>;

// Readers take the pointer with one load. A table that is replaced stays: a call may be reading it.
std::atomic<const Table*> current_table{nullptr};
std::mutex tables_mutex;
std::vector<std::unique_ptr<const Table>>& all_tables() {
  static std::vector<std::unique_ptr<const Table>> tables;
  return tables;
}

int64_t dtype_column(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 ? kBfloat16 : kFloat16;
}

}  // namespace

int64_t mm_fp4_tactic_count(int64_t major, int64_t minor) {
  const KernelEntry* entry =
      find_kernel("fp4_gemm_tactic_num", {static_cast<int>(major), static_cast<int>(minor)});
  return entry == nullptr ? 0 : call_flashinfer_for_int(entry->call, "_mm_fp4_tactic_count");
}

void set_mm_fp4_tactics(const Tensor& table) {
  check_dtype(kSetOperator, "table", table, {ScalarType::Long});
  if (!table.is_cpu() || table.dim() != 2 || table.size(1) != kColumns) {
    argument_error(
        kSetOperator, "table", text("shape ", shape_text(table), " on ", device_text(table)),
        text("[rows, ", kColumns, "] on the CPU"), "load a table with fp4aot.tactics.load");
  }
  const Readable rows = dense(table);
  const auto* data = static_cast<const int64_t*>(rows->data_ptr());
  auto made = std::make_unique<Table>();
  for (int64_t row = 0; row < rows->size(0); ++row) {
    const int64_t* cell = data + row * kColumns;
    const int64_t major = cell[0], minor = cell[1], dtype = cell[2], tactic = cell[6];
    const int64_t count = mm_fp4_tactic_count(major, minor);
    if ((dtype != kBfloat16 && dtype != kFloat16) || tactic < kDefaultTactic || tactic >= count) {
      argument_error(kSetOperator, "table",
                     text("row ", row, " with out dtype ", dtype, " and tactic ", tactic),
                     text("out dtype 0 or 1, and a tactic of the ", count,
                          " that compute capability ", major, ".", minor, " has in this wheel"),
                     "load a table that was made with this wheel");
    }
    (*made)[{major, minor, dtype, cell[3], cell[4]}].push_back({cell[5], tactic});
  }
  for (auto& [key, buckets] : *made) {
    std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& left, const Bucket& right) {
      return left.smallest_m < right.smallest_m;
    });
  }
  const std::lock_guard<std::mutex> lock(tables_mutex);
  current_table.store(made->empty() ? nullptr : made.get(), std::memory_order_release);
  if (!made->empty()) all_tables().push_back(std::move(made));
}

int64_t find_tactic(const char* operator_name, int device, ScalarType out_dtype, int64_t m,
                    int64_t n, int64_t k) {
  const Table* table = current_table.load(std::memory_order_acquire);
  if (table == nullptr) return kDefaultTactic;
  const Capability capability = device_capability(operator_name, device);
  const auto found =
      table->find({capability.major, capability.minor, dtype_column(out_dtype), n, k});
  if (found == table->end()) return kDefaultTactic;
  const std::vector<Bucket>& buckets = found->second;
  const auto above = std::upper_bound(
      buckets.begin(), buckets.end(), m,
      [](int64_t value, const Bucket& bucket) { return value < bucket.smallest_m; });
  return (above == buckets.begin() ? above : above - 1)->tactic;
}

}  // namespace fp4aot
