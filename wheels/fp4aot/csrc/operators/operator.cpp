#include "operators/operator.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "torch/errors.h"

namespace fp4aot {

namespace {

// Without the arguments of some names: "Tensor a, int b=1" without "b" is "Tensor a".
std::string without(const std::string& arguments, std::initializer_list<const char*> names) {
  std::istringstream rest(arguments);
  std::string result;
  for (std::string argument; std::getline(rest, argument, ',');) {
    const size_t start = argument.rfind(' ') + 1;
    const std::string name = argument.substr(start, argument.find('=') - start);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    result += (result.empty() ? "" : ",") + argument;
  }
  return result;
}

}  // namespace

void check_output_dtype(const char* operator_name, const char* argument, const char* buffer,
                        OutputDtype dtype) {
  if (dtype.buffer != nullptr) {
    check_dtype(operator_name, buffer, *dtype.buffer, {ScalarType::BFloat16, ScalarType::Half});
  } else if (!is_one_of(dtype.value, {ScalarType::BFloat16, ScalarType::Half})) {
    argument_error(operator_name, argument, dtype_name(dtype.value),
                   "torch.bfloat16 or torch.float16", "convert the result instead");
  }
}

void define_forms(torch::stable::detail::StableLibrary& library, const char* name,
                  const std::string& arguments, size_t outputs, const char* buffers,
                  std::initializer_list<const char*> not_of_out) {
  std::string results = "Tensor";
  for (size_t i = 1; i < outputs; ++i) results += ", Tensor";
  if (outputs > 1) results = "(" + results + ")";
  library.def(text(name, "(", arguments, ") -> ", results).c_str());
  library.def(
      text(name, ".out(", without(arguments, not_of_out), ", *, ", buffers, ") -> ()").c_str());
}

namespace detail {

void Reader::check_left() const {
  if (left_ == 0) throw std::runtime_error("fp4aot: an operator has fewer arguments than its C++");
}

void Reader::finish() const {
  if (left_ != 0) throw std::runtime_error("fp4aot: an operator has more arguments than its C++");
}

Tensor allocate(const Output& output, const Tensor& like) {
  return output.clear == Clear::kNothing ? empty(output.layout, output.dtype, like)
                                         : zeros(output.layout, output.dtype, like);
}

void check_buffer(const char* operator_name, const Output& output, const Tensor& buffer,
                  const char* input_name, const Tensor& input) {
  check_output(operator_name, output.name, buffer, output.layout, output.dtype, input_name, input,
               output.alignment);
}

}  // namespace detail

}  // namespace fp4aot
