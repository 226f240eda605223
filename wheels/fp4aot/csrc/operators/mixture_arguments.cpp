#include "operators/mixture_arguments.h"

#include <initializer_list>
#include <iterator>
#include <string>

#include "torch/checks.h"
#include "torch/errors.h"

namespace fp4aot {

namespace {

constexpr const char* kOperator = "cutlass_fused_moe";
constexpr int64_t kBlock = 16;  // values that share one block scale
// FlashInfer's kernel takes linear scales for rows of whole groups of four.
constexpr int64_t kLinearMultiple = 4 * kBlock;
constexpr int64_t kMultiple = 32;  // of hidden and intermediate size: 16 bytes of packed values

// FlashInfer's numbers of activations; the compiled ones come first.
constexpr const char* kActivations[] = {
    "Gelu",       "Relu",      "Silu",     "Swiglu", "Geglu",       "SwigluBias",  "Relu2",
    "SwigluStep", "GegluTanh", "Identity", "Situ",   "InvalidType", "ClampedRelu2"};
constexpr int64_t kCompiledActivations = 10;
constexpr int64_t kSwiglu = 3;
constexpr int64_t kGeglu = 4;
constexpr int64_t kSwigluBias = 5;
constexpr int64_t kSwigluStep = 7;
constexpr int64_t kGegluTanh = 8;

constexpr const char* kDo = "pass the tensor of the experts of this rank";

constexpr auto kByte = ScalarType::Byte;
constexpr auto kLong = ScalarType::Long;
constexpr auto kPairs = ScalarType::Float4_e2m1fn_x2;
constexpr auto kScale = ScalarType::Float8_e4m3fn;

bool is_gated(int64_t activation) {
  return activation == kSwiglu || activation == kGeglu || activation == kSwigluBias ||
         activation == kSwigluStep || activation == kGegluTanh;
}

bool is_packed(ScalarType dtype) { return is_one_of(dtype, {kByte, kPairs, kLong}); }

// Values that an element of a packed dtype holds.
int64_t values_of(ScalarType packed) { return packed == kLong ? 16 : 2; }

int64_t values_a_row(const Tensor& tensor) {
  const ScalarType dtype = tensor.scalar_type();
  return tensor.size(-1) * (is_packed(dtype) ? values_of(dtype) : 1);
}

std::string shape_is(const Tensor& tensor) { return text("shape ", shape_text(tensor)); }

void check_activation(int64_t activation) {
  if (activation >= 0 && activation < kCompiledActivations) return;
  std::string expected;
  for (int64_t i = 0; i < kCompiledActivations; ++i) {
    expected += text(i == 0 ? "one of " : ", ", i, " (", kActivations[i], ")");
  }
  const bool known = activation >= 0 && activation < static_cast<int64_t>(std::size(kActivations));
  argument_error(kOperator, "activation_type",
                 text(activation, known ? text(" (", kActivations[activation], ")") : ""), expected,
                 "call flashinfer.cutlass_fused_moe for another activation");
}

void check_rank_of(const char* size_name, const char* rank_name, int64_t size, int64_t rank) {
  if (size < 1) {
    argument_error(kOperator, size_name, text(size), "1 or more", "pass the number of ranks");
  }
  if (rank < 0 || rank >= size) {
    argument_error(kOperator, rank_name, text(rank), text("0 to ", size - 1, ", below ", size_name),
                   "pass the number of this rank");
  }
}

void check_tactic(const char* argument, int64_t tactic) {
  if (tactic >= -1) return;
  argument_error(kOperator, argument, text(tactic),
                 "the number of a tactic, or -1 to have one chosen", "pass -1");
}

void check_contiguous(const char* argument, const Tensor& tensor) {
  if (tensor.is_contiguous()) return;
  argument_error(kOperator, argument,
                 text(shape_is(tensor), " with strides ", strides_text(tensor)),
                 "a contiguous tensor", "make it contiguous once, where it is loaded");
}

void check_input(const MixtureArguments& a, MixtureSizes& sizes) {
  check_dtype(kOperator, "input", a.input,
              {ScalarType::BFloat16, ScalarType::Half, kByte, kPairs, kLong});
  check_rank(kOperator, "input", a.input, {2});
  sizes.quantized_input = is_packed(a.input.scalar_type());
  if (!sizes.quantized_input && a.input.scalar_type() != a.output_dtype) {
    argument_error(kOperator, "input", text("dtype ", dtype_name(a.input.scalar_type())),
                   text(dtype_name(a.output_dtype), ", the dtype of the output"),
                   "convert the input, or ask for its dtype");
  }
  sizes.tokens = a.input.size(0);
  sizes.hidden = values_a_row(a.input);
  check_positive_multiple(kOperator, "input", a.input, sizes.hidden, kMultiple, "values a row");
}

void check_weights(const MixtureArguments& a, const char* argument, const Tensor& weights) {
  check_dtype(kOperator, argument, weights, {kByte, kPairs, kLong});
  check_rank(kOperator, argument, weights, {3});
  check_same_device(kOperator, argument, weights, "input", a.input);
  check_contiguous(argument, weights);
}

void check_fc1_weights(const MixtureArguments& a, MixtureSizes& sizes) {
  const char* argument = "fc1_expert_weights";
  const Tensor& weights = a.fc1_weights;
  check_weights(a, argument, weights);
  sizes.experts = weights.size(0);
  if (sizes.experts == 0) {
    argument_error(kOperator, argument, text(shape_is(weights), " (0 experts)"),
                   "one expert or more", "pass the weights of this rank");
  }
  if (values_a_row(weights) != sizes.hidden) {
    argument_error(kOperator, argument,
                   text(shape_is(weights), " (", values_a_row(weights), " values a row)"),
                   text(sizes.hidden, " values a row, for input of shape ", shape_text(a.input)),
                   "pass packed weights [experts, rows, hidden size / 2]");
  }
  const bool gated = is_gated(a.activation_type);
  check_positive_multiple(kOperator, argument, weights, weights.size(1),
                          gated ? 2 * kMultiple : kMultiple, "rows an expert");
  sizes.inter = gated ? weights.size(1) / 2 : weights.size(1);
}

void check_fc2_weights(const MixtureArguments& a, const MixtureSizes& sizes) {
  const char* argument = "fc2_expert_weights";
  check_weights(a, argument, a.fc2_weights);
  const Dims shape{sizes.experts, sizes.hidden,
                   sizes.inter / values_of(a.fc2_weights.scalar_type())};
  if (has_sizes(a.fc2_weights, shape)) return;
  argument_error(kOperator, argument, shape_is(a.fc2_weights),
                 text(list_text(shape), ", for fc1_expert_weights with ", a.fc1_weights.size(1),
                      is_gated(a.activation_type) ? " up and gate rows" : " rows", " an expert"),
                 "pass packed weights [experts, hidden size, intermediate size / 2]");
}

void check_routing(const MixtureArguments& a, MixtureSizes& sizes) {
  const char* argument = "token_selected_experts";
  const Tensor& selected = a.token_selected_experts;
  check_dtype(kOperator, argument, selected, {ScalarType::Int});
  check_rank(kOperator, argument, selected, {2});
  sizes.top_k = selected.size(1);
  if (selected.size(0) != sizes.tokens || sizes.top_k == 0) {
    argument_error(kOperator, argument, shape_is(selected),
                   text(sizes.tokens, " rows, as input has, of one expert or more"),
                   "pass the experts of each token, [tokens, top_k]");
  }
  check_same_device(kOperator, argument, selected, "input", a.input);
  if (!a.token_final_scales.has_value()) return;
  argument = "token_final_scales";
  const Tensor& scales = *a.token_final_scales;
  check_dtype(kOperator, argument, scales, {ScalarType::Float});
  if (!has_sizes(scales, selected.sizes())) {
    argument_error(kOperator, argument, shape_is(scales),
                   text(shape_text(selected), ", the shape of token_selected_experts"),
                   "pass one weight for each selected expert, or None");
  }
  check_same_device(kOperator, argument, scales, "input", a.input);
}

void check_limits(const MixtureArguments& a, const MixtureSizes& sizes) {
  const int64_t total = saturating_product(sizes.experts, a.ep_size);
  check_int32(kOperator, "input", saturating_product(sizes.tokens, total),
              "a number of tokens times experts of all ranks of");
  check_int32(kOperator, "token_selected_experts", sizes.tokens * sizes.top_k,
              "a number of tokens times selected experts of");
  check_int32(kOperator, "token_selected_experts", saturating_product(sizes.top_k, total),
              "a number of selected experts times experts of all ranks of");
}

int64_t input_scale_count(const MixtureSizes& sizes, bool swizzled) {
  const int64_t columns = sizes.hidden / kBlock;
  return swizzled ? round_up(sizes.tokens, 128) * round_up(columns, 4) : sizes.tokens * columns;
}

const char* layout_name(bool swizzled) { return swizzled ? "layout_128x4" : "layout_linear"; }

void check_input_scales(const MixtureArguments& a, const MixtureSizes& sizes) {
  const char* argument = "input_sf";
  if (!sizes.quantized_input) {
    if (!a.input_scales.has_value()) return;
    argument_error(kOperator, argument,
                   text("a tensor with an input of ", dtype_name(a.input.scalar_type())), "None",
                   "pass it with the packed input that it belongs to");
  }
  if (!a.input_scales.has_value()) {
    argument_error(kOperator, argument, "None", "the block scales of the packed input",
                   "pass what quantized the input, or the input in bfloat16 or float16");
  }
  const Tensor& scales = *a.input_scales;
  check_dtype(kOperator, argument, scales, {kByte, kScale});
  check_same_device(kOperator, argument, scales, "input", a.input);
  check_contiguous(argument, scales);
  const bool swizzled = a.swizzled_input_scales;
  if (!swizzled && sizes.hidden % kLinearMultiple != 0) {
    argument_error(kOperator, "swizzled_input_sf",
                   text("False with ", sizes.hidden, " values a row"),
                   text("True, or a multiple of ", kLinearMultiple, " values a row"),
                   "quantize with the 128x4 layout");
  }
  const int64_t expected = input_scale_count(sizes, swizzled);
  if (scales.numel() == expected) return;
  const bool other = scales.numel() == input_scale_count(sizes, !swizzled);
  argument_error(
      kOperator, argument,
      text(scales.numel(), " scales",
           other ? text(", as many as ", layout_name(!swizzled), " has") : std::string()),
      text(expected, " (", layout_name(swizzled), " for ", sizes.tokens, " rows of ", sizes.hidden,
           " values)"),
      "quantize with that layout, or pass the swizzled_input_sf of another");
}

void check_input_scale(const MixtureArguments& a, const MixtureSizes& sizes, const char* argument,
                       const Tensor& scale) {
  check_dtype(kOperator, argument, scale, {ScalarType::Float});
  if (scale.dim() > 1 || (scale.numel() != 1 && scale.numel() != sizes.experts)) {
    argument_error(kOperator, argument, shape_is(scale),
                   text("[] or [1] or ", list_text({sizes.experts})), kDo);
  }
  check_same_device(kOperator, argument, scale, "input", a.input);
}

// Of every expert's weights [rows, columns], each padded by itself.
void check_block_scales(const MixtureArguments& a, const MixtureSizes& sizes, const char* argument,
                        const Tensor& scales, int64_t rows, int64_t columns) {
  check_dtype(kOperator, argument, scales, {kByte, kScale, ScalarType::Int});
  const int64_t in_one = scales.scalar_type() == ScalarType::Int ? 4 : 1;
  const Dims shape{sizes.experts, round_up(rows, 128), round_up(columns / kBlock, 4) / in_one};
  if (!has_sizes(scales, shape)) {
    argument_error(kOperator, argument, shape_is(scales),
                   text(list_text(shape), " (layout_128x4 for each of ", sizes.experts,
                        " experts with ", rows, " rows of ", columns, " values)"),
                   "swizzle the scales of each expert with block_scale_interleave");
  }
  check_same_device(kOperator, argument, scales, "input", a.input);
  check_contiguous(argument, scales);
}

void check_of_each_expert(const MixtureArguments& a, const MixtureSizes& sizes,
                          const char* argument, const Tensor& tensor) {
  check_like(kOperator, argument, tensor, ScalarType::Float, {sizes.experts}, kDo, "input",
             a.input);
}

void check_scales(const MixtureArguments& a, const MixtureSizes& sizes) {
  check_input_scale(a, sizes, "fc1_act_global_scale", a.fc1_input_scale);
  check_block_scales(a, sizes, "fc1_weight_block_scales", a.fc1_block_scales, a.fc1_weights.size(1),
                     sizes.hidden);
  check_of_each_expert(a, sizes, "fc1_alpha", a.fc1_alpha);
  check_input_scale(a, sizes, "fc2_act_global_scale", a.fc2_input_scale);
  check_block_scales(a, sizes, "fc2_weight_block_scales", a.fc2_block_scales, sizes.hidden,
                     sizes.inter);
  check_of_each_expert(a, sizes, "fc2_alpha", a.fc2_alpha);
}

void check_bias(const MixtureArguments& a, const MixtureSizes& sizes, const char* argument,
                const std::optional<Tensor>& bias, const char* other, int64_t length) {
  if (!bias.has_value()) {
    argument_error(kOperator, argument, "None", text("a tensor, as ", other, " is one"),
                   "pass both biases or neither");
  }
  check_like(kOperator, argument, *bias, a.output_dtype, {sizes.experts, length}, kDo, "input",
             a.input);
}

void check_biases(const MixtureArguments& a, const MixtureSizes& sizes) {
  if (!a.fc1_biases.has_value() && !a.fc2_biases.has_value()) return;
  const char* fc1 = "fc1_expert_biases";
  const char* fc2 = "fc2_expert_biases";
  check_bias(a, sizes, fc1, a.fc1_biases, fc2, a.fc1_weights.size(1));
  check_bias(a, sizes, fc2, a.fc2_biases, fc1, sizes.hidden);
}

void check_parameter(const MixtureArguments& a, const MixtureSizes& sizes, const char* argument,
                     const std::optional<Tensor>& parameter, bool is_limit) {
  if (!parameter.has_value()) return;
  const int64_t activation = a.activation_type;
  const bool reads =
      activation == kSwiglu || activation == kSwigluBias || (is_limit && activation == kSwigluStep);
  if (!reads) {
    argument_error(
        kOperator, argument,
        text("a tensor with activation_type=", activation, " (", kActivations[activation], ")"),
        "None", text("pass it only with Swiglu or SwigluBias", is_limit ? " or SwigluStep" : ""));
  }
  check_of_each_expert(a, sizes, argument, *parameter);
}

}  // namespace

MixtureSizes check_mixture(const MixtureArguments& a) {
  MixtureSizes sizes{};
  check_activation(a.activation_type);
  check_rank_of("tp_size", "tp_rank", a.tp_size, a.tp_rank);
  check_rank_of("ep_size", "ep_rank", a.ep_size, a.ep_rank);
  check_tactic("gemm1_tactic", a.gemm1_tactic);
  check_tactic("gemm2_tactic", a.gemm2_tactic);
  check_input(a, sizes);
  check_fc1_weights(a, sizes);
  check_fc2_weights(a, sizes);
  check_routing(a, sizes);
  check_limits(a, sizes);
  check_input_scales(a, sizes);
  check_scales(a, sizes);
  check_biases(a, sizes);
  check_parameter(a, sizes, "swiglu_alpha", a.swiglu_alpha, false);
  check_parameter(a, sizes, "swiglu_beta", a.swiglu_beta, false);
  check_parameter(a, sizes, "swiglu_limit", a.swiglu_limit, true);
  const bool has_parameters =
      a.swiglu_alpha.has_value() || a.swiglu_beta.has_value() || a.swiglu_limit.has_value();
  sizes.activation_type =
      a.activation_type == kSwiglu && has_parameters ? kSwigluBias : a.activation_type;
  return sizes;
}

}  // namespace fp4aot
