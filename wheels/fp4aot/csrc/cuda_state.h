// The device, stream and error state around one launch.
//
// The library has a CUDA runtime of its own (static), beside torch's. Both drive the same primary
// contexts through the driver, so a device set through torch is the device of our launches.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <string>

#include "kernel_table.h"

namespace fp4aot {

// Compute capability of cuda:`device`. Throws with the driver's and runtime's versions where the
// driver is too old for this library's CUDA runtime.
Capability device_capability(const char* operator_name, int device);
std::string device_name(int device);

// For the lifetime of the object: cuda:`device` is current, and FlashInfer launches on the stream
// that torch has current there (without it, graph capture would record the wrong stream; the
// TVM-FFI runtime is this library's own, and no launch is without a scope). A device that is
// current already is left alone: torch's guard costs more than all of the rest.
class LaunchScope {
 public:
  LaunchScope(const char* operator_name, int device);
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

  // FlashInfer checks no launch. Throws when CUDA reports an error; call it after each launch.
  void check_launch() const;

 private:
  const char* operator_name_;
  int device_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

}  // namespace fp4aot
