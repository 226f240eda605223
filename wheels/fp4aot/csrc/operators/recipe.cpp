#include "operators/recipe.h"

#include "torch/errors.h"

namespace fp4aot {

namespace {

// Bit 0: 4-over-6. Bit 1: E4M3 maximum 256. Bits 2 and 3: error mode, 0 or 1. Bit 4: fast errors.
bool is_recipe_code(int64_t code) {
  if (code == kStandardRecipe) return true;
  return code > 0 && (code & 1) != 0 && (code >> 5) == 0 && ((code >> 2) & 3) <= 1;
}

}  // namespace

void check_recipe(const char* operator_name, int64_t code, const char* input_argument,
                  const Tensor& input) {
  if (!is_recipe_code(code)) {
    argument_error(operator_name, "nvfp4_4over6", text(code),
                   "0 (the standard recipe) or the code of a 4-over-6 recipe",
                   "pass what fp4aot.nvfp4_4over6_code returns");
  }
  if (code != kStandardRecipe && input.scalar_type() == ScalarType::Float8_e4m3fn) {
    argument_error(operator_name, "nvfp4_4over6",
                   text(code, " with '", input_argument, "' of ", dtype_name(input.scalar_type())),
                   "0 (float8 values have no other recipe)",
                   "pass the standard recipe, or float16 or bfloat16 values");
  }
}

}  // namespace fp4aot
