// The FP4 tensor core instruction, cluster launch control and tensor maps, checked on the GPU.
//
// Compiled for sm_120f and lowered. Tiles are functions of a number, so that every lane can compute
// its own operands and, in double precision, what its results must be.

#include <cuda.h>

#include "checks.h"

// ---- tiles
// ---------------------------------------------------------------------------------------
enum Kind : unsigned {
  kRandom,    // all element codes and all finite scales; compared with a bound
  kExact,     // small integers and scales of 1 and 2: every sum is exact
  kOnePair,   // one element and one scale of A at a time, all 16 x 127 of them
  kNanScale,  // one scale is NaN: exactly one row or column of results is
};

struct Tile {
  Kind kind;
  unsigned number;

  __device__ unsigned random(unsigned what, unsigned i, unsigned j) const {
    return mix(mix(number * 4 + what) + i * 64 + j);
  }
  __device__ unsigned a(unsigned row, unsigned k) const {
    if (kind == kOnePair) return number % 16 * (row == 3 && k == number / 16 % 64);
    return element(random(0, row, k));
  }
  __device__ unsigned b(unsigned k, unsigned column) const {
    if (kind == kOnePair) return 2;  // 1.0
    return element(random(1, column, k));
  }
  __device__ unsigned scale_a(unsigned row, unsigned group) const {
    if (kind == kOnePair) return number / 16 % 127;
    if (kind == kNanScale && number % 2 == 0 && row == number / 2 % 16 && group == number / 32 % 4)
      return 0x7f;
    return scale(random(2, row, group));
  }
  __device__ unsigned scale_b(unsigned column, unsigned group) const {
    if (kind == kOnePair) return 0x38;  // 1.0
    if (kind == kNanScale && number % 2 == 1 && column == number / 2 % 8 &&
        group == number / 16 % 4)
      return 0x7f;
    return scale(random(3, column, group));
  }
  __device__ float c(unsigned row, unsigned column) const {
    if (kind == kOnePair) return 0;
    const float integer =
        static_cast<float>(static_cast<int>(random(0, row, 100 + column) % 64) - 32);
    return kind == kExact ? integer : integer * 37.25f;
  }

 private:
  __device__ unsigned element(unsigned r) const { return r >> 8 & 15; }
  __device__ unsigned scale(unsigned r) const {
    return kind == kExact ? (r & 1 ? 0x38 : 0x40) : r % 127;
  }
};

__device__ double e2m1_value(unsigned code) {
  const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

__device__ double ue4m3_value(unsigned code) {
  if (code == 0x7f) return nan("");
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? ldexp(double(mantissa), -9) : ldexp(8.0 + mantissa, exponent - 10);
}

// ---- mma
// ----------------------------------------------------------------------------------------- Lane
// and register of an element, after the figures in the PTX ISA's chapter on m16n8k64.
__device__ void multiply(const Tile& tile, unsigned lane, unsigned short thread_a,
                         unsigned short thread_b, float d[4]) {
  const unsigned group = lane / 4, in_quad = lane % 4;
  unsigned a[4] = {0, 0, 0, 0}, b[2] = {0, 0}, scale_a = 0x7f7f7f7f, scale_b = 0x7f7f7f7f;
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned k = in_quad * 8 + i;
    a[0] |= tile.a(group, k) << 4 * i;
    a[1] |= tile.a(group + 8, k) << 4 * i;
    a[2] |= tile.a(group, k + 32) << 4 * i;
    a[3] |= tile.a(group + 8, k + 32) << 4 * i;
    b[0] |= tile.b(k, group) << 4 * i;
    b[1] |= tile.b(k + 32, group) << 4 * i;
  }
  // The other lanes of a quad hold NaN.
  if (in_quad / 2 == thread_a) {
    scale_a = 0;
    for (unsigned i = 0; i < 4; ++i) scale_a |= tile.scale_a(group + in_quad % 2 * 8, i) << 8 * i;
  }
  if (in_quad == thread_b) {
    scale_b = 0;
    for (unsigned i = 0; i < 4; ++i) scale_b |= tile.scale_b(group, i) << 8 * i;
  }
  const float c[4] = {tile.c(group, in_quad * 2), tile.c(group, in_quad * 2 + 1),
                      tile.c(group + 8, in_quad * 2), tile.c(group + 8, in_quad * 2 + 1)};
  asm volatile(
      "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col"
      ".f32.e2m1.e2m1.f32.ue4m3 "
      "{%0,  %1,  %2,  %3},{%4,  %5,  %6,  %7},{%8,  %9},{%10, %11, %12, %13},"
      "{%14},{%15, %16},{%17},{%18, %19};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]), "r"(scale_a), "h"(static_cast<unsigned short>(0)), "h"(thread_a),
        "r"(scale_b), "h"(static_cast<unsigned short>(0)), "h"(thread_b));
}

