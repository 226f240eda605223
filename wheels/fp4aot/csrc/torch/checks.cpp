#include "torch/checks.h"

#include <limits>
#include <string>

#include "torch/errors.h"

namespace fp4aot {

void check_dtype(const char* operator_name, const char* argument, const Tensor& tensor,
                 std::initializer_list<ScalarType> accepted) {
  if (is_one_of(tensor.scalar_type(), accepted)) return;
  std::string expected;
  for (ScalarType dtype : accepted)
    expected += (expected.empty() ? "" : " or ") + dtype_name(dtype);
  argument_error(operator_name, argument, text("dtype ", dtype_name(tensor.scalar_type())),
                 expected, "convert the tensor first");
}

void check_rank(const char* operator_name, const char* argument, const Tensor& tensor,
                std::initializer_list<int64_t> accepted) {
  for (int64_t rank : accepted) {
    if (tensor.dim() == rank) return;
  }
  std::string expected;
  for (int64_t rank : accepted) expected += text(expected.empty() ? "" : " or ", rank);
  argument_error(operator_name, argument, text("shape ", shape_text(tensor)),
                 text(expected, " dimensions"), "reshape the tensor first");
}

void check_same_device(const char* operator_name, const char* argument, const Tensor& tensor,
                       const char* reference_argument, const Tensor& reference) {
  if (same_device(tensor, reference)) return;
  argument_error(operator_name, argument, text("device ", device_text(tensor)),
                 text(device_text(reference), " (the device of '", reference_argument, "')"),
                 "move the tensor there first");
}

void check_cuda(const char* operator_name, const char* argument, const Tensor& tensor) {
  if (tensor.is_cuda()) return;
  argument_error(operator_name, argument, text("device ", device_text(tensor)),
                 "the CUDA device of the other arguments", "move the tensors to one device");
}

void check_like(const char* operator_name, const char* argument, const Tensor& tensor,
                ScalarType dtype, const Dims& sizes, const char* what_to_do,
                const char* reference_argument, const Tensor& reference) {
  check_dtype(operator_name, argument, tensor, {dtype});
  if (!has_sizes(tensor, sizes)) {
    argument_error(operator_name, argument, text("shape ", shape_text(tensor)), list_text(sizes),
                   what_to_do);
  }
  check_same_device(operator_name, argument, tensor, reference_argument, reference);
}

void check_scalar_scale(const char* operator_name, const char* argument, const Tensor& scale,
                        const char* reference_argument, const Tensor& reference) {
  check_dtype(operator_name, argument, scale, {ScalarType::Float});
  if (scale.numel() != 1) {
    argument_error(operator_name, argument, text("shape ", shape_text(scale)), "one element",
                   "pass a tensor of shape [1]");
  }
  check_same_device(operator_name, argument, scale, reference_argument, reference);
}

void check_output(const char* operator_name, const char* argument, const Tensor& output,
                  const Layout& layout, ScalarType dtype, const char* reference_argument,
                  const Tensor& reference, std::uintptr_t alignment) {
  check_dtype(operator_name, argument, output, {dtype});
  check_same_device(operator_name, argument, output, reference_argument, reference);
  if (!has_layout(output, layout)) {
    argument_error(
        operator_name, argument,
        text("shape ", shape_text(output), " with strides ", strides_text(output)),
        text("shape ", list_text(layout.sizes), " with strides ", list_text(layout.strides)),
        "allocate it as the functional form returns it");
  }
  if (!is_aligned(output, alignment)) {
    argument_error(operator_name, argument,
                   text("a buffer that is not aligned to ", alignment, " bytes"),
                   "an aligned buffer", "allocate it with torch.empty");
  }
}

void check_blocks(const char* operator_name, const char* argument, const Tensor& tensor,
                  int64_t multiple) {
  const int64_t columns = tensor.size(-1);
  if (columns % multiple == 0) return;
  argument_error(operator_name, argument,
                 text("shape ", shape_text(tensor), " (", columns, " values a row)"),
                 text("a multiple of ", multiple, " values a row"), "pad the rows");
}

void check_positive_multiple(const char* operator_name, const char* argument, const Tensor& tensor,
                             int64_t size, int64_t multiple, const char* what) {
  if (size != 0 && size % multiple == 0) return;
  argument_error(
      operator_name, argument, text("shape ", shape_text(tensor), " (", size, " ", what, ")"),
      text("a positive multiple of ", multiple, " ", what), "pad it with zeros before quantizing");
}

void check_int32(const char* operator_name, const char* argument, int64_t value, const char* what) {
  if (value <= std::numeric_limits<int32_t>::max()) return;
  argument_error(operator_name, argument, text(what, " ", value), text(what, " below 2**31"),
                 "split the call: the kernel indexes with 32-bit integers");
}

}  // namespace fp4aot
