// Calls a FlashInfer function through the TVM-FFI calling convention, without heap allocation:
// arguments are packed on the stack, tensors as borrowed DLTensor pointers.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "tensor.h"
#include "tvm_ffi_tensor.h"

namespace fp4aot {

// Throws the error that the callee raised in TVM-FFI's thread-local state, with FlashInfer's text.
[[noreturn]] void throw_raised_error(const char* operator_name);

// An optional tensor argument: None on the other side when empty.
struct OptionalTensor {
  const DLTensor* tensor;
};

inline TVMFFIAny pack(const DLTensor& tensor) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIDLTensorPtr;
  value.v_ptr = const_cast<DLTensor*>(&tensor);
  return value;
}

inline TVMFFIAny pack(OptionalTensor argument) {
  if (argument.tensor != nullptr) return pack(*argument.tensor);
  TVMFFIAny value{};
  value.type_index = kTVMFFINone;
  return value;
}

inline TVMFFIAny pack(bool flag) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIBool;
  value.v_int64 = flag ? 1 : 0;
  return value;
}

inline TVMFFIAny pack(int64_t number) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIInt;
  value.v_int64 = number;
  return value;
}

inline TVMFFIAny pack(double number) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIFloat;
  value.v_float64 = number;
  return value;
}

inline TVMFFIAny pack(const OwningTensor& tensor) {
  TVMFFIAny value{};
  value.type_index = kTVMFFITensor;
  value.v_obj = static_cast<TVMFFIObject*>(tensor.handle());
  return value;
}

// The callee borrows all arguments for the duration of the call; functions called this way return
// nothing. Throws on error.
template <typename... Arguments>
void call_flashinfer(TVMFFISafeCallType function, const char* operator_name,
                     const Arguments&... arguments) {
  const TVMFFIAny packed[] = {pack(arguments)...};
  TVMFFIAny result{};
  result.type_index = kTVMFFINone;
  if (function(nullptr, packed, static_cast<int32_t>(sizeof...(Arguments)), &result) != 0) {
    throw_raised_error(operator_name);
  }
}

// For functions that return an integer.
template <typename... Arguments>
int64_t call_flashinfer_for_int(TVMFFISafeCallType function, const char* operator_name,
                                const Arguments&... arguments) {
  // One more than there are: an array has no length of zero.
  const TVMFFIAny packed[sizeof...(Arguments) + 1] = {pack(arguments)...};
  TVMFFIAny result{};
  result.type_index = kTVMFFINone;
  if (function(nullptr, packed, static_cast<int32_t>(sizeof...(Arguments)), &result) != 0) {
    throw_raised_error(operator_name);
  }
  return result.v_int64;
}

}  // namespace fp4aot
