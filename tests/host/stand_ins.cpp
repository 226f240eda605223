// A machine with GPUs, as far as the operators' C++ can tell, on one that has none.
//
// Tensors of the CPU stand for tensors on cuda:N, where the test chooses N; each N has a compute
// capability. A FlashInfer function records its arguments and returns, or fails where the test
// wants it to. What torch's CUDA half would do (streams, device guards) is recorded too.
#include "stand_ins.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Machine {
  int device_of_tensors = 0;  // N of cuda:N
  int current_device = 0;
  int cuda_error = 0;           // what cudaGetLastError reports next
  bool fails = false;           // whether FlashInfer's functions raise
  int64_t workspace_bytes = 0;  // what they ask their environment for
  std::vector<std::string> calls;
  std::set<AtenTensorHandle> allocated;  // by the operators, and neither freed nor returned
};

Machine machine;

// The compute capabilities of cuda:0, cuda:1, ...
struct Capability {
  int major, minor;
};
constexpr Capability kCapabilities[] = {{10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}, {9, 0}};
constexpr int kDeviceCount = sizeof(kCapabilities) / sizeof(kCapabilities[0]);

// torch's own function of a name that this library defines anew.
template <typename Function>
Function* torchs(const char* name) {
  static void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string dtype_text(DLDataType dtype) {
  switch (dtype.code) {
    case kDLInt:
      return "int" + std::to_string(dtype.bits);
    case kDLUInt:
      return "uint" + std::to_string(dtype.bits);
    case kDLFloat:
      return "float" + std::to_string(dtype.bits);
    case kDLBfloat:
      return "bfloat16";
    case kDLFloat8_e4m3fn:
      return "float8_e4m3fn";
    case kDLFloat8_e5m2:
      return "float8_e5m2";
    case kDLFloat8_e8m0fnu:
      return "float8_e8m0fnu";
    default:
      return "dtype code " + std::to_string(dtype.code);
  }
}

std::string list_text(const int64_t* values, int32_t count) {
  std::string result = "[";
  for (int32_t i = 0; i < count; ++i) result += (i ? ", " : "") + std::to_string(values[i]);
  return result + "]";
}

std::string tensor_text(const DLTensor& tensor) {
  std::ostringstream out;
  out << R"({"tensor": {"dtype": ")" << dtype_text(tensor.dtype) << R"(", "shape": )"
      << list_text(tensor.shape, tensor.ndim) << R"(, "strides": )"
      << list_text(tensor.strides, tensor.ndim) << R"(}, "address": )"
      << reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset << R"(, "device": )"
      << (tensor.device.device_type == kDLCUDA ? tensor.device.device_id : -1) << "}";
  return out.str();
}

std::string argument_text(const TVMFFIAny& argument) {
  std::ostringstream out;
  out.precision(17);
  switch (argument.type_index) {
    case kTVMFFINone:
      return R"({"none": true})";
    case kTVMFFIBool:
      return argument.v_int64 != 0 ? R"({"bool": true})" : R"({"bool": false})";
    case kTVMFFIInt:
      out << R"({"int": )" << argument.v_int64 << "}";
      return out.str();
    case kTVMFFIFloat:
      out << R"({"float": )" << argument.v_float64 << "}";
      return out.str();
    case kTVMFFIDLTensorPtr:
      return tensor_text(*static_cast<const DLTensor*>(argument.v_ptr));
    case kTVMFFITensor:
      return tensor_text(*TVMFFITensorGetDLTensorPtr(argument.v_obj));
    default:
      out << R"({"type index": )" << argument.type_index << "}";
      return out.str();
  }
}

// As FlashInfer does where a kernel needs a workspace: allocate it in the environment, then drop
// it.
int use_workspace() {
  int64_t bytes = machine.workspace_bytes;
  int64_t stride = 1;
  DLTensor prototype{};
  prototype.device = {kDLCUDA, machine.current_device};
  prototype.ndim = 1;
  prototype.dtype = {kDLUInt, 8, 1};
  prototype.shape = &bytes;
  prototype.strides = &stride;
  TVMFFIObjectHandle workspace = nullptr;
  if (TVMFFIEnvTensorAlloc(&prototype, &workspace) != 0) return -1;
  TVMFFIObjectDecRef(workspace);
  return 0;
}

}  // namespace

