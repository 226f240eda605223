#include "torch/tensor.h"

#include <torch/csrc/stable/ops.h>

#include <utility>

#include "torch/errors.h"

namespace fp4aot {

namespace {

struct Dtype {
  ScalarType type;
  const char* name;   // as Python prints it
  DLDataType dlpack;  // without bits where no operator passes it on
};

constexpr Dtype kDtypes[] = {
    {ScalarType::Byte, "torch.uint8", {kDLUInt, 8, 1}},
    {ScalarType::Char, "torch.int8", {kDLInt, 8, 1}},
    {ScalarType::Short, "torch.int16", {}},
    {ScalarType::Int, "torch.int32", {kDLInt, 32, 1}},
    {ScalarType::Long, "torch.int64", {kDLInt, 64, 1}},
    {ScalarType::Half, "torch.float16", {kDLFloat, 16, 1}},
    {ScalarType::BFloat16, "torch.bfloat16", {kDLBfloat, 16, 1}},
    {ScalarType::Float, "torch.float32", {kDLFloat, 32, 1}},
    {ScalarType::Double, "torch.float64", {}},
    {ScalarType::Bool, "torch.bool", {}},
    {ScalarType::Float8_e4m3fn, "torch.float8_e4m3fn", {kDLFloat8_e4m3fn, 8, 1}},
    {ScalarType::Float8_e5m2, "torch.float8_e5m2", {kDLFloat8_e5m2, 8, 1}},
    {ScalarType::Float8_e8m0fnu, "torch.float8_e8m0fnu", {kDLFloat8_e8m0fnu, 8, 1}},
    // FlashInfer takes packed e2m1 as bytes.
    {ScalarType::Float4_e2m1fn_x2, "torch.float4_e2m1fn_x2", {kDLUInt, 8, 1}},
};

const Dtype* find(ScalarType type) {
  for (const Dtype& known : kDtypes) {
    if (known.type == type) return &known;
  }
  return nullptr;
}

DLDataType dl_dtype(ScalarType type) {
  const Dtype* known = find(type);
  if (known != nullptr && known->dlpack.bits != 0) return known->dlpack;
  // Unreachable from the operators: each checks its dtypes first.
  throw std::runtime_error(text("fp4aot: no DLPack dtype for ", dtype_name(type)));
}

// torch's stable ABI has operations for its own class alone.
torch::stable::Tensor to_stable(const Tensor& tensor) {
  return torch::stable::Tensor(share(tensor.get()).release());
}

}  // namespace

Tensor::Tensor(AtenTensorHandle handle) : handle_(handle) {
  read_memory();
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_index_));
  // The number of a dtype is the same in every torch: files hold it. torch's own conversion
  // compares with one dtype after the other, and throws at those that are newer than the wheel's
  // floor.
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype));
  dtype_ = static_cast<ScalarType>(dtype);
}

Tensor::Tensor(AtenTensorHandle handle, int64_t dim, ScalarType dtype, int32_t device_type,
               int32_t device_index)
    : handle_(handle),
      dim_(dim),
      dtype_(dtype),
      device_type_(device_type),
      device_index_(device_index) {
  read_memory();
}

void Tensor::read_memory() {
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(get(), &sizes_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(get(), &strides_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(get(), &data_));
}

bool Tensor::is_cuda() const { return device_type_ == aoti_torch_device_type_cuda(); }

bool Tensor::is_cpu() const { return device_type_ == aoti_torch_device_type_cpu(); }

int64_t Tensor::numel() const {
  int64_t numel = 1;
  for (int64_t i = 0; i < dim_; ++i) numel *= sizes_[i];
  return numel;
}

bool Tensor::is_contiguous() const {
  bool is_contiguous = false;
  TORCH_ERROR_CODE_CHECK(aoti_torch_is_contiguous(get(), &is_contiguous));
  return is_contiguous;
}

std::string dtype_name(ScalarType dtype) {
  const Dtype* known = find(dtype);
  return known != nullptr ? known->name : text("torch dtype ", torch::headeronly::toString(dtype));
}

std::string list_text(const Dims& values) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) result += text(i ? ", " : "", values[i]);
  return result + "]";
}