__device__ void check_tiles(Mismatches* out, Kind kind, unsigned count) {
  Check check(out);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned number = first_index() / 32; number < count; number += index_step() / 32) {
    const Tile tile{kind, number};
    float d[4];
    // Every choice of the lanes that hold the scales.
    multiply(tile, lane, mix(number) & 1, mix(number) >> 1 & 3, d);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = tile.c(row, column), magnitude = fabs(sum);
      for (unsigned k = 0; k < 64; ++k) {
        const double product = e2m1_value(tile.a(row, k)) * ue4m3_value(tile.scale_a(row, k / 16)) *
                               e2m1_value(tile.b(k, column)) *
                               ue4m3_value(tile.scale_b(column, k / 16));
        sum += product;
        magnitude += fabs(product);
      }
      // A tensor core may cut off what lies below the 24 bits of the largest term of a step.
      const double bound = kind == kRandom || kind == kNanScale ? magnitude * 0x1p-18 : 0;
      const bool same = sum != sum ? d[i] != d[i] : fabs(d[i] - sum) <= bound;
      check.expect(same, number, __float_as_uint(d[i]), __float_as_uint(static_cast<float>(sum)));
    }
  }
}

extern "C" __global__ void mma_random(Mismatches* out) { check_tiles(out, kRandom, 1u << 16); }
extern "C" __global__ void mma_exact(Mismatches* out) { check_tiles(out, kExact, 1u << 16); }
extern "C" __global__ void mma_one_pair(Mismatches* out) {
  check_tiles(out, kOnePair, 16 * 64 * 127);
}
extern "C" __global__ void mma_nan_scale(Mismatches* out) { check_tiles(out, kNanScale, 1u << 10); }

// ---- mma of FP8 by FP4
// ----------------------------------------------------------------------------------
enum Type : unsigned { kE4M3, kE5M2, kE2M1 };

enum MixedKind : unsigned {
  kMixedRandom,  // finite elements, scales near 1; compared with a bound
  kMixedExact,   // small integers and scales of 1 and 2: every sum is exact
  kElements,     // each element of A beside each of B, NaN and infinities too
  kScales,       // each scale of A beside each of B, NaN too
};

__device__ double value(Type type, unsigned code) {
  if (type == kE2M1) return e2m1_value(code);
  const int bits = type == kE4M3 ? 3 : 2, bias = type == kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> bits, mantissa = code & ((1 << bits) - 1);
  const double sign = code & 0x80 ? -1 : 1;
  if (type == kE4M3 && (code & 0x7f) == 0x7f) return nan("");
  if (type == kE5M2 && exponent == 31) return mantissa != 0 ? nan("") : sign * INFINITY;
  return sign * (exponent == 0 ? ldexp(double(mantissa), 1 - bias - bits)
                               : ldexp(double(mantissa + (1 << bits)), exponent - bias - bits));
}

template <Type kTypeA, Type kTypeB>
struct MixedTile {
  MixedKind kind;
  unsigned number;

