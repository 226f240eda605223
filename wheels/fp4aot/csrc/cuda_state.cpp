#include "cuda_state.h"

#include <cuda_runtime_api.h>
#include <dlpack/dlpack.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "errors.h"

// Lives in the CUDA half of torch: weak, so that this library also loads beside a CPU-only torch.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

namespace fp4aot {

namespace {

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

[[noreturn]] void cuda_error(const char* operator_name, int device, cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error == cudaErrorInsufficientDriver) {
    fail(operator_name,
         text("the NVIDIA driver supports CUDA ", version_text(driver),
              " but this wheel was built with CUDA ", version_text(runtime),
              "; update the driver or install the fp4aot wheel for an older CUDA version"));
  }
  fail(operator_name, text("CUDA reports '", cudaGetErrorName(error), "' (",
                           cudaGetErrorString(error), ") on cuda:", device,
                           "; an earlier asynchronous kernel can be the cause: run with "
                           "CUDA_LAUNCH_BLOCKING=1 to find it"));
}

}  // namespace

Capability device_capability(const char* operator_name, int device) {
  Capability capability{};
  cudaError_t error =
      cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // the failed query must not be reported again by the next launch
    cuda_error(operator_name, device, error);
  }
  return capability;
}

std::string device_name(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return "unknown device";
  }
  return properties.name;
}

LaunchScope::LaunchScope(const char* operator_name, int device)
    : operator_name_(operator_name), device_(device) {
  // The kernels ask this library's runtime for the current device, which answers with the device of
  // the thread's context: the same that torch's runtime sees.
  int current = -1;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess && current != device) {
    guard_.emplace(device);
    error = cudaSetDevice(device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    cuda_error(operator_name, device, error);
  }
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr ||
      aoti_torch_get_current_cuda_stream(device, &stream) != AOTI_TORCH_SUCCESS) {
    fail(operator_name, text("torch gives no current stream for cuda:", device,
                             "; install a PyTorch build with CUDA"));
  }
  if (TVMFFIEnvSetStream(kDLCUDA, device, stream, nullptr) != 0) {
    fail(operator_name, text("could not set the stream of cuda:", device));
  }
}

void LaunchScope::check_launch() const {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) cuda_error(operator_name_, device_, error);
}

}  // namespace fp4aot
