// A table of tactics that is replaced as a whole, and read without a lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/checks.h"
#include "torch/errors.h"
#include "torch/tensor.h"

namespace fp4aot {

// FlashInfer's own default, where a table says nothing.
constexpr int64_t kDefaultTactic = -1;

// The numbers by which an operator's table has an output dtype.
constexpr int64_t kBfloat16Column = 0;
constexpr int64_t kFloat16Column = 1;

inline int64_t dtype_column(ScalarType dtype) {
  return dtype == ScalarType::BFloat16 ? kBfloat16Column : kFloat16Column;
}

// A row is a key of `KeySize` numbers, the smallest number of rows of its bucket, and one tactic
// for each of an operator's products. Static storage, initialised by the compiler; safe to use from
// several threads.
template <size_t KeySize, size_t Products>
class TacticTable {
 public:
  using Key = std::array<int64_t, KeySize>;
  using Tactics = std::array<int64_t, Products>;
  static constexpr int64_t kColumns = KeySize + 1 + Products;

  // Replaces the table by a tensor of rows, unless `check_row(row, key, tactics)` throws for one.
  template <typename CheckRow>
  void replace(const char* operator_name, const Tensor& table, CheckRow check_row) {
    check_dtype(operator_name, "table", table, {ScalarType::Long});
    if (!table.is_cpu() || table.dim() != 2 || table.size(1) != kColumns) {
      argument_error(
          operator_name, "table", text("shape ", shape_text(table), " on ", device_text(table)),
          text("[rows, ", kColumns, "] on the CPU"), "load a table with fp4aot.tactics.load");
    }
    const Readable rows = dense(table);
    const auto* cell = static_cast<const int64_t*>(rows->data_ptr());
    auto made = std::make_unique<Version>();
    for (int64_t row = 0; row < rows->size(0); ++row, cell += kColumns) {
      Key key;
      Bucket bucket;
      std::copy_n(cell, KeySize, key.begin());
      bucket.start = cell[KeySize];
      std::copy_n(cell + KeySize + 1, Products, bucket.tactics.begin());
      check_row(row, key, bucket.tactics);
      made->map[key].push_back(bucket);
    }
    for (auto& [key, buckets] : made->map) {
      std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& left, const Bucket& right) {
        return left.start < right.start;
      });
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    current_.store(made->map.empty() ? nullptr : &made->map, std::memory_order_release);
    made->before = std::move(newest_);
    newest_ = std::move(made);
  }

  // The tactics of the largest bucket that does not start above `rows`, else of the first one;
  // nullptr where the table does not have the key, which is made only where there is a table.
  template <typename MakeKey>
  const Tactics* find(int64_t rows, MakeKey make_key) const {
    const Map* map = current_.load(std::memory_order_acquire);
    if (map == nullptr) return nullptr;
    const auto found = map->find(make_key());
    if (found == map->end()) return nullptr;
    const std::vector<Bucket>& buckets = found->second;
    const auto above =
        std::upper_bound(buckets.begin(), buckets.end(), rows,
                         [](int64_t value, const Bucket& bucket) { return value < bucket.start; });
    return &(above == buckets.begin() ? above : above - 1)->tactics;
  }

 private:
  struct Bucket {
    int64_t start;
    Tactics tactics;
  };
  using Map = std::map<Key, std::vector<Bucket>>;

  // A table that is replaced stays: a call may be reading it.
  struct Version {
    Map map;
    std::unique_ptr<Version> before;
  };

  std::atomic<const Map*> current_{nullptr};
  std::mutex mutex_;
  std::unique_ptr<Version> newest_;
};

}  // namespace fp4aot