  __device__ unsigned random(unsigned what, unsigned i, unsigned j) const {
    return mix(mix(number * 4 + what) + i * 64 + j);
  }
  __device__ unsigned a(unsigned row, unsigned k) const {
    if (kind == kElements) return row == 3 && k == number % 32 ? number / 32 % codes(kTypeA) : 0;
    if (kind == kScales) return k == 0 ? one(kTypeA) : 0;
    return element(kTypeA, random(0, row, k));
  }
  __device__ unsigned b(unsigned k, unsigned column) const {
    if (kind == kElements)
      return column == 5 && k == number % 32 ? number / 32 / codes(kTypeA) % codes(kTypeB) : 0;
    if (kind == kScales) return k == 0 ? one(kTypeB) : 0;
    return element(kTypeB, random(1, column, k));
  }
  __device__ unsigned scale_a(unsigned row) const {
    if (kind == kScales) return (number + row) % 256;
    return scale(random(2, row, 0));
  }
  __device__ unsigned scale_b(unsigned column) const {
    if (kind == kScales) return (number / 256 + column) % 256;
    return scale(random(3, column, 0));
  }
  __device__ float c(unsigned row, unsigned column) const {
    if (kind == kElements || kind == kScales) return 0;
    const float integer =
        static_cast<float>(static_cast<int>(random(0, row, 100 + column) % 64) - 32);
    return kind == kMixedExact ? integer : integer * 37.25f;
  }

 private:
  __device__ static unsigned codes(Type type) { return type == kE2M1 ? 16 : 256; }
  __device__ static unsigned one(Type type) {
    return type == kE2M1 ? 2 : type == kE4M3 ? 0x38 : 0x3c;
  }
  __device__ unsigned element(Type type, unsigned r) const {
    if (type == kE2M1) return r >> 8 & 15;
    // 0, 1, 2 and their negatives, or any finite number.
    if (kind == kMixedExact)
      return (r & 1 ? one(type) + (r >> 1 & 1) * (type == kE4M3 ? 8 : 4) : 0) | (r >> 2 & 1) << 7;
    return (r >> 8 & 0x80) | (r >> 8 & 0x7f) % (type == kE4M3 ? 0x7f : 0x7c);
  }
  __device__ unsigned scale(unsigned r) const {
    if (kind == kElements) return 127;
    return kind == kMixedExact ? 127 + (r & 1) : 120 + r % 16;
  }
};

#define FP4AOT_MIXED_MMA(TYPES)                                                                    \
  asm volatile(                                                                                    \
      "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32" TYPES       \
      ".f32.ue8m0 {%0, %1, %2, %3},{%4, %5, %6, %7},{%8, %9},"                                     \
      "{%10, %11, %12, %13},{%14},{%15, %16},{%17},{%18, %19};\n"                                  \
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),    \
        "f"(c[2]), "f"(c[3]), "r"(scale_a), "h"(byte_a), "h"(thread_a), "r"(scale_b), "h"(byte_b), \
        "h"(thread_b))

