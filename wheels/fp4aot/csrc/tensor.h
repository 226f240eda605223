// What the operators need of a torch tensor: names for messages, allocation, and a DLTensor view.
#pragma once

#include <dlpack/dlpack.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace fp4aot {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The dtype, also of tensors whose dtype torch's stable ABI of the wheel's floor cannot name.
ScalarType dtype_of(const Tensor& tensor);
// "torch.bfloat16", as Python prints it.
std::string dtype_name(ScalarType dtype);
// "[4, 128]"
std::string shape_text(const Tensor& tensor);
// "[128, 1]"
std::string list_text(const std::vector<int64_t>& values);
std::string strides_text(const Tensor& tensor);
// "cuda:1"
std::string device_text(const Tensor& tensor);

bool is_one_of(ScalarType dtype, std::initializer_list<ScalarType> accepted);
bool same_device(const Tensor& left, const Tensor& right);
// True when the data pointer is a multiple of `bytes`; true for a tensor without elements.
bool is_aligned(const Tensor& tensor, std::uintptr_t bytes);

// The tensor itself, or a contiguous copy on the current stream.
Tensor dense(const Tensor& tensor);

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Contiguous strides for `sizes`.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);
// Uninitialised memory from torch's caching allocator, on the device of `like`.
Tensor empty_strided(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                     ScalarType dtype, const Tensor& like);
// Whether `tensor` has these sizes and strides; strides of dimensions of size 0 or 1 do not matter.
bool has_layout(const Tensor& tensor, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides);

// Whether the transpose of the last two dimensions is contiguous.
bool is_column_major(const Tensor& tensor);

// A view that FlashInfer can read. Borrows torch's own size and stride arrays: `tensor` must
// outlive it, and must not be resized meanwhile.
DLTensor dl_tensor(const Tensor& tensor);

}  // namespace fp4aot
