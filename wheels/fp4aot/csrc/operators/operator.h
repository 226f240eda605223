// How an operator is declared, beside its code: its schema, and both of its forms, which are made
// of one function that describes a call and one that launches it.
//
//   FP4AOT_OPERATOR(mm_fp4, describe, launch, "Tensor a, …, ScalarType out_dtype, int tactic=-1",
//                   "Tensor(a!) out", "out_dtype");
//
// `describe` takes the arguments of the functional form, refuses what the kernel cannot do, and
// returns a `Description` with all that `launch` needs. The functional form describes, allocates
// the outputs and launches; `.out` describes, checks the caller's buffers and launches. The
// arguments named last are those that `.out` does not have, because its buffers say the same.
//
// The CPU kernels and the fakes come from Python (fp4aot.operators). Tests run this code on a
// machine without a GPU: they compile it with another namespace and dispatch key.
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "flashinfer/launch_scope.h"
#include "torch/checks.h"
#include "torch/tensor.h"

#ifndef FP4AOT_NAMESPACE
#define FP4AOT_NAMESPACE fp4aot
#define FP4AOT_DEVICE_KEY CUDA
#define FP4AOT_HOST_KEY CPU
#endif

namespace fp4aot {

// Which buffers are cleared before the launch, because the kernel does not write all of them.
enum class Clear {
  kNothing,
  kNewBuffers,  // those of the functional form: a caller's keep what they hold
  kEveryBuffer,
};

// How one output lies in memory: so the functional form returns it, and so `.out` requires it.
struct Output {
  const char* name;
  Layout layout;
  ScalarType dtype;
  std::uintptr_t alignment = 8;  // of a caller's buffer: most kernels store eight bytes at once
  Clear clear = Clear::kNothing;
};

// What `describe` returns, as a base of what is particular to the operator. Refers to the
// arguments.
template <size_t Outputs>
struct Description {
  static constexpr size_t kOutputs = Outputs;
  // Host code needs neither a device nor a stream.
  static constexpr bool kOnHost = false;

  const char* operator_name;
  const char* input_name;  // the argument whose device runs the operator
  const Tensor& input;
  std::array<Output, Outputs> outputs;
};

// Arguments of `describe` that the two forms get from different places.

// A dtype that `.out` takes from its first output.
struct OutputDtype {
  ScalarType value;
  const Tensor* buffer;  // where `.out` took it from
};

// A size that `.out` takes from the second dimension of its first output.
struct OutputLength {
  int64_t value;
  const Tensor* buffer;
};

// What only `.out` takes, before its outputs.
template <typename Value>
struct OutOnly {
  Value value{};
};

// bfloat16 or float16. An error names `argument` in the functional form, `buffer` in `.out`.
void check_output_dtype(const char* operator_name, const char* argument, const char* buffer,
                        OutputDtype dtype);

namespace detail {

template <typename Type>
struct IsOutOnly : std::false_type {};
template <typename Value>
struct IsOutOnly<OutOnly<Value>> : std::true_type {};

// Takes one argument after the other from what torch passes.
class Reader {
 public:
  // `buffer` is the first output of `.out`, nullptr in the functional form.
  Reader(const StableIValue* values, uint64_t count, const Tensor* buffer)
      : values_(values), left_(count), buffer_(buffer) {}

  template <typename Type>
  Type next() {
    if constexpr (std::is_same_v<Type, OutputDtype>) {
      if (buffer_ != nullptr) return {buffer_->scalar_type(), buffer_};
      // By its number, which every torch agrees on: `to<ScalarType>` of the oldest torch that
      // fp4aot supports throws for the dtypes that came later, and an error should name them.
      return {static_cast<ScalarType>(take<int32_t>()), nullptr};
    } else if constexpr (std::is_same_v<Type, OutputLength>) {
      if (buffer_ != nullptr) return {buffer_->dim() > 1 ? buffer_->size(1) : 0, buffer_};
      return {take<int64_t>(), nullptr};
    } else if constexpr (IsOutOnly<Type>::value) {
      if (buffer_ == nullptr) return {};
      return {take<decltype(Type::value)>()};
    } else {
      return take<Type>();
    }
  }

  // Throws unless everything has been taken: the schema is not that of `describe`.
  void finish() const;

 private:
  template <typename Type>
  Type take() {
    check_left();
    --left_;
    return torch::stable::detail::to<Type>(*values_++);
  }
  void check_left() const;

  const StableIValue* values_;
  uint64_t left_;
  const Tensor* buffer_;
};

// The new buffer of an output.
Tensor allocate(const Output& output, const Tensor& like);
// Refuses a caller's buffer that is not what `allocate` would make.
void check_buffer(const char* operator_name, const Output& output, const Tensor& buffer,
                  const char* input_name, const Tensor& input);

}  // namespace detail

// Both forms of an operator, as torch calls them.
template <auto describe, auto launch, typename = decltype(describe)>
class Operator;

template <auto describe, auto launch, typename Problem, typename... Parameters>
class Operator<describe, launch, Problem (*)(Parameters...)> {
 public:
  static constexpr size_t kOutputs = Problem::kOutputs;

  static void functional(StableIValue* stack, uint64_t count, uint64_t) {
    const Arguments arguments = read(stack, count, nullptr);
    const Problem problem = std::apply(describe, arguments);
    allocate_and_launch(problem, stack, std::make_index_sequence<kOutputs>());
  }

