// A tensor's memory as a row of elements, whatever its shape: FlashInfer looks at the address, the
// dtype and the first size.
#pragma once

#include "tensor.h"

namespace fp4aot {

constexpr DLDataType kBytes{kDLUInt, 8, 1};

// Borrows the tensor's memory.
struct FlatView {
  explicit FlatView(const Tensor& tensor) : size(tensor.numel()), view(dl_tensor(tensor)) {
    flatten();
  }
  FlatView(const Tensor& tensor, DLDataType dtype) : FlatView(tensor) { view.dtype = dtype; }
  // `count` elements from `first_byte` on.
  FlatView(const Tensor& tensor, DLDataType dtype, int64_t count, int64_t first_byte = 0)
      : size(count), view(dl_tensor(tensor)) {
    flatten();
    view.data = static_cast<char*>(view.data) + first_byte;
    view.dtype = dtype;
  }
  FlatView(const FlatView&) = delete;
  FlatView& operator=(const FlatView&) = delete;

  int64_t size;
  int64_t stride = 1;
  DLTensor view;

 private:
  void flatten() {
    view.ndim = 1;
    view.shape = &size;
    view.strides = &stride;
  }
};

}  // namespace fp4aot
