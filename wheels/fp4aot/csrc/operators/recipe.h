// NVFP4 recipes, as the integer code that FlashInfer's functions take.
#pragma once

#include <cstdint>

#include "torch/tensor.h"

namespace fp4aot {

// The standard recipe. FlashInfer's -1 would make it read the environment, and is refused.
constexpr int64_t kStandardRecipe = 0;

// Refuses a code that FlashInfer cannot have written, and the 4-over-6 recipe for an fp8 input,
// for which there is no kernel.
void check_recipe(const char* operator_name, int64_t code, const char* input_argument,
                  const Tensor& input);

}  // namespace fp4aot
