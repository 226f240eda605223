#include "flashinfer/launch_scope.h"

#include <dlpack/dlpack.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "torch/devices.h"
#include "torch/errors.h"

// Lives in the CUDA half of torch: weak, so that this library also loads beside a CPU-only torch.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

namespace fp4aot {

LaunchScope::LaunchScope(const char* operator_name, int device)
    : operator_name_(operator_name), device_(device) {
  // The kernels ask this library's runtime for the current device, which answers with the device of
  // the thread's context: the same that torch's runtime sees.
  if (is_other_device(operator_name, device)) {
    guard_.emplace(device);
    set_device(operator_name, device);
  }
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr ||
      aoti_torch_get_current_cuda_stream(device, &stream) != AOTI_TORCH_SUCCESS) {
    fail(operator_name, text("torch gives no current stream for cuda:", device,
                             "; install a PyTorch build with CUDA"));
  }
  if (TVMFFIEnvSetStream(kDLCUDA, device, stream, &stream_before_) != 0) {
    fail(operator_name, text("could not set the stream of cuda:", device));
  }
}

LaunchScope::~LaunchScope() { TVMFFIEnvSetStream(kDLCUDA, device_, stream_before_, nullptr); }

void LaunchScope::check_launch() const { check_last_error(operator_name_, device_); }

}  // namespace fp4aot
