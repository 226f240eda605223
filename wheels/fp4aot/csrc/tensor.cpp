#include "tensor.h"

#include <torch/csrc/stable/ops.h>

#include <utility>

#include "errors.h"

namespace fp4aot {

namespace {

DLDataType dl_dtype(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
    case ScalarType::Float4_e2m1fn_x2:  // FlashInfer takes packed e2m1 as bytes
      return {kDLUInt, 8, 1};
    case ScalarType::Int:
      return {kDLInt, 32, 1};
    case ScalarType::Long:
      return {kDLInt, 64, 1};
    case ScalarType::Half:
      return {kDLFloat, 16, 1};
    case ScalarType::BFloat16:
      return {kDLBfloat, 16, 1};
    case ScalarType::Float:
      return {kDLFloat, 32, 1};
    case ScalarType::Float8_e4m3fn:
      return {kDLFloat8_e4m3fn, 8, 1};
    default:
      // Unreachable from the operators: each checks its dtypes first.
      throw std::runtime_error(text("fp4aot: no DLPack dtype for ", dtype_name(dtype)));
  }
}

}  // namespace

ScalarType dtype_of(const Tensor& tensor) {
  // Tensor::scalar_type() knows these two only where the target is torch 2.11, and throws else.
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  for (ScalarType dtype : {ScalarType::Float4_e2m1fn_x2, ScalarType::Float8_e8m0fnu}) {
    if (code == static_cast<int32_t>(dtype)) return dtype;
  }
  return tensor.scalar_type();
}

std::string dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte:
      return "torch.uint8";
    case ScalarType::Char:
      return "torch.int8";
    case ScalarType::Short:
      return "torch.int16";
    case ScalarType::Int:
      return "torch.int32";
    case ScalarType::Long:
      return "torch.int64";
    case ScalarType::Half:
      return "torch.float16";
    case ScalarType::BFloat16:
      return "torch.bfloat16";
    case ScalarType::Float:
      return "torch.float32";
    case ScalarType::Double:
      return "torch.float64";
    case ScalarType::Bool:
      return "torch.bool";
    case ScalarType::Float8_e4m3fn:
      return "torch.float8_e4m3fn";
    case ScalarType::Float8_e5m2:
      return "torch.float8_e5m2";
    case ScalarType::Float8_e8m0fnu:
      return "torch.float8_e8m0fnu";
    case ScalarType::Float4_e2m1fn_x2:
      return "torch.float4_e2m1fn_x2";
    default:
      return text("torch dtype ", torch::headeronly::toString(dtype));
  }
}

std::string shape_text(const Tensor& tensor) {
  std::ostringstream stream;
  stream << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) stream << (i ? ", " : "") << tensor.size(i);
  stream << "]";
  return stream.str();
}

std::string list_text(const std::vector<int64_t>& values) {
  std::string result = "[";
  for (size_t i = 0; i < values.size(); ++i) result += text(i ? ", " : "", values[i]);
  return result + "]";
}

std::string strides_text(const Tensor& tensor) {
  return list_text({tensor.strides().begin(), tensor.strides().end()});
}

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
  return left.is_cuda() == right.is_cuda() && left.is_cpu() == right.is_cpu() &&
         left.get_device_index() == right.get_device_index();
}

bool is_aligned(const Tensor& tensor, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % bytes == 0 || tensor.numel() == 0;
}

Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return strides;
}

Tensor empty_strided(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                     ScalarType dtype, const Tensor& like) {
  int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), code, device_type,
                                                  like.get_device_index(), &handle));
  return Tensor(handle);
}

bool has_layout(const Tensor& tensor, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  bool empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.size(static_cast<int64_t>(i)) != sizes[i]) return false;
    empty = empty || sizes[i] == 0;
  }
  for (size_t i = 0; i < sizes.size() && !empty; ++i) {
    if (sizes[i] > 1 && tensor.stride(static_cast<int64_t>(i)) != strides[i]) return false;
  }
  return true;
}

bool is_column_major(const Tensor& tensor) {
  const int64_t rank = tensor.dim();
  if (rank < 2) return false;
  std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const auto last = static_cast<size_t>(rank) - 1;
  std::swap(sizes[last - 1], sizes[last]);
  std::vector<int64_t> strides = contiguous_strides(sizes);
  std::swap(sizes[last - 1], sizes[last]);
  std::swap(strides[last - 1], strides[last]);
  return has_layout(tensor, sizes, strides);
}

DLTensor dl_tensor(const Tensor& tensor) {
  DLTensor view{};
  view.data = tensor.data_ptr();
  view.device.device_type = tensor.is_cuda() ? kDLCUDA : kDLCPU;
  view.device.device_id = tensor.is_cuda() ? tensor.get_device_index() : 0;
  view.ndim = static_cast<int32_t>(tensor.dim());
  view.dtype = dl_dtype(dtype_of(tensor));
  view.shape = const_cast<int64_t*>(tensor.sizes().data());
  view.strides = const_cast<int64_t*>(tensor.strides().data());
  return view;
}

}  // namespace fp4aot
