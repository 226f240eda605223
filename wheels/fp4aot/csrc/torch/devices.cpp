#include "torch/devices.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "torch/errors.h"

namespace fp4aot {

namespace {

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

void check(const char* operator_name, int device, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // what is reported here must not be reported again by the next launch
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

Capability ask_capability(const char* operator_name, int device) {
  Capability capability{};
  check(operator_name, device,
        cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, device));
  check(operator_name, device,
        cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, device));
  return capability;
}

}  // namespace

Capability device_capability(const char* operator_name, int device) {
  // Major and minor in one number, so that another thread sees both or neither; 0: not asked yet.
  constexpr int kMinors = 1000;
  static std::array<std::atomic<int>, kMaxDevices> known{};
  if (device < 0 || device >= kMaxDevices) {
    fail(operator_name, text("got device cuda:", device, ", expected cuda:0 to cuda:",
                             kMaxDevices - 1, "; select fewer devices with CUDA_VISIBLE_DEVICES"));
  }
  std::atomic<int>& slot = known[static_cast<size_t>(device)];
  int value = slot.load(std::memory_order_relaxed);
  if (value == 0) {
    const Capability asked = ask_capability(operator_name, device);
    value = asked.major * kMinors + asked.minor;
    slot.store(value, std::memory_order_relaxed);
  }
  return {value / kMinors, value % kMinors};
}

std::string device_name(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return "unknown device";
  }
  return properties.name;
}

bool is_other_device(const char* operator_name, int device) {
  int current = -1;
  check(operator_name, device, cudaGetDevice(&current));
  return current != device;
}

void set_device(const char* operator_name, int device) {
  check(operator_name, device, cudaSetDevice(device));
}

void check_last_error(const char* operator_name, int device) {
  check(operator_name, device, cudaGetLastError());
}

}  // namespace fp4aot
