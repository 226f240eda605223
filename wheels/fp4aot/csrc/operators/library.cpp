// What the library says of itself, for `python -m fp4aot doctor`.
#include <cuda_runtime_api.h>

#include "flashinfer/kernel_table.h"
#include "operators/operator.h"

namespace fp4aot {

namespace {

// CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 without a driver.
int64_t cuda_driver_version() {
  int version = 0;
  cudaDriverGetVersion(&version);
  return version;
}

// CUDA version of this library's own runtime.
int64_t cuda_runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

bool has_kernel(std::string function, int64_t major, int64_t minor) {
  return find_kernel(function.c_str(), {static_cast<int>(major), static_cast<int>(minor)}) !=
         nullptr;
}

}  // namespace

FP4AOT_FUNCTION(_cuda_driver_version, cuda_driver_version, "", "int");
FP4AOT_FUNCTION(_cuda_runtime_version, cuda_runtime_version, "", "int");
FP4AOT_FUNCTION(_has_kernel, has_kernel, "str function, int major, int minor", "bool");

}  // namespace fp4aot
