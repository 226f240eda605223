#include "flashinfer/function.h"

#include <string>

#include "torch/errors.h"

namespace fp4aot {

void throw_raised_error(const char* operator_name) {
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  if (error == nullptr) fail(operator_name, "FlashInfer failed without a message");
  const TVMFFIErrorCell* cell = TVMFFIErrorGetCellPtr(error);
  const std::string kind(cell->kind.data, cell->kind.size);
  std::string message(cell->message.data, cell->message.size);
  // TensorRT-LLM's checks append a stack of addresses, which says nothing to a user.
  const size_t stack = message.find("\n1  ");
  if (stack != std::string::npos) message.resize(stack);
  TVMFFIObjectDecRef(error);
  fail(operator_name, text("FlashInfer raised ", kind, ": ", message));
}

}  // namespace fp4aot
