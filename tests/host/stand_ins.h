// What the operators' C++ is linked with in place of FlashInfer, the CUDA runtime and the CUDA half
// of torch: functions that keep a record of what they are asked. `stand_ins.cpp` says what each
// does.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>

// Stands for every FlashInfer function: writes down its name, its arguments, and the device and the
// stream that a kernel would be launched on. The table of kernels, which is generated, calls it.
int record_call(const char* function, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result);
