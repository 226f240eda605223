// Which compiled FlashInfer functions this library carries, and for which devices.
//
// The table itself is generated from the build plan. A function is found once per device and then
// kept, so that a call costs one atomic load.
#pragma once

#include <tvm/ffi/c_api.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "flashinfer/function.h"
#include "torch/devices.h"

namespace fp4aot {

// One device image: "12.0f" is {12, 0, 'f'}. An 'a' image runs on its own capability only, an 'f'
// image on its own and on later minors of the same major (CUDA's family-specific targets).
struct Image {
  int major;
  int minor;
  char suffix;

  bool runs_on(Capability capability) const;
};

struct KernelEntry {
  const char* module;
  const char* function;
  TVMFFISafeCallType call;
  const Image* images;
  size_t image_count;
};

// Generated.
extern const KernelEntry kernel_entries[];
extern const size_t kernel_entry_count;
// Whether the machine code is Blackwell's, lowered to Hopper: for tests alone.
extern const bool kernels_are_lowered;

// The entry of `function` whose image fits best (an exact image before a family one), or nullptr.
const KernelEntry* find_kernel(const char* function, Capability capability);

// Where a FlashInfer function is, once for each device. Static storage; safe to use from several
// threads.
class KernelSlots {
 public:
  KernelSlots(const char* operator_name, const char* function)
      : operator_name_(operator_name), function_(function) {}

  const char* operator_name() const { return operator_name_; }

 protected:
  TVMFFISafeCallType find_for_device(int device);
  TVMFFISafeCallType find_for_host();

 private:
  TVMFFISafeCallType look_up(int device) const;

  const char* operator_name_;
  const char* function_;
  std::array<std::atomic<TVMFFISafeCallType>, kMaxDevices> by_device_{};
  std::atomic<TVMFFISafeCallType> host_{nullptr};
};

// A FlashInfer function, `Type` of flashinfer_functions.h, as an operator calls it.
template <typename Type>
class KernelFunction : public KernelSlots {
 public:
  explicit KernelFunction(const char* operator_name) : KernelSlots(operator_name, Type::kName) {}

  // For tensors on cuda:`device`. Throws where no image of this library runs there, naming the
  // device, its compute capability, what the library carries and what to do.
  Kernel<Type> for_device(int device) { return {find_for_device(device), operator_name()}; }
  // For functions that FlashInfer implements on the host.
  Kernel<Type> for_host() { return {find_for_host(), operator_name()}; }
};

}  // namespace fp4aot
