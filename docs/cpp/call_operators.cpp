// Calls fp4aot's operators from C++, through PyTorch's dispatcher, with no Python in the process:
//
//     call_operators PATH/TO/libfp4aot.so cpu|cuda
//
// On the CPU it calls mxfp4_dequantize_host, the one operator whose CPU kernel is C++. On a GPU it
// quantizes, dequantizes and multiplies. Inputs are such that every step is exact, so what the
// operators return has to be, bit for bit, what the loops below compute.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "without_python.h"

namespace {

using at::Tensor;

constexpr std::array<float, 8> kE2M1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

float e2m1(int code) { return (code & 8) != 0 ? -kE2M1[code & 7] : kE2M1[code & 7]; }

template <typename Function>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

int failures = 0;

void report(const char* name, bool is_equal) {
  std::printf("%-28s %s\n", name, is_equal ? "equal" : "DIFFERENT");
  if (!is_equal) ++failures;
}

// A matrix of e2m1 codes, 16 to a block scale that is a power of two. Every block holds a 6, so
// that a quantizer under the global scale 1 finds these codes and scales again.
struct Blocks {
  int64_t rows, columns;
  std::vector<int> codes;
  std::vector<int> exponents;

  Blocks(int64_t rows, int64_t columns, unsigned seed) : rows(rows), columns(columns) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows * columns; ++i) {
      // Not 8: a quantizer writes -0 or +0 for it as it likes.
      const int code = static_cast<int>(random() % 15);
      codes.push_back(i % 16 == 5 ? 7 : code < 8 ? code : code + 1);
    }
    for (int64_t i = 0; i < rows * columns / 16; ++i) {
      exponents.push_back(static_cast<int>(random() % 3) - 1);
    }
  }

  float value(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    return std::ldexp(e2m1(codes[i]), exponents[i / 16]);
  }

  Tensor values() const {
    Tensor result = at::empty({rows, columns}, at::kFloat);
    for (int64_t i = 0; i < rows * columns; ++i) {
      result.mutable_data_ptr<float>()[i] = value(i / columns, i % columns);
    }
    return result;
  }

  // Two codes to a byte, the first in the low half.
  Tensor packed() const {
    Tensor result = at::empty({rows, columns / 2}, at::kByte);
    for (int64_t i = 0; i < rows * columns / 2; ++i) {
      result.mutable_data_ptr<uint8_t>()[i] =
          static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    return result;
  }

  // E4M3 of 2^exponent, in the 128x4 layout: tiles of 128 rows and 4 columns, 512 bytes each.
  Tensor swizzled_scales() const {
    const int64_t scale_columns = columns / 16;
    const int64_t padded_rows = (rows + 127) / 128 * 128;
    const int64_t padded_columns = (scale_columns + 3) / 4 * 4;
    Tensor result = at::zeros({padded_rows, padded_columns}, at::kByte);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < scale_columns; ++column) {
        const int64_t tile = row / 128 * (padded_columns / 4) + column / 4;
        const int64_t place = tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
        result.mutable_data_ptr<uint8_t>()[place] =
            static_cast<uint8_t>((exponents[row * scale_columns + column] + 7) << 3);
      }
    }
    return result;
  }
};

void run_on_cpu() {
  const auto dequantize =
      find<Tensor(const Tensor&, const Tensor&, int64_t)>("fp4aot::mxfp4_dequantize_host");
  std::mt19937 random(1);
  const int64_t rows = 37, columns = 96;
  Tensor weight = at::empty({rows, columns / 2}, at::kByte);
  Tensor scale = at::empty({rows, columns / 32}, at::kByte);
  Tensor expected = at::empty({rows, columns}, at::kFloat);
  auto* weights = weight.mutable_data_ptr<uint8_t>();
  auto* scales = scale.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < scale.numel(); ++i) scales[i] = static_cast<uint8_t>(random() % 200 + 20);
  for (int64_t i = 0; i < weight.numel(); ++i) {
    weights[i] = static_cast<uint8_t>(random() % 256);
    for (const int64_t half : {0, 1}) {
      const float value = e2m1(weights[i] >> (4 * half) & 15);
      // UE8M0: a power of two, with 127 for one.
      expected.mutable_data_ptr<float>()[2 * i + half] =
          std::ldexp(value, scales[(2 * i + half) / 32] - 127);
    }
  }
  report("mxfp4_dequantize_host", at::equal(dequantize.call(weight, scale, 32), expected));
}

void run_on_gpu() {
  const auto quantize =
      find<std::tuple<Tensor, Tensor>(const Tensor&, const std::optional<Tensor>&, int64_t, bool,
                                      bool, bool, bool, std::optional<bool>, int64_t)>(
          "fp4aot::fp4_quantize");
  const auto dequantize = find<Tensor(const Tensor&, const Tensor&, const Tensor&, at::ScalarType)>(
      "fp4aot::nvfp4_kv_dequantize");
  const auto multiply =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const std::optional<Tensor>&, at::ScalarType, int64_t)>("fp4aot::mm_fp4");

  const Blocks a(130, 256, 1), b(96, 256, 2);
  const Tensor one = at::ones({1}, at::kFloat).to(at::kCUDA);
  const auto quantize_rows = [&](const Blocks& blocks, bool is_swizzled) {
    const Tensor input = blocks.values().to(at::kBFloat16).to(at::kCUDA);
    return quantize.call(input, one, 16, false, is_swizzled, false, false, std::nullopt, 0);
  };
  const auto [a_values, a_scales] = quantize_rows(a, true);
  const auto [b_values, b_scales] = quantize_rows(b, true);
  report("fp4_quantize, values", at::equal(a_values.cpu(), a.packed()));
  report("fp4_quantize, scales", at::equal(a_scales.cpu(), a.swizzled_scales()));

  const auto [linear_values, linear_scales] = quantize_rows(a, false);
  const Tensor restored = dequantize.call(linear_values, linear_scales, one, at::kBFloat16);
  report("nvfp4_kv_dequantize", at::equal(restored.cpu().to(at::kFloat), a.values()));

  const Tensor product =
      multiply.call(a_values, b_values.t(), a_scales, b_scales, one, at::kBFloat16, -1);
  Tensor expected = at::empty({a.rows, b.rows}, at::kFloat);
  for (int64_t m = 0; m < a.rows; ++m) {
    for (int64_t n = 0; n < b.rows; ++n) {
      float sum = 0;  // exact: multiples of 1/16 below 2^20
      for (int64_t k = 0; k < a.columns; ++k) sum += a.value(m, k) * b.value(n, k);
      expected.mutable_data_ptr<float>()[m * b.rows + n] = sum;
    }
  }
  report("mm_fp4", at::equal(product.cpu(), expected.to(at::kBFloat16)));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: call_operators PATH/TO/libfp4aot.so cpu|cuda");
  load_operators(argv[1]);
  const c10::InferenceMode no_gradients;
  if (std::strcmp(argv[2], "cuda") == 0) {
    run_on_gpu();
  } else {
    run_on_cpu();
  }
  std::printf("%-28s %s\n", "Python in this process", python_in_process());
  return failures == 0 ? 0 : 1;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
