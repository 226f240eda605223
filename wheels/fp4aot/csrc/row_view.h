// Some rows of a contiguous buffer, as a matrix that FlashInfer can read.
#pragma once

#include "tensor.h"

namespace fp4aot {

// Rows [first, first + count) of a contiguous buffer that is seen as a matrix of `columns`.
// Borrows the tensor's memory.
struct RowView {
  RowView(const Tensor& tensor, int64_t first, int64_t count, int64_t columns)
      : shape{count, columns}, strides{columns, 1}, view(dl_tensor(tensor)) {
    view.data = static_cast<char*>(view.data) + first * columns * (view.dtype.bits / 8);
    view.ndim = 2;
    view.shape = shape;
    view.strides = strides;
  }
  RowView(const RowView&) = delete;
  RowView& operator=(const RowView&) = delete;

  int64_t shape[2];
  int64_t strides[2];
  DLTensor view;
};

}  // namespace fp4aot
