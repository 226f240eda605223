// Tensors that TVM-FFI owns: arguments of FlashInfer functions that keep a reference, and the
// workspaces that FlashInfer asks its environment for.
#pragma once

#include <tvm/ffi/c_api.h>

#include "torch/tensor.h"

namespace fp4aot {

// A torch tensor as a reference-counted TVM-FFI tensor, seen as a contiguous array of `shape`.
// For the FlashInfer functions that take an owning tensor, to which a borrowed DLTensor does not
// convert. Costs two small heap allocations; all other arguments cost none.
class OwningTensor {
 public:
  OwningTensor(const char* operator_name, const Tensor& tensor, const Dims& shape);
  // The same with the bytes read as another dtype.
  OwningTensor(const char* operator_name, const Tensor& tensor, const Dims& shape,
               DLDataType dtype);
  ~OwningTensor();
  OwningTensor(const OwningTensor&) = delete;
  OwningTensor& operator=(const OwningTensor&) = delete;

  TVMFFIObjectHandle handle() const { return handle_; }

 private:
  TVMFFIObjectHandle handle_ = nullptr;
};

// Throws unless FlashInfer's workspaces come from torch's allocator, which is arranged when the
// library is loaded.
void check_allocator(const char* operator_name);

}  // namespace fp4aot
