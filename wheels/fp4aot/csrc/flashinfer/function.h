// Calls a FlashInfer function through the TVM-FFI calling convention, without heap allocation:
// arguments are packed on the stack, tensors as borrowed DLTensor pointers.
//
// `flashinfer_functions.h` is generated from aot/catalog.py and has a type for each function, which
// says what it takes. A call that passes anything else does not compile.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <optional>
#include <type_traits>

#include "flashinfer/owning_tensor.h"
#include "flashinfer/view.h"
#include "torch/tensor.h"

namespace fp4aot {

namespace flashinfer {

// What a function's type calls its arguments by, beside DLTensor, int64_t, double and bool.
struct OptionalTensor;
using fp4aot::OwningTensor;

// The types of a FlashInfer function; more than one where its modules differ.
template <typename... Signatures>
struct Function {
  template <typename Signature>
  static constexpr bool takes = (std::is_same_v<Signature, Signatures> || ...);
};

}  // namespace flashinfer

// Throws the error that the callee raised in TVM-FFI's thread-local state, with FlashInfer's text.
[[noreturn]] void throw_raised_error(const char* operator_name);

// How C++ values are passed: the type by which a signature calls them, and what is packed. This one
// is for bool, int64_t and double.
template <typename Value>
struct Argument {
  using Type = Value;
  explicit Argument(Value given) : value(given) {}
  TVMFFIAny pack() const {
    TVMFFIAny packed{};
    if constexpr (std::is_same_v<Value, double>) {
      packed.type_index = kTVMFFIFloat;
      packed.v_float64 = value;
    } else {
      packed.type_index = std::is_same_v<Value, bool> ? kTVMFFIBool : kTVMFFIInt;
      packed.v_int64 = value;
    }
    return packed;
  }
  Value value;
};

inline TVMFFIAny pack_tensor(const DLTensor& tensor) {
  TVMFFIAny value{};
  value.type_index = kTVMFFIDLTensorPtr;
  value.v_ptr = const_cast<DLTensor*>(&tensor);
  return value;
}

inline TVMFFIAny pack_none() {
  TVMFFIAny value{};
  value.type_index = kTVMFFINone;
  return value;
}

template <>
struct Argument<Tensor> {
  using Type = DLTensor;
  explicit Argument(const Tensor& tensor) : view(dl_tensor(tensor)) {}
  TVMFFIAny pack() const { return pack_tensor(view); }
  DLTensor view;
};

template <>
struct Argument<Readable> : Argument<Tensor> {
  explicit Argument(const Readable& readable) : Argument<Tensor>(*readable) {}
};

template <>
struct Argument<View> {
  using Type = DLTensor;
  explicit Argument(const View& given) : view(given) {}
  TVMFFIAny pack() const { return pack_tensor(view.dl()); }
  const View& view;
};

template <typename Value>
struct Argument<std::optional<Value>> {
  using Type = flashinfer::OptionalTensor;
  explicit Argument(const std::optional<Value>& given) {
    if (given.has_value()) argument.emplace(*given);
  }
  TVMFFIAny pack() const { return argument.has_value() ? argument->pack() : pack_none(); }
  std::optional<Argument<Value>> argument;
};

template <>
struct Argument<OwningTensor> {
  using Type = OwningTensor;
  explicit Argument(const OwningTensor& given) : tensor(given) {}
  TVMFFIAny pack() const {
    TVMFFIAny value{};
    value.type_index = kTVMFFITensor;
    value.v_obj = static_cast<TVMFFIObject*>(tensor.handle());
    return value;
  }
  const OwningTensor& tensor;
};

// A compiled function of FlashInfer's, for one device. `Type` is from flashinfer_functions.h.
template <typename Type>
class Kernel {
 public:
  Kernel(TVMFFISafeCallType function, const char* operator_name)
      : function_(function), operator_name_(operator_name) {}

  // The callee borrows all arguments for the duration of the call. Throws on error.
  template <typename... Values>
  void operator()(const Values&... values) const {
    static_assert(Type::template takes<void(typename Argument<Values>::Type...)>,
                  "the arguments are not those of the function's row in aot/catalog.py");
    call(Argument<Values>(values).pack()...);
  }

  // For functions that return an integer.
  template <typename... Values>
  int64_t integer(const Values&... values) const {
    static_assert(Type::template takes<int64_t(typename Argument<Values>::Type...)>,
                  "the arguments are not those of the function's row in aot/catalog.py");
    return call(Argument<Values>(values).pack()...).v_int64;
  }

 private:
  template <typename... Packed>
  TVMFFIAny call(const Packed&... arguments) const {
    // One more than there are: an array has no length of zero.
    const TVMFFIAny packed[sizeof...(Packed) + 1] = {arguments...};
    TVMFFIAny result = pack_none();
    if (function_(nullptr, packed, static_cast<int32_t>(sizeof...(Packed)), &result) != 0) {
      throw_raised_error(operator_name_);
    }
    return result;
  }

  TVMFFISafeCallType function_;
  const char* operator_name_;
};

}  // namespace fp4aot
