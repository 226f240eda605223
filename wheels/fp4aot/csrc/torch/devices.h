// What the operators ask of CUDA devices.
//
// The library has a CUDA runtime of its own (static), beside torch's. Both drive the same primary
// contexts through the driver, so a device set through torch is the device of our launches.
#pragma once

#include <cstddef>
#include <string>

namespace fp4aot {

// Devices beyond these are refused.
constexpr int kMaxDevices = 64;

struct Capability {
  int major;
  int minor;
};

// Compute capability of cuda:`device`, which is asked once for each device. Throws with the
// driver's and the runtime's versions where the driver is too old for this library's CUDA runtime.
Capability device_capability(const char* operator_name, int device);
std::string device_name(int device);

// Makes cuda:`device` current for this library's runtime, and says whether it was not.
bool is_other_device(const char* operator_name, int device);
void set_device(const char* operator_name, int device);

// Throws when a launch, or an asynchronous kernel before it, has left an error.
void check_last_error(const char* operator_name, int device);

}  // namespace fp4aot
