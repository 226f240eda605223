// Conversions, reductions and 256-bit accesses, checked on the GPU against straightforward code.
//
// Compiled for sm_100a and lowered; each kernel counts the results that differ. The references take
// another way than the replacements do: distances and exponents in double precision.

#include "checks.h"

// ---- float32 to two E2M1
// -------------------------------------------------------------------------
__device__ unsigned e2m1_reference(unsigned bits) {
  const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const float x = __uint_as_float(bits);
  if (x != x) return 7;
  const double magnitude = fabs(static_cast<double>(x));
  unsigned best = 7;
  if (magnitude < 6) {
    best = 0;
    for (unsigned code = 1; code < 8; ++code) {
      const double now = fabs(magnitude - values[code]), then = fabs(magnitude - values[best]);
      if (now < then || (now == then && code % 2 == 0)) best = code;
    }
  }
  return best | (bits >> 31 << 3);
}

__device__ unsigned e2m1x2(unsigned high, unsigned low) {
  unsigned result;
  asm volatile(
      "{\n.reg .b8 byte0;\ncvt.rn.satfinite.e2m1x2.f32   byte0, %1, %2;\n"
      "mov.b32 %0, {byte0, 0, 0, 0};\n}"
      : "=r"(result)
      : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  return result;
}

// All float32 in either position, beside another one.
extern "C" __global__ void e2m1x2_from_f32(Mismatches* out) {
  Check check(out);
  for (unsigned long long i = first_index(); i < 1ull << 32; i += index_step()) {
    const unsigned x = static_cast<unsigned>(i), y = mix(x);
    const unsigned rx = e2m1_reference(x), ry = e2m1_reference(y);
    check.expect(x, e2m1x2(x, y), rx << 4 | ry);
    check.expect(x, e2m1x2(y, x), ry << 4 | rx);
  }
}

// A guard decides whether the result is written.
extern "C" __global__ void guarded_conversion(Mismatches* out) {
  Check check(out);
  const unsigned lane = threadIdx.x;
  unsigned result = 0x5a;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b8 b, z0, z1, z2;\nmov.b32 {b, z0, z1, z2}, %0;\n"
      "setp.ne.u32 p, %1, 0;\n@!p cvt.rn.satfinite.e2m1x2.f32 b, %2, %3;\n"
      "mov.b32 %0, {b, z0, z1, z2};\n}"
      : "+r"(result)
      : "r"(lane & 1), "f"(1.0f), "f"(-6.0f));
  check.expect(lane, result, lane & 1 ? 0x5a : 0x2f);
}

// ---- two E2M1 to float16
// -------------------------------------------------------------------------
extern "C" __global__ void f16x2_from_e2m1x2(Mismatches* out) {
  Check check(out);
  const unsigned short half[8] = {0, 0x3800, 0x3c00, 0x3e00, 0x4000, 0x4200, 0x4400, 0x4600};
  for (unsigned long long i = first_index(); i < 256; i += index_step()) {
    const unsigned code = static_cast<unsigned>(i);
    unsigned result;
    asm volatile(
        "{\n.reg .b8 b, z0, z1, z2;\nmov.b32 {b, z0, z1, z2}, %1;\ncvt.rn.f16x2.e2m1x2 %0, b;\n}"
        : "=r"(result)
        : "r"(code));
    const unsigned low = half[code & 7] | (code & 8) << 12;
    const unsigned high = half[code >> 4 & 7] | (code >> 7) << 15;
    check.expect(code, result, high << 16 | low);
  }
}

// ---- float32 to two UE8M0
// ------------------------------------------------------------------------
__device__ unsigned ue8m0_reference(unsigned bits) {
  const double magnitude = fabs(static_cast<double>(__uint_as_float(bits)));
  if (magnitude != magnitude) return 255;
  if (magnitude > 1.8e38) return 254;  // above 2^127, infinity included
  if (magnitude == 0) return 0;
  int exponent;
  const double fraction = frexp(magnitude, &exponent);  // in [0.5, 1)
  const int code = (fraction == 0.5 ? exponent - 1 : exponent) + 127;
  return code < 0 ? 0 : code > 254 ? 254 : code;
}