int record_call(const char* function, const TVMFFIAny* arguments, int32_t count,
                TVMFFIAny* result) {
  std::ostringstream out;
  const auto stream =
      reinterpret_cast<uintptr_t>(TVMFFIEnvGetStream(kDLCUDA, machine.current_device));
  out << R"({"function": ")" << function << R"(", "device": )" << machine.current_device
      << R"(, "stream": )" << stream << R"(, "allocated": )" << machine.allocated.size()
      << R"(, "arguments": [)";
  for (int32_t i = 0; i < count; ++i) out << (i ? ", " : "") << argument_text(arguments[i]);
  out << "]}";
  machine.calls.push_back(out.str());
  if (machine.workspace_bytes > 0 && use_workspace() != 0) return -1;
  if (machine.fails) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "the test wants this call to fail");
    return -1;
  }
  // Functions that count tactics or bytes return a number; the others' results are not looked at.
  result->type_index = kTVMFFIInt;
  result->v_int64 = 16;
  return 0;
}

// ---- What the tests call ------------------------------------------------------------------------

#define FOR_TESTS extern "C" __attribute__((visibility("default")))

FOR_TESTS void fp4aot_host_reset(int device_of_tensors, int current_device) {
  machine = Machine{};
  machine.device_of_tensors = device_of_tensors;
  machine.current_device = current_device;
}
FOR_TESTS void fp4aot_host_fail(bool fails) { machine.fails = fails; }
FOR_TESTS void fp4aot_host_set_error(int error) { machine.cuda_error = error; }
FOR_TESTS void fp4aot_host_need_workspace(int64_t bytes) { machine.workspace_bytes = bytes; }
FOR_TESTS int fp4aot_host_current_device() { return machine.current_device; }
FOR_TESTS uint64_t fp4aot_host_stream(int device) {
  return reinterpret_cast<uintptr_t>(TVMFFIEnvGetStream(kDLCUDA, device));
}
FOR_TESTS int64_t fp4aot_host_allocated() { return static_cast<int64_t>(machine.allocated.size()); }
// All calls so far, as JSON; valid until the next one.
FOR_TESTS const char* fp4aot_host_calls() {
  static std::string text;
  text = "[";
  for (size_t i = 0; i < machine.calls.size(); ++i) text += (i ? ", " : "") + machine.calls[i];
  text += "]";
  return text.c_str();
}

// ---- The CUDA half of torch ---------------------------------------------------------------------

extern "C" {

int32_t aoti_torch_device_type_cuda() { return aoti_torch_device_type_cpu(); }

AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index) {
  int32_t type = 0;
  if (aoti_torch_get_device_type(tensor, &type) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  *index = type == aoti_torch_device_type_cpu() ? machine.device_of_tensors : -1;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = reinterpret_cast<void*>(uintptr_t{0x1000} + static_cast<uintptr_t>(device));
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_create_device_guard(int32_t device, DeviceGuardHandle* guard) {
  *guard = reinterpret_cast<DeviceGuardHandle>(new int(machine.current_device));
  machine.current_device = device;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard) {
  auto* before = reinterpret_cast<int*>(guard);
  machine.current_device = *before;
  delete before;
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides,
                                        int32_t dtype, int32_t device_type, int32_t,
                                        AtenTensorHandle* result) {
  static auto* real = torchs<decltype(aoti_torch_empty_strided)>("aoti_torch_empty_strided");
  const AOTITorchError status = real(rank, sizes, strides, dtype, device_type, 0, result);
  if (status == AOTI_TORCH_SUCCESS) machine.allocated.insert(*result);
  return status;
}

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  static auto* real =
      torchs<decltype(aoti_torch_delete_tensor_object)>("aoti_torch_delete_tensor_object");
  machine.allocated.erase(tensor);
  return real(tensor);
}

// ---- The CUDA runtime ---------------------------------------------------------------------------

cudaError_t cudaGetDevice(int* device) {
  *device = machine.current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  machine.current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= kDeviceCount) return cudaErrorInvalidDevice;
  const Capability capability = kCapabilities[device];
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability.major : capability.minor;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp{};
  snprintf(properties->name, sizeof(properties->name), "stand-in");
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const auto error = static_cast<cudaError_t>(machine.cuda_error);
  machine.cuda_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "another error";
}
const char* cudaGetErrorString(cudaError_t) { return "described by the stand-in"; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

}  // extern "C"
