// The NVFP4 grouped GEMM of FlashInfer's module gemm_sm120, in place of a binding that also names
// FP8's.
#include "tvm_ffi_utils.h"

void CutlassGroupGemmNVFP4GroupwiseScaledSM120(TensorView int_workspace_buffer,
                                               TensorView float_workspace_buffer, TensorView A,
                                               TensorView B, TensorView SFA, TensorView SFB,
                                               TensorView D, TensorView alpha, TensorView m_indptr,
                                               int64_t n, int64_t k, int64_t tile_m, int64_t tile_n,
                                               int64_t tile_k, bool swap_ab);

TVM_FFI_DLL_EXPORT_TYPED_FUNC(group_gemm_nvfp4_nt_groupwise,
                              CutlassGroupGemmNVFP4GroupwiseScaledSM120);