// Lane and register of an element, after the figures in the PTX ISA's chapter on m16n8k32.
template <Type kTypeA, Type kTypeB>
__device__ void multiply(const MixedTile<kTypeA, kTypeB>& tile, unsigned lane, unsigned choice,
                         float d[4]) {
  const unsigned group = lane / 4, in_quad = lane % 4;
  const unsigned shift_a = kTypeA == kE2M1 ? 2 : 0, shift_b = kTypeB == kE2M1 ? 2 : 0;
  unsigned a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned k = in_quad * 4 + i;
    a[0] |= tile.a(group, k) << (8 * i + shift_a);
    a[1] |= tile.a(group + 8, k) << (8 * i + shift_a);
    a[2] |= tile.a(group, k + 16) << (8 * i + shift_a);
    a[3] |= tile.a(group + 8, k + 16) << (8 * i + shift_a);
    b[0] |= tile.b(k, group) << (8 * i + shift_b);
    b[1] |= tile.b(k + 16, group) << (8 * i + shift_b);
  }
  // The other bytes, and the other lanes of a quad, hold a scale that is wrong.
  const unsigned short byte_a = choice & 3, byte_b = choice >> 2 & 3;
  const unsigned short thread_a = choice >> 4 & 1, thread_b = choice >> 5 & 3;
  unsigned scale_a = 0x6a6b6c6d, scale_b = 0x6d6c6b6a;
  if (in_quad / 2 == thread_a) {
    scale_a = (scale_a & ~(255u << 8 * byte_a)) | tile.scale_a(group + in_quad % 2 * 8)
                                                      << 8 * byte_a;
  }
  if (in_quad == thread_b) {
    scale_b = (scale_b & ~(255u << 8 * byte_b)) | tile.scale_b(group) << 8 * byte_b;
  }
  const float c[4] = {tile.c(group, in_quad * 2), tile.c(group, in_quad * 2 + 1),
                      tile.c(group + 8, in_quad * 2), tile.c(group + 8, in_quad * 2 + 1)};
  if constexpr (kTypeA == kE4M3) FP4AOT_MIXED_MMA(".e4m3.e2m1");
  if constexpr (kTypeA == kE5M2) FP4AOT_MIXED_MMA(".e5m2.e2m1");
  if constexpr (kTypeB == kE4M3) FP4AOT_MIXED_MMA(".e2m1.e4m3");
  if constexpr (kTypeB == kE5M2) FP4AOT_MIXED_MMA(".e2m1.e5m2");
}

template <Type kTypeA, Type kTypeB>
__device__ void check_mixed(Mismatches* out, MixedKind kind, unsigned count) {
  Check check(out);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned number = first_index() / 32; number < count; number += index_step() / 32) {
    const MixedTile<kTypeA, kTypeB> tile{kind, number};
    float d[4];
    multiply(tile, lane, mix(number), d);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = 0, magnitude = 0;
      for (unsigned k = 0; k < 32; ++k) {
        const double product = value(kTypeA, tile.a(row, k)) * value(kTypeB, tile.b(k, column));
        sum += product;
        magnitude += fabs(product);
      }
      const unsigned scales[2] = {tile.scale_a(row), tile.scale_b(column)};
      const double scale = scales[0] == 255 || scales[1] == 255
                               ? nan("")
                               : ldexp(1.0, static_cast<int>(scales[0] + scales[1]) - 254);
      const float expected = static_cast<float>(sum * scale + tile.c(row, column));
      // As above; the sum itself is then rounded once more.
      const double bound =
          kind == kMixedRandom ? (magnitude * scale + fabs(tile.c(row, column))) * 0x1p-18 : 0;
      const bool same = expected != expected
                            ? d[i] != d[i]
                            : d[i] == expected || fabs(double(d[i]) - expected) <= bound;
      check.expect(same, number, __float_as_uint(d[i]), __float_as_uint(expected));
    }
  }
}

__device__ void check_mixed(Mismatches* out, MixedKind kind, unsigned count) {
  check_mixed<kE4M3, kE2M1>(out, kind, count);
  check_mixed<kE2M1, kE4M3>(out, kind, count);
  check_mixed<kE5M2, kE2M1>(out, kind, count);
  check_mixed<kE2M1, kE5M2>(out, kind, count);
}

extern "C" __global__ void mixed_mma_random(Mismatches* out) {
  check_mixed(out, kMixedRandom, 1u << 16);
}
extern "C" __global__ void mixed_mma_exact(Mismatches* out) {
  check_mixed(out, kMixedExact, 1u << 16);
}
extern "C" __global__ void mixed_mma_elements(Mismatches* out) {
  check_mixed(out, kElements, 32 * 16 * 256);
}
extern "C" __global__ void mixed_mma_scales(Mismatches* out) {
  check_mixed(out, kScales, 256 * 256);
}

// ---- barriers
// ---------------------------------------------------------------------------------------
// Whether a phase has ended before so many tries have: a kernel that waits for ever tells nothing.
__device__ unsigned wait(unsigned barrier_at, unsigned parity, unsigned most_tries) {
  unsigned done = 0;
  for (unsigned tries = 0; !done && tries < most_tries; ++tries) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier_at), "r"(parity)
        : "memory");
  }
  return done;
}

