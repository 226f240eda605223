#include "operators/mixture_tactics.h"

#include "operators/operator.h"
#include "torch/devices.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kSetOperator = "_set_cutlass_fused_moe_tactics";

// Capability, output dtype, quantized input, fused finalize, hidden size, intermediate size,
// experts of the rank, top_k.
using Table = TacticTable<9, 2>;

Table table_in_force;

bool is_flag(int64_t value) { return value == 0 || value == 1; }

void check_row(int64_t row, const Table::Key& key, const Table::Tactics& tactics) {
  const int64_t dtype = key[2];
  if ((dtype == kBfloat16Column || dtype == kFloat16Column) && is_flag(key[3]) && is_flag(key[4]) &&
      tactics[0] >= kDefaultTactic && tactics[1] >= kDefaultTactic) {
    return;
  }
  argument_error(
      kSetOperator, "table",
      text("row ", row, " with output dtype ", dtype, ", quantized input ", key[3],
           ", fused finalize ", key[4], " and tactics ", tactics[0], " and ", tactics[1]),
      "0 or 1 for the first three, and tactics from -1 on",
      "load a table with fp4aot.tactics.load");
}

// Replaces the table. Columns: major, minor, output dtype (0 = bfloat16, 1 = float16), quantized
// input (0 or 1), fused finalize (0 or 1), hidden size, intermediate size, experts of the rank,
// top_k, smallest number of tokens of the bucket, tactic of the first and of the second product.
// How many tactics there are, only the runner of a device knows: it refuses a number beyond them.
void set_cutlass_fused_moe_tactics(const Tensor& table) {
  table_in_force.replace(kSetOperator, table, check_row);
}

}  // namespace

MixtureTactics find_mixture_tactics(const char* operator_name, int device,
                                    const MixtureArguments& arguments, const MixtureSizes& sizes) {
  MixtureTactics tactics{arguments.gemm1_tactic, arguments.gemm2_tactic};
  if (tactics.first != kDefaultTactic && tactics.second != kDefaultTactic) return tactics;
  const Table::Tactics* found = table_in_force.find(sizes.tokens, [&]() -> Table::Key {
    const Capability capability = device_capability(operator_name, device);
    return {capability.major,
            capability.minor,
            dtype_column(arguments.output_dtype),
            sizes.quantized_input,
            arguments.fused_finalize,
            sizes.hidden,
            sizes.inter,
            sizes.experts,
            sizes.top_k};
  });
  if (found == nullptr) return tactics;
  if (tactics.first == kDefaultTactic) tactics.first = (*found)[0];
  if (tactics.second == kDefaultTactic) tactics.second = (*found)[1];
  return tactics;
}

FP4AOT_FUNCTION(_set_cutlass_fused_moe_tactics, set_cutlass_fused_moe_tactics, "Tensor table",
                "()");

}  // namespace fp4aot
