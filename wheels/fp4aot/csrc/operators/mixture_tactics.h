// Which tactics the two products of `cutlass_fused_moe` run.
#pragma once

#include "flashinfer/tactic_table.h"
#include "operators/mixture_arguments.h"

namespace fp4aot {

struct MixtureTactics {
  int64_t first;
  int64_t second;
};

// For tensors on cuda:`device`: the call's own tactics, and where it names none, those of the
// largest bucket that is not above its tokens, else of the smallest bucket, else the default.
MixtureTactics find_mixture_tactics(const char* operator_name, int device,
                                    const MixtureArguments& arguments, const MixtureSizes& sizes);

}  // namespace fp4aot