// ---- cluster launch control
// ---------------------------------------------------------------------- A block asks for another
// block to take over, waits for the answer, and is told that there is none.
extern "C" __global__ void no_more_work(Mismatches* out) {
  Check check(out);
  __shared__ alignas(16) unsigned response[4];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned response_at = static_cast<unsigned>(__cvta_generic_to_shared(response));
  const unsigned barrier_at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x < 4) response[threadIdx.x] = 0xdeadbeef;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
  }
  __syncthreads();
  for (unsigned round = 0; round < 4; ++round) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(barrier_at)
                   : "memory");
      asm volatile(
          "{\n\tclusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
          ".multicast::cluster::all.b128 [%0], [%1];\n\t}" ::"r"(response_at),
          "r"(barrier_at)
          : "memory");
    }
    const unsigned done = wait(barrier_at, round & 1, 1u << 16);
    unsigned canceled = 9, x = 7, y = 7, z = 7;
    asm volatile(
        "{\n.reg .pred p1;\n.reg .b128 clc_result;\nld.shared.b128 clc_result, [%4];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p1, clc_result;\n"
        "selp.u32 %0, 1, 0, p1;\n@p1 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 "
        "{%1, %2, %3, _}, clc_result;\n}"
        : "=r"(canceled), "+r"(x), "+r"(y), "+r"(z)
        : "r"(response_at)
        : "memory");
    check.expect(threadIdx.x, done, 1);
    check.expect(threadIdx.x, canceled, 0);
    check.expect(threadIdx.x, x + y + z, 21);  // not canceled: the guard keeps them as they were
    check.expect(threadIdx.x, response[threadIdx.x % 4], 0);
    __syncthreads();
  }
}

// ---- tensor maps
// --------------------------------------------------------------------------------- Copies a box of
// 64 rows of 64 bytes to `target`, from the coordinates given in elements.
extern "C" __global__ void copy_box(const __grid_constant__ CUtensorMap map, unsigned* target,
                                    int x, int y, int z) {
  __shared__ alignas(128) unsigned box[1024];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned box_at = static_cast<unsigned>(__cvta_generic_to_shared(box));
  const unsigned barrier_at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(barrier_at)
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(box_at),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier_at)
        : "memory");
  }
  __syncthreads();
  const unsigned done = wait(barrier_at, 0, 1u << 20);
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) target[i] = done ? box[i] : 0xffffffff;
}

// Copies a box of 128 rows of 128 4-bit elements and unpacks it, a byte for each. Its place in
// shared memory and the addresses of its rows are those that a Blackwell has.
extern "C" __global__ void unpack_box(const __grid_constant__ CUtensorMap map, unsigned* target,
                                      int x, int y) {
  __shared__ alignas(1024) unsigned char box[128 * 128];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned box_at = static_cast<unsigned>(__cvta_generic_to_shared(box));
  const unsigned barrier_at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;" ::"r"(barrier_at)
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(box_at),
        "l"(&map), "r"(x), "r"(y), "r"(barrier_at)
        : "memory");
  }
  __syncthreads();
  const unsigned done = wait(barrier_at, 0, 1u << 20);
  const unsigned lane = threadIdx.x % 32;
  // Eight rows and 64 elements at a time: four matrices, whose rows eight lanes name each.
  for (unsigned part = threadIdx.x / 32; part < 32; part += blockDim.x / 32) {
    const unsigned row = part / 2 * 8 + lane % 8, piece = part % 2 * 4 + lane / 8;
    const unsigned at = box_at + row * 128 + (piece ^ row % 8) * 16;
    unsigned w[4];
    asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned word = (part / 2 * 8 + lane / 4) * 32 + (part % 2 * 4 + i) * 4 + lane % 4;
      target[word] = done ? w[i] : 0xffffffff;
    }
  }
}
