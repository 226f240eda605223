// Looks the encoder up as CUTLASS and FlashInfer do; linked with the wrapper, this finds it.

#include <cuda.h>
#include <cuda_runtime_api.h>

extern "C" __attribute__((visibility("default"))) int encode(
    CUtensorMap* map, int type, cuuint32_t rank, void* address, const cuuint64_t* dimensions,
    const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
    int swizzle) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &status) != cudaSuccess ||
      status != cudaDriverEntryPointSuccess) {
    return -1;
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      map, static_cast<CUtensorMapDataType>(type), rank, address, dimensions, strides, box,
      element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      static_cast<CUtensorMapSwizzle>(swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
