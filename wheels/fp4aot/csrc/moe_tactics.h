// Which tactics the two products of `cutlass_fused_moe` run.
#pragma once

#include "moe_arguments.h"
#include "tactic_table.h"
#include "tensor.h"

namespace fp4aot {

struct MoeTactics {
  int64_t first;
  int64_t second;
};

// Replaces the table. Columns: major, minor, output dtype (0 = bfloat16, 1 = float16), quantized
// input (0 or 1), fused finalize (0 or 1), hidden size, intermediate size, experts of the rank,
// top_k, smallest number of tokens of the bucket, tactic of the first and of the second product.
// How many tactics there are, only the runner of a device knows: it refuses a number beyond them.
void set_cutlass_fused_moe_tactics(const Tensor& table);

// For tensors on cuda:`device`: the call's own tactics, and where it names none, those of the
// largest bucket that is not above its tokens, else of the smallest bucket, else the default.
MoeTactics find_moe_tactics(const char* operator_name, int device, const MoeArguments& arguments,
                            const MoeSizes& sizes);

}  // namespace fp4aot