std::string shape_text(const Tensor& tensor) { return list_text(tensor.sizes()); }

std::string strides_text(const Tensor& tensor) { return list_text(tensor.strides()); }

std::string device_text(const Tensor& tensor) {
  if (tensor.is_cuda()) return text("cuda:", tensor.get_device_index());
  return tensor.is_cpu() ? "cpu" : "a device that is neither cpu nor cuda";
}

bool is_one_of(ScalarType dtype, std::initializer_list<ScalarType> accepted) {
  for (ScalarType candidate : accepted) {
    if (candidate == dtype) return true;
  }
  return false;
}

bool same_device(const Tensor& left, const Tensor& right) {
  return left.device_type() == right.device_type() &&
         left.get_device_index() == right.get_device_index();
}

bool is_aligned(const Tensor& tensor, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % bytes == 0 || tensor.numel() == 0;
}

bool has_sizes(const Tensor& tensor, const Dims& sizes) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.size(static_cast<int64_t>(i)) != sizes[i]) return false;
  }
  return true;
}

bool has_layout(const Tensor& tensor, const Layout& layout) {
  if (!has_sizes(tensor, layout.sizes)) return false;
  if (tensor.numel() == 0) return true;
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] > 1 && tensor.stride(static_cast<int64_t>(i)) != layout.strides[i]) {
      return false;
    }
  }
  return true;
}

bool is_column_major(const Tensor& tensor) {
  if (tensor.dim() < 2) return false;
  Dims sizes = tensor.sizes();
  std::swap(sizes[sizes.size() - 2], sizes.back());
  return has_layout(tensor, transposed(contiguous(sizes)));
}

Tensor empty(const Layout& layout, ScalarType dtype, const Tensor& like) {
  const auto rank = static_cast<int64_t>(layout.sizes.size());
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(rank, layout.sizes.data(), layout.strides.data(),
                                                  static_cast<int32_t>(dtype), like.device_type(),
                                                  like.get_device_index(), &handle));
  return Tensor(handle, rank, dtype, like.device_type(), like.get_device_index());
}

Tensor zeros(const Layout& layout, ScalarType dtype, const Tensor& like) {
  Tensor result = empty(layout, dtype, like);
  fill_with_zeros(result);
  return result;
}

void fill_with_zeros(const Tensor& tensor) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(tensor.get()));
}

Tensor share(AtenTensorHandle handle) {
  AtenTensorHandle shared = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handle, &shared));
  return Tensor(shared);
}

Readable dense(const Tensor& tensor, std::uintptr_t alignment) {
  if (tensor.is_contiguous()) return aligned(tensor, alignment);
  return {tensor, share(torch::stable::contiguous(to_stable(tensor)).get())};
}

std::optional<Readable> dense(const std::optional<Tensor>& tensor, std::uintptr_t alignment) {
  if (!tensor.has_value()) return std::nullopt;
  return dense(*tensor, alignment);
}

Readable aligned(const Tensor& tensor, std::uintptr_t alignment) {
  if (is_aligned(tensor, alignment)) return Readable(tensor);
  return {tensor, share(torch::stable::clone(to_stable(tensor)).get())};
}

DLTensor dl_tensor(const Tensor& tensor) {
  return dl_tensor(tensor, dl_dtype(tensor.scalar_type()));
}

DLTensor dl_tensor(const Tensor& tensor, DLDataType dtype) {
  const bool cuda = tensor.is_cuda();
  DLTensor view{};
  view.data = tensor.data_ptr();
  view.device.device_type = cuda ? kDLCUDA : kDLCPU;
  view.device.device_id = cuda ? tensor.get_device_index() : 0;
  view.ndim = static_cast<int32_t>(tensor.dim());
  view.dtype = dtype;
  view.shape = tensor.sizes_;
  view.strides = tensor.strides_;
  return view;
}

}  // namespace fp4aot