  // Also an operator that writes in place, which has no outputs.
  static void out(StableIValue* stack, uint64_t count, uint64_t) {
    check_and_launch(stack, count - kOutputs, std::make_index_sequence<kOutputs>());
  }

 private:
  using Arguments = std::tuple<std::decay_t<Parameters>...>;

  static Arguments read(const StableIValue* values, uint64_t count, const Tensor* buffer) {
    detail::Reader reader(values, count, buffer);
    // Braces: from left to right.
    Arguments arguments{reader.template next<std::decay_t<Parameters>>()...};
    reader.finish();
    return arguments;
  }

  template <size_t... I>
  static void allocate_and_launch(const Problem& problem, StableIValue* stack,
                                  std::index_sequence<I...>) {
    std::array<Tensor, kOutputs> outputs{detail::allocate(problem.outputs[I], problem.input)...};
    run(problem, outputs[I]...);
    ((stack[I] = torch::stable::detail::from(outputs[I].release())), ...);
  }

  template <size_t... I>
  static void check_and_launch(StableIValue* stack, uint64_t count, std::index_sequence<I...>) {
    const std::array<Tensor, kOutputs> buffers{
        Tensor(torch::stable::detail::to<AtenTensorHandle>(stack[count + I]))...};
    const Arguments arguments = read(stack, count, kOutputs > 0 ? buffers.data() : nullptr);
    const Problem problem = std::apply(describe, arguments);
    (detail::check_buffer(problem.operator_name, problem.outputs[I], buffers[I], problem.input_name,
                          problem.input),
     ...);
    ((problem.outputs[I].clear == Clear::kEveryBuffer ? fill_with_zeros(buffers[I]) : void()), ...);
    run(problem, buffers[I]...);
  }

  template <typename... Outputs>
  static void run(const Problem& problem, const Outputs&... outputs) {
    // Nothing to write. An operator that writes in place says itself when that is so.
    if (sizeof...(Outputs) > 0 && ((outputs.numel() == 0) && ...)) return;
    if constexpr (Problem::kOnHost) {
      launch(problem, outputs...);
    } else {
      const LaunchScope scope(problem.operator_name, problem.input.get_device_index());
      launch(problem, outputs...);
      scope.check_launch();
    }
  }
};

// Defines a schema for each form. `buffers` are the arguments of `.out` alone; `outputs` of them
// are outputs; `not_of_out` are the names of the arguments that it does not have.
void define_forms(torch::stable::detail::StableLibrary& library, const char* name,
                  const std::string& arguments, size_t outputs, const char* buffers,
                  std::initializer_list<const char*> not_of_out);

}  // namespace fp4aot

#define FP4AOT_FORMS(key, name, describe, launch, arguments, buffers, ...)                        \
  STABLE_TORCH_LIBRARY_FRAGMENT(FP4AOT_NAMESPACE, library) {                                      \
    fp4aot::define_forms(library, #name, arguments, fp4aot::Operator<describe, launch>::kOutputs, \
                         buffers, {__VA_ARGS__});                                                 \
  }                                                                                               \
  STABLE_TORCH_LIBRARY_IMPL(FP4AOT_NAMESPACE, key, library) {                                     \
    library.impl(#name, &fp4aot::Operator<describe, launch>::functional);                         \
    library.impl(#name ".out", &fp4aot::Operator<describe, launch>::out);                         \
  }                                                                                               \
  static_assert(true)

// An operator that runs on a GPU.
#define FP4AOT_OPERATOR(...) FP4AOT_FORMS(FP4AOT_DEVICE_KEY, __VA_ARGS__)

// An operator that is FlashInfer's host code.
#define FP4AOT_HOST_OPERATOR(...) FP4AOT_FORMS(FP4AOT_HOST_KEY, __VA_ARGS__)

// An operator that FlashInfer has no kernel for: the reference in Python serves every device.
#define FP4AOT_REFERENCE_OPERATOR(name, arguments, buffers)                      \
  STABLE_TORCH_LIBRARY_FRAGMENT(FP4AOT_NAMESPACE, library) {                     \
    fp4aot::define_forms(library, #name, arguments, /*outputs=*/1, buffers, {}); \
  }                                                                              \
  static_assert(true)

// An operator that writes to its arguments, which its schema marks, and returns nothing.
#define FP4AOT_IN_PLACE_OPERATOR(name, describe, launch, arguments)         \
  STABLE_TORCH_LIBRARY_FRAGMENT(FP4AOT_NAMESPACE, library) {                \
    library.def(#name "(" arguments ") -> ()");                             \
  }                                                                         \
  STABLE_TORCH_LIBRARY_IMPL(FP4AOT_NAMESPACE, FP4AOT_DEVICE_KEY, library) { \
    library.impl(#name, &fp4aot::Operator<describe, launch>::out);          \
  }                                                                         \
  static_assert(true)

// A function without a tensor on a device: the same wherever it is called.
#define FP4AOT_FUNCTION(name, function, arguments, result)                          \
  STABLE_TORCH_LIBRARY_FRAGMENT(FP4AOT_NAMESPACE, library) {                        \
    library.def(#name "(" arguments ") -> " result);                                \
  }                                                                                 \
  STABLE_TORCH_LIBRARY_IMPL(FP4AOT_NAMESPACE, CompositeExplicitAutograd, library) { \
    library.impl(#name, TORCH_BOX(&function));                                      \
  }                                                                                 \
  static_assert(true)
