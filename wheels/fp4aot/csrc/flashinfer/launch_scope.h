// The device and the stream of one launch.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include <optional>

namespace fp4aot {

// For the lifetime of the object, cuda:`device` is current, and FlashInfer launches on the stream
// that torch has current there: without it, graph capture would record the wrong stream. A device
// that is current already is left alone: torch's guard costs more than all of the rest.
class LaunchScope {
 public:
  LaunchScope(const char* operator_name, int device);
  ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

  // FlashInfer checks no launch. Throws when CUDA reports an error.
  void check_launch() const;

 private:
  const char* operator_name_;
  int device_;
  void* stream_before_ = nullptr;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

}  // namespace fp4aot
