// Checks that every operator makes before it touches a device. Each throws a message in the form of
// errors.h; none reads tensor data, so none synchronises.
#pragma once

#include <initializer_list>

#include "torch/tensor.h"

namespace fp4aot {

void check_dtype(const char* operator_name, const char* argument, const Tensor& tensor,
                 std::initializer_list<ScalarType> accepted);
void check_rank(const char* operator_name, const char* argument, const Tensor& tensor,
                std::initializer_list<int64_t> accepted);
void check_same_device(const char* operator_name, const char* argument, const Tensor& tensor,
                       const char* reference_argument, const Tensor& reference);
// The dispatcher comes to a CUDA kernel when any argument is on a CUDA device: this one must be.
void check_cuda(const char* operator_name, const char* argument, const Tensor& tensor);
// The sizes and the dtype that another argument asks for, on its device.
void check_like(const char* operator_name, const char* argument, const Tensor& tensor,
                ScalarType dtype, const Dims& sizes, const char* what_to_do,
                const char* reference_argument, const Tensor& reference);
// float32 on the device of `reference`, one element of any rank.
void check_scalar_scale(const char* operator_name, const char* argument, const Tensor& scale,
                        const char* reference_argument, const Tensor& reference);
// An output buffer must be laid out exactly as the functional form would return it. Most kernels
// store eight bytes at once.
void check_output(const char* operator_name, const char* argument, const Tensor& output,
                  const Layout& layout, ScalarType dtype, const char* reference_argument,
                  const Tensor& reference, std::uintptr_t alignment = 8);
// Rows must divide into whole blocks of scaled values.
void check_blocks(const char* operator_name, const char* argument, const Tensor& tensor,
                  int64_t multiple = 16);
// A size of a tensor that quantized blocks or tiles divide: `what` names it, e.g. "values a row".
void check_positive_multiple(const char* operator_name, const char* argument, const Tensor& tensor,
                             int64_t size, int64_t multiple, const char* what);
// FlashInfer's kernels index with 32-bit signed integers.
void check_int32(const char* operator_name, const char* argument, int64_t value, const char* what);

}  // namespace fp4aot
