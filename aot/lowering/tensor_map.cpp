// Tensor maps with 4-bit elements, on a GPU whose tensor maps have none. For tests: linked into a
// lowered library with
//   -Wl,--wrap=cudaGetDriverEntryPointByVersion -Wl,--wrap=cudaGetDriverEntryPoint
// which leads every look-up of a driver function here. The encoder of tiled maps is replaced; all
// other functions are the driver's.
//
// A map of packed 4-bit elements becomes one of 64-bit elements: sixteen of the old make one of the
// new, so the first dimension and the first edge of the box shrink by sixteen. Strides are in
// bytes, and so are the swizzle and what arrives in shared memory: none of it changes. The lowered
// kernels divide the first coordinate by sixteen where a map has that element type, so it must mean
// nothing else: a map that asks for it itself is refused.
//
// Elements that Blackwell unpacks on the way, sixteen to sixteen bytes, arrive packed here, each
// row of 64 bytes at the beginning of its 128: that is how wide the swizzle is. The lowered kernels
// look there (aot/lowering/unpacking_loads.py).
//
// Where a map keeps its element type is not documented. The macros say where the lowered kernels
// look (aot/lowering/tensor_map_coordinates.py); each map that leaves here is checked against them.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#ifndef FP4AOT_TENSOR_MAP_TYPE_OFFSET
#error "pass the flags of aot.lowering.tensor_map_coordinates.compiler_flags"
#endif

extern "C" cudaError_t __real_cudaGetDriverEntryPointByVersion(const char*, void**, unsigned int,
                                                               unsigned long long,
                                                               cudaDriverEntryPointQueryResult*);
extern "C" cudaError_t __real_cudaGetDriverEntryPoint(const char*, void**, unsigned long long,
                                                      cudaDriverEntryPointQueryResult*);

namespace {

constexpr cuuint64_t kElements = 16;  // of 4 bits in one of 64
constexpr CUtensorMapDataType kMark = CU_TENSOR_MAP_DATA_TYPE_INT64;
constexpr cuuint32_t kUnpackedRow = 128;  // elements: with their gaps, as wide as the swizzle

using Encode = decltype(&cuTensorMapEncodeTiled);

// Set by every look-up, before what it returns can be called.
std::atomic<Encode> real_encode{nullptr};

CUresult refuse(const char* reason) {
  std::fprintf(stderr, "lowered tensor map: %s\n", reason);
  return CUDA_ERROR_NOT_SUPPORTED;
}

bool has_mark(const CUtensorMap& map) {
  std::uint32_t word;
  std::memcpy(&word, reinterpret_cast<const char*>(&map) + FP4AOT_TENSOR_MAP_TYPE_OFFSET,
              sizeof(word));
  return (word & FP4AOT_TENSOR_MAP_TYPE_MASK) == FP4AOT_TENSOR_MAP_TYPE_TAG;
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dimensions, const cuuint64_t* strides,
                      const cuuint32_t* box, const cuuint32_t* element_strides,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const bool unpacked = type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
  if (type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) {
    return refuse("6-bit elements have no counterpart on Hopper");
  }
  if (type == kMark) {
    return refuse("64-bit integer elements stand for 4-bit ones here, and cannot be asked for");
  }
  if (unpacked && (box[0] != kUnpackedRow || swizzle != CU_TENSOR_MAP_SWIZZLE_128B)) {
    return refuse("elements to unpack must come in rows of 128, with the swizzle of 128 bytes");
  }
  cuuint64_t new_dimensions[5];
  cuuint32_t new_box[5];
  if (unpacked || type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B) {
    if (rank < 1 || rank > 5 || dimensions[0] % kElements || box[0] % kElements ||
        element_strides[0] != 1) {
      return refuse("the first dimension, and its box, must be multiples of 16 elements");
    }
    std::memcpy(new_dimensions, dimensions, rank * sizeof(*dimensions));
    std::memcpy(new_box, box, rank * sizeof(*box));
    new_dimensions[0] /= kElements;
    new_box[0] /= kElements;
    dimensions = new_dimensions;
    box = new_box;
    type = kMark;
  }
  const CUresult result = real_encode.load()(map, type, rank, address, dimensions, strides, box,
                                             element_strides, interleave, swizzle, promotion, fill);
  if (result == CUDA_SUCCESS && has_mark(*map) != (type == kMark)) {
    return refuse("this driver keeps the element type elsewhere; see tensor_map_coordinates.py");
  }
  return result;
}

cudaError_t replace(const char* symbol, void** function, cudaError_t result) {
  if (result == cudaSuccess && *function != nullptr &&
      std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0) {
    real_encode = reinterpret_cast<Encode>(*function);
    *function = reinterpret_cast<void*>(&encode_tiled);
  }
  return result;
}

}  // namespace

extern "C" cudaError_t __wrap_cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
  return replace(symbol, function,
                 __real_cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status));
}

extern "C" cudaError_t __wrap_cudaGetDriverEntryPoint(const char* symbol, void** function,
                                                      unsigned long long flags,
                                                      cudaDriverEntryPointQueryResult* status) {
  return replace(symbol, function, __real_cudaGetDriverEntryPoint(symbol, function, flags, status));
}
