// What the operators need of a torch tensor, read once, and what they make of it: names for
// messages, new tensors, copies that a kernel can read, and a DLTensor view.
#pragma once

#include <dlpack/dlpack.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "torch/dims.h"

namespace fp4aot {

using torch::headeronly::ScalarType;

// Owns a torch tensor. Unlike torch::stable::Tensor, it does so without a reference count of its
// own on the heap, and asks torch for everything once instead of each time: an operator asks dozens
// of times, and every question is a call into libtorch. Sizes and strides are torch's own arrays:
// nothing here resizes a tensor.
class Tensor {
 public:
  // Takes the handle over.
  explicit Tensor(AtenTensorHandle handle);

  AtenTensorHandle get() const { return handle_.get(); }
  // Whoever takes the handle owns the tensor from then on.
  AtenTensorHandle release() { return handle_.release(); }

  int64_t dim() const { return dim_; }
  // Dimensions count from the end where `i` is negative.
  int64_t size(int64_t i) const { return sizes_[i < 0 ? i + dim_ : i]; }
  int64_t stride(int64_t i) const { return strides_[i < 0 ? i + dim_ : i]; }
  Dims sizes() const { return {sizes_, static_cast<size_t>(dim_)}; }
  Dims strides() const { return {strides_, static_cast<size_t>(dim_)}; }
  ScalarType scalar_type() const { return dtype_; }
  bool is_cuda() const;
  bool is_cpu() const;
  int32_t device_type() const { return device_type_; }
  int32_t get_device_index() const { return device_index_; }

  int64_t numel() const;
  bool is_contiguous() const;
  void* data_ptr() const { return data_; }

 private:
  friend DLTensor dl_tensor(const Tensor& tensor, DLDataType dtype);
  friend Tensor empty(const Layout& layout, ScalarType dtype, const Tensor& like);

  // Reads the rest of what is known of a new tensor.
  Tensor(AtenTensorHandle handle, int64_t dim, ScalarType dtype, int32_t device_type,
         int32_t device_index);
  void read_memory();

  struct Delete {
    void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
  };

  std::unique_ptr<AtenTensorOpaque, Delete> handle_;
  int64_t dim_ = 0;
  int64_t* sizes_ = nullptr;
  int64_t* strides_ = nullptr;
  void* data_ = nullptr;
  ScalarType dtype_ = ScalarType::Undefined;
  int32_t device_type_ = 0;
  int32_t device_index_ = 0;
};

// "torch.bfloat16", as Python prints it.
std::string dtype_name(ScalarType dtype);
// "[4, 128]"
std::string list_text(const Dims& values);
std::string shape_text(const Tensor& tensor);
std::string strides_text(const Tensor& tensor);
// "cuda:1"
std::string device_text(const Tensor& tensor);

bool is_one_of(ScalarType dtype, std::initializer_list<ScalarType> accepted);
bool same_device(const Tensor& left, const Tensor& right);
// True when the data pointer is a multiple of `bytes`; true for a tensor without elements.
bool is_aligned(const Tensor& tensor, std::uintptr_t bytes);
bool has_sizes(const Tensor& tensor, const Dims& sizes);
// Whether `tensor` has this layout; strides of dimensions of size 0 or 1 do not matter.
bool has_layout(const Tensor& tensor, const Layout& layout);
// Whether the transpose of the last two dimensions is contiguous.
bool is_column_major(const Tensor& tensor);

// Memory from torch's caching allocator, on the device of `like`.
Tensor empty(const Layout& layout, ScalarType dtype, const Tensor& like);
Tensor zeros(const Layout& layout, ScalarType dtype, const Tensor& like);
// On the current stream.
void fill_with_zeros(const Tensor& tensor);
// Another reference to the same tensor.
Tensor share(AtenTensorHandle handle);

// A tensor as a kernel can read it: itself, or a copy that lives as long as this object. Borrows
// the original.
class Readable {
 public:
  explicit Readable(const Tensor& original) : original_(original) {}
  explicit Readable(Tensor&&) = delete;  // would be borrowed for longer than it lives
  Readable(const Tensor& original, Tensor copy) : original_(original), copy_(std::move(copy)) {}
  const Tensor& operator*() const { return copy_.has_value() ? *copy_ : original_; }
  const Tensor* operator->() const { return &**this; }

 private:
  const Tensor& original_;
  std::optional<Tensor> copy_;
};

// The tensor if it is contiguous and its data aligned, else a copy on the current stream.
Readable dense(const Tensor& tensor, std::uintptr_t alignment = 1);
Readable dense(Tensor&&, std::uintptr_t = 1) = delete;
// The same for an argument that may be None.
std::optional<Readable> dense(const std::optional<Tensor>& tensor, std::uintptr_t alignment = 1);
std::optional<Readable> dense(std::optional<Tensor>&&, std::uintptr_t = 1) = delete;
// The same for a tensor without gaps, whose strides stay as they are.
Readable aligned(const Tensor& tensor, std::uintptr_t alignment);
Readable aligned(Tensor&&, std::uintptr_t) = delete;

// A view that FlashInfer can read. Borrows torch's own size and stride arrays: `tensor` must
// outlive it. Throws for a dtype that no operator passes on.
DLTensor dl_tensor(const Tensor& tensor);
// The same with the bytes read as another dtype.
DLTensor dl_tensor(const Tensor& tensor, DLDataType dtype);

}  // namespace fp4aot

// How the arguments of an operator are made of what torch passes.
namespace torch::stable::detail {

template <>
struct ToImpl<fp4aot::Tensor> {
  static fp4aot::Tensor call(StableIValue value, uint64_t, bool) {
    return fp4aot::Tensor(to<AtenTensorHandle>(value));
  }
};

template <>
struct ToImpl<std::optional<fp4aot::Tensor>> {
  static std::optional<fp4aot::Tensor> call(StableIValue value, uint64_t, bool) {
    // A tensor that is there comes as an integer that torch has allocated with `new` and that is
    // ours to delete, as in torch's own header. This library's `delete` is that of its static C++
    // library, and torch's `new` that of the shared one: both are malloc and free of the one C
    // library, also where a process replaces those two.
    const std::unique_ptr<StableIValue> boxed(to<StableIValue*>(value));
    if (boxed == nullptr) return std::nullopt;
    return fp4aot::Tensor(to<AtenTensorHandle>(*boxed));
  }
};

}  // namespace torch::stable::detail
