#include "flashinfer/owning_tensor.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <exception>
#include <memory>
#include <utility>

#include "flashinfer/function.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

// A torch tensor and its shape, kept alive until TVM-FFI drops its last reference.
struct ManagedTensor {
  ManagedTensor(Tensor kept, const Dims& sizes, DLDataType dtype)
      : tensor(std::move(kept)), shape(sizes), managed{} {
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      delete static_cast<ManagedTensor*>(self->manager_ctx);
    };
    managed.dl_tensor = dl_tensor(tensor);
    managed.dl_tensor.dtype = dtype;
    managed.dl_tensor.ndim = static_cast<int32_t>(shape.size());
    managed.dl_tensor.shape = shape.data();
    // Contiguous: TVM-FFI writes the strides itself.
    managed.dl_tensor.strides = nullptr;
  }

  Tensor tensor;
  Dims shape;
  DLManagedTensorVersioned managed;
};

// A block of bytes from torch's caching allocator, on the stream that is current for torch.
Tensor allocate_bytes(const DLTensor& prototype) {
  int64_t bytes = (prototype.dtype.bits * prototype.dtype.lanes + 7) / 8;
  for (int32_t i = 0; i < prototype.ndim; ++i) bytes *= prototype.shape[i];
  const bool cuda = prototype.device.device_type == kDLCUDA;
  const int64_t stride = 1;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(1, &bytes, &stride, static_cast<int32_t>(ScalarType::Byte),
                               cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(),
                               cuda ? prototype.device.device_id : 0, &handle));
  return Tensor(handle);
}

// FlashInfer's environment allocator. Memory that torch allocates and frees in stream order is safe
// under graph capture, belongs to the capture's pool, and moves with no call in between.
int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_context,
             void (*set_error)(void*, const char*, const char*)) {
  try {
    auto owner = std::make_unique<ManagedTensor>(
        allocate_bytes(*prototype), Dims(prototype->shape, static_cast<size_t>(prototype->ndim)),
        prototype->dtype);
    *out = &owner.release()->managed;
    return 0;
  } catch (const std::exception& error) {
    set_error(error_context, "RuntimeError", error.what());
  } catch (...) {
    set_error(error_context, "RuntimeError", "unknown error while allocating a workspace");
  }
  *out = nullptr;
  return -1;
}

// For every thread, before the first operator can run.
const int allocator_status = TVMFFIEnvSetDLPackManagedTensorAllocator(
    &allocate, /*write_to_global_context=*/1, /*opt_out_original_allocator=*/nullptr);

}  // namespace

void check_allocator(const char* operator_name) {
  if (allocator_status == 0) return;
  fail(operator_name, text("TVM-FFI refused torch's allocator (status ", allocator_status,
                           ") when the library was loaded; reinstall fp4aot"));
}

OwningTensor::OwningTensor(const char* operator_name, const Tensor& tensor, const Dims& shape)
    : OwningTensor(operator_name, tensor, shape, dl_tensor(tensor).dtype) {}

OwningTensor::OwningTensor(const char* operator_name, const Tensor& tensor, const Dims& shape,
                           DLDataType dtype) {
  auto owner = std::make_unique<ManagedTensor>(share(tensor.get()), shape, dtype);
  if (TVMFFITensorFromDLPackVersioned(&owner->managed, 0, 0, &handle_) != 0) {
    throw_raised_error(operator_name);
  }
  owner.release();  // now TVM-FFI's
}

OwningTensor::~OwningTensor() { TVMFFIObjectDecRef(handle_); }

}  // namespace fp4aot
