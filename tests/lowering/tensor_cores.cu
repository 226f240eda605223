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
    unsigned done = 0;
    for (unsigned tries = 0; !done && tries < 1u << 16; ++tries) {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier_at), "r"(round & 1)
          : "memory");
    }
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
  unsigned done = 0;
  for (unsigned tries = 0; !done && tries < 1u << 20; ++tries) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier_at)
        : "memory");
  }
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) target[i] = done ? box[i] : 0xffffffff;
}
