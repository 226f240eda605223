// Sizes and strides, on the stack: a call allocates nothing to describe its tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <utility>

namespace fp4aot {

// The sizes, or the strides, of one tensor.
class Dims {
 public:
  // As many as torch's own operations take.
  static constexpr size_t kCapacity = 64;

  Dims() {}  // not defaulted: that would set all values to zero
  Dims(std::initializer_list<int64_t> values) : Dims(values.begin(), values.size()) {}
  Dims(const int64_t* values, size_t count) : Dims(count) { std::copy_n(values, count, values_); }
  // Values to be set.
  explicit Dims(size_t count) : count_(count) {
    if (count > kCapacity) throw std::runtime_error("fp4aot: a tensor of more than 64 dimensions");
  }
  Dims(const Dims& other) : count_(other.count_) { std::copy_n(other.values_, count_, values_); }
  Dims& operator=(const Dims& other) {
    count_ = other.count_;
    std::copy_n(other.values_, count_, values_);
    return *this;
  }

  size_t size() const { return count_; }
  const int64_t* data() const { return values_; }
  int64_t* data() { return values_; }
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + count_; }
  int64_t& operator[](size_t index) { return values_[index]; }
  int64_t operator[](size_t index) const { return values_[index]; }
  int64_t& back() { return values_[count_ - 1]; }

 private:
  size_t count_ = 0;
  int64_t values_[kCapacity];  // only the first `count_` are set
};

// How a buffer lies in memory.
struct Layout {
  Dims sizes;
  Dims strides;
};

inline Layout contiguous(const Dims& sizes) {
  Layout layout{sizes, Dims(sizes.size())};
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    layout.strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return layout;
}

// The same buffer with the last two dimensions swapped, if it has two.
inline Layout transposed(Layout layout) {
  if (layout.sizes.size() < 2) return layout;
  const size_t last = layout.sizes.size() - 1;
  std::swap(layout.sizes[last - 1], layout.sizes[last]);
  std::swap(layout.strides[last - 1], layout.strides[last]);
  return layout;
}

// The product of two sizes, or the largest number where it is beyond that: a caller's integer can
// be anything.
inline int64_t saturating_product(int64_t left, int64_t right) {
  int64_t result = 0;
  if (__builtin_mul_overflow(left, right, &result)) return std::numeric_limits<int64_t>::max();
  return result;
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace fp4aot