__device__ unsigned ue8m0x2(unsigned high, unsigned low) {
  unsigned short result;
  asm volatile("cvt.rp.satfinite.ue8m0x2.f32 %0, %1, %2;"
               : "=h"(result)
               : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  return result;
}

extern "C" __global__ void ue8m0x2_from_f32(Mismatches* out) {
  Check check(out);
  for (unsigned long long i = first_index(); i < 1ull << 32; i += index_step()) {
    const unsigned x = static_cast<unsigned>(i), y = mix(x);
    const unsigned rx = ue8m0_reference(x), ry = ue8m0_reference(y);
    check.expect(x, ue8m0x2(x, y), rx << 8 | ry);
    check.expect(x, ue8m0x2(y, x), ry << 8 | rx);
  }
}

// ---- two UE8M0 to bfloat16
// -----------------------------------------------------------------------
extern "C" __global__ void bf16x2_from_ue8m0x2(Mismatches* out) {
  Check check(out);
  for (unsigned long long i = first_index(); i < 1ull << 16; i += index_step()) {
    const unsigned short codes = static_cast<unsigned short>(i);
    unsigned result;
    asm volatile("cvt.rn.bf16x2.ue8m0x2 %0, %1;" : "=r"(result) : "h"(codes));
    unsigned expected = 0;
    for (int half = 0; half < 2; ++half) {
      const int code = codes >> (8 * half) & 255;
      // ldexp may flush what is subnormal: 2^-127 is built from its bits.
      const float power = code == 0 ? __uint_as_float(0x00400000) : exp2f_exact(code - 127);
      const unsigned bits = code == 255 ? 0x7fff : __float_as_uint(power) >> 16;
      expected |= bits << (16 * half);
    }
    check.expect(codes, result, expected);
  }
}

// ---- reductions
// ----------------------------------------------------------------------------------
__device__ unsigned warp_value(unsigned number, unsigned lane) {
  const unsigned special[12] = {0x7fc00000, 0xffffffff, 0x7f800001, 0x7f800000,
                                0xff800000, 0,          0x80000000, 1,
                                0x80000001, 0x007fffff, 0x7f7fffff, 0xff7fffff};
  const unsigned random = mix(number * 32 + lane);
  // Warps of numbers alone, with some special values, of special values, of NaN, of zeros.
  switch (number % 6) {
    case 0:
      return (random & 0x7f800000) == 0x7f800000 ? random & 0xbfffffff : random;
    case 1:
      return random % 7 == 0 ? special[mix(random) % 12] : mix(random + 1);
    case 2:
      return special[random % 12];
    case 3:
      return lane == random % 40 ? 0xc0000000 : special[random % 3];
    case 4:
      return special[5 + random % 2];
    default:
      return special[random % 3];
  }
}

// What the PTX ISA says: NaN is left out unless `nan`; -0 is below +0; the NaN is canonical.
__device__ unsigned redux_reference(unsigned number, unsigned mask, bool max, bool abs, bool nan) {
  unsigned best = 0x7fffffff;
  bool any_nan = false;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    unsigned bits = warp_value(number, lane);
    if (abs) bits &= 0x7fffffff;
    const float x = __uint_as_float(bits), y = __uint_as_float(best);
    if (x != x) {
      any_nan = true;
    } else if (y != y || (max ? x > y : x < y) ||
               (x == y && (max ? bits < best : bits > best) && ((bits ^ best) >> 31))) {
      best = bits;
    }
  }
  return nan && any_nan ? 0x7fffffff : best;
}

#define REDUX(name, max, abs, nan)                                                               \
  extern "C" __global__ void redux_##name(Mismatches* out) {                                     \
    Check check(out);                                                                            \
    const unsigned lane = threadIdx.x % 32;                                                      \
    for (unsigned number = first_index() / 32; number < 1u << 18; number += index_step() / 32) { \
      const unsigned mask = number & 1 ? mix(number) | 1u << (number >> 1 & 31) : 0xffffffffu;   \
      const unsigned source = warp_value(number, lane);                                          \
      unsigned result = 0;                                                                       \
      if (mask >> lane & 1) {                                                                    \
        asm volatile("{redux.sync." INSTRUCTION_##name ".f32 %0, %1, %2;}"                       \
                     : "=r"(result)                                                              \
                     : "r"(source), "r"(mask));                                                  \
        check.expect(number, result, redux_reference(number, mask, max, abs, nan));              \
      }                                                                                          \
      __syncwarp();                                                                              \
    }                                                                                            \
  }
#define INSTRUCTION_max "max"
#define INSTRUCTION_min "min"
#define INSTRUCTION_max_abs "max.abs"
#define INSTRUCTION_min_abs "min.abs"
#define INSTRUCTION_max_nan "max.NaN"
#define INSTRUCTION_min_nan "min.NaN"
#define INSTRUCTION_max_abs_nan "max.abs.NaN"
#define INSTRUCTION_min_abs_nan "min.abs.NaN"
REDUX(max, true, false, false)
REDUX(min, false, false, false)
REDUX(max_abs, true, true, false)
REDUX(min_abs, false, true, false)
REDUX(max_nan, true, false, true)
REDUX(min_nan, false, false, true)
REDUX(max_abs_nan, true, true, true)
REDUX(min_abs_nan, false, true, true)

// ---- 256 bits
// ------------------------------------------------------------------------------------
__device__ unsigned words[256 * 8];
__device__ unsigned copies[256 * 8];

extern "C" __global__ void load_store_256_bits(Mismatches* out) {
  Check check(out);
  const unsigned thread = threadIdx.x;
  for (int i = 0; i < 8; ++i) {
    words[thread * 8 + i] = mix(thread * 8 + i);
    copies[thread * 8 + i] = 0;
  }
  __syncthreads();
  const unsigned *source = words + thread * 8 + 24, *behind = words + thread * 8;
  unsigned* target = copies + thread * 8 - 16;
  unsigned r[8];
  // From before the register's address, to behind it.
  asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8+-96];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
                 "=r"(r[7])
               : "l"(source));
  // Odd threads do not store.
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, %9, 0;\n"
      "@p st.global.v8.b32 [%8+64], {%0, %1, %2, %3, %4, %5, %6, %7};\n}" ::"r"(r[0]),
      "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]), "l"(target),
      "r"(thread & 1));
  unsigned long long d[4];
  // The address is among the targets.
  asm volatile(
      "{\n.reg .b64 a;\nmov.b64 a, %4;\nld.global.v4.b64 {a, %1, %2, %3}, [a];\nmov.b64 %0, a;\n}"
      : "=l"(d[0]), "=l"(d[1]), "=l"(d[2]), "=l"(d[3])
      : "l"(behind));
  __syncthreads();
  for (int i = 0; i < 8; ++i) {
    const unsigned expected = mix(thread * 8 + i);
    check.expect(thread, r[i], expected);
    check.expect(thread, static_cast<unsigned>(d[i / 2] >> (32 * (i % 2))), expected);
    check.expect(thread, copies[thread * 8 + i], thread & 1 ? 0 : expected);
  }
}
