#include "flashinfer/kernel_table.h"

#include <cstring>
#include <set>
#include <string>
#include <tuple>

#include "flashinfer/owning_tensor.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

// "9.0a, 12.0f", in the order of the numbers.
std::string carried_images(const char* function) {
  std::set<std::tuple<int, int, char>> images;
  for (size_t i = 0; i < kernel_entry_count; ++i) {
    const KernelEntry& entry = kernel_entries[i];
    if (std::strcmp(entry.function, function) != 0) continue;
    for (size_t j = 0; j < entry.image_count; ++j) {
      images.insert({entry.images[j].major, entry.images[j].minor, entry.images[j].suffix});
    }
  }
  std::string result;
  for (const auto& [major, minor, suffix] : images) {
    result += text(result.empty() ? "" : ", ", major, ".", minor);
    if (suffix != '\0') result += suffix;
  }
  return result;
}

}  // namespace

bool Image::runs_on(Capability capability) const {
  if (capability.major != major) return false;
  return suffix == 'a' ? capability.minor == minor : capability.minor >= minor;
}

const KernelEntry* find_kernel(const char* function, Capability capability) {
  const KernelEntry* family = nullptr;
  for (size_t i = 0; i < kernel_entry_count; ++i) {
    const KernelEntry& entry = kernel_entries[i];
    if (std::strcmp(entry.function, function) != 0) continue;
    for (size_t j = 0; j < entry.image_count; ++j) {
      const Image& image = entry.images[j];
      if (!image.runs_on(capability)) continue;
      if (image.minor == capability.minor) return &entry;
      family = &entry;
    }
  }
  return family;
}

TVMFFISafeCallType KernelSlots::find_for_device(int device) {
  if (device < 0 || device >= kMaxDevices) return look_up(device);  // which refuses it
  std::atomic<TVMFFISafeCallType>& slot = by_device_[static_cast<size_t>(device)];
  TVMFFISafeCallType call = slot.load(std::memory_order_acquire);
  if (call == nullptr) {
    call = look_up(device);
    slot.store(call, std::memory_order_release);
  }
  return call;
}

TVMFFISafeCallType KernelSlots::look_up(int device) const {
  check_allocator(operator_name_);
  const Capability capability = device_capability(operator_name_, device);
  if (const KernelEntry* entry = find_kernel(function_, capability)) return entry->call;
  const std::string carried = carried_images(function_);
  if (kernels_are_lowered && !carried.empty()) {
    fail(operator_name_,
         text("device cuda:", device, " (", device_name(device), ", compute capability ",
              capability.major, ".", capability.minor,
              ") cannot run this wheel: its kernels are lowered to compute capability 9.0, to test "
              "them on a Hopper; install a fp4aot wheel whose version has no '+lowered'"));
  }
  fail(operator_name_, text("device cuda:", device, " (", device_name(device),
                            ", compute capability ", capability.major, ".", capability.minor,
                            ") has no compiled kernel in this wheel, which ",
                            carried.empty() ? std::string("does not carry this function at all")
                                            : text("carries ", carried),
                            "; install a fp4aot wheel that covers compute capability ",
                            capability.major, ".", capability.minor,
                            " if there is one (FP4 quantization and GEMM need 10.0 or newer), or "
                            "run `python -m fp4aot doctor` to see what fits"));
}

TVMFFISafeCallType KernelSlots::find_for_host() {
  TVMFFISafeCallType call = host_.load(std::memory_order_acquire);
  if (call != nullptr) return call;
  for (size_t i = 0; i < kernel_entry_count; ++i) {
    if (std::strcmp(kernel_entries[i].function, function_) == 0) {
      call = kernel_entries[i].call;
      host_.store(call, std::memory_order_release);
      return call;
    }
  }
  fail(operator_name_, text("this wheel does not carry the module with '", function_,
                            "'; install a fp4aot wheel that does"));
}

}  // namespace fp4aot
