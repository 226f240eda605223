// A tensor's memory with other sizes, as FlashInfer reads it: it looks at the address, the dtype
// and some of the sizes.
#pragma once

#include "torch/tensor.h"

namespace fp4aot {

constexpr DLDataType kBytes{kDLUInt, 8, 1};
constexpr DLDataType kFloats{kDLFloat, 32, 1};

// Borrows the tensor's memory. Made where it is used: it refers to its own sizes.
class View {
 public:
  View(const Tensor& tensor, const Layout& layout) : View(layout, dl_tensor(tensor)) {}
  View(const Tensor& tensor, const Layout& layout, DLDataType dtype, int64_t first_byte = 0)
      : View(layout, dl_tensor(tensor, dtype), first_byte) {}
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const DLTensor& dl() const { return view_; }

 private:
  View(const Layout& layout, const DLTensor& whole, int64_t first_byte = 0)
      : layout_(layout), view_(whole) {
    view_.data = static_cast<char*>(view_.data) + first_byte;
    view_.ndim = static_cast<int32_t>(layout_.sizes.size());
    view_.shape = layout_.sizes.data();
    view_.strides = layout_.strides.data();
  }

  Layout layout_;
  DLTensor view_;
};

// All elements in a row.
inline View flat(const Tensor& tensor) { return {tensor, contiguous({tensor.numel()})}; }

// All bytes in a row.
inline View flat_bytes(const Tensor& tensor) {
  return {tensor, contiguous({tensor.numel()}), kBytes};
}

// Rows [first, first + count) of a contiguous buffer that is seen as a matrix of `columns`.
inline View rows_of(const Tensor& tensor, int64_t first, int64_t count, int64_t columns) {
  const DLDataType dtype = dl_tensor(tensor).dtype;
  return {tensor, contiguous({count, columns}), dtype, first * columns * (dtype.bits / 8)};
}

}  // namespace fp4aot
